"""The combinations of a matrix that its constraints allow, the configuration of each, and the control of a cell."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING
from functools import cache
from operator import attrgetter, methodcaller
from typing import Any

from harness.core.cell.arguments import PREFIX, Arguments, label_of, merged
from harness.core.cell.axes import LAYOUT, axes, dotted
from harness.core.cell.axis_values import HARNESS
from harness.core.cell.config import NOISE, CellConfig, ModelConfig, TrainConfig
from harness.core.cell.layout import Layout
from harness.core.cell.timing import NOT_TIMED, TimingConfig
from harness.core.outcomes import NODE_RULES
from harness.core.packing.documents import MIXES, DocumentsConfig, mix
from harness.core.packing.options import PackingOptions
from harness.core.setting import keys_of
from harness.core.stack import digest
from harness.features.hybrid.pattern import pattern_name
from harness.matrix.axes import MAX_ROWS, Row, size_problems
from harness.matrix.constraints import ConstraintError
from harness.matrix.load import Matrix
from harness.matrix.problems import Problems
from harness.matrix.rules.table import ADDED, RULES
from harness.matrix.schema.sections import MODEL_PARTS, model_problems, shown_part
from harness.upstreams.builtin.spec import UNPACKED
from harness.upstreams.table import DATA_PATHS

OPTIONS = tuple(keys_of(PackingOptions))
_LIMITS = {  # rules of where cells run, and what to do instead of lifting them
    "layout.world-size": "raise launch.max_ranks",
    "cluster.nodes": "choose sizes that the nodes of the cluster can hold",
    "stack.container": "use --cluster NAME: containers are started through Slurm",
}
_AXIS_FIELDS = tuple(axis for axis in axes().values() if axis.field)  # axes that set a field of CellConfig
_NOT_OF_CONTROL = {
    axis.field: axis.default for axis in _AXIS_FIELDS if axis.default is not MISSING and not axis.setting.in_control
}
_FEWER = (
    "give axes fewer values, in the file or for one run with --set matrix.AXIS=VALUE; drop combinations by constraints "
    "or exclude; or split the matrix over several files"
)


def default_values(matrix: Matrix) -> dict[str, Any]:
    """Return the values of axes that a combination leaves out.

    `packing` has no default: every combination must name it.
    """
    values = {name: axis.default for name, axis in axes().items() if name != "packing"}
    values |= {name: getattr(matrix.options, name) for name in OPTIONS}
    values["documents"] = matrix.documents.label
    dotted = [name for name in matrix.axes.names if "." in name]
    return values | {name: None if name.startswith(PREFIX) else attrgetter(name)(matrix) for name in dotted}


def of_section(section: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a section's axes: {"model.layers": 8} gives {"layers": 8} for "model"."""
    return {name.partition(".")[2]: value for name, value in values.items() if name.startswith(f"{section}.")}


def combinations_of(matrix: Matrix, problems: Problems) -> tuple[list[Row], Counter[str]]:
    """Return the combinations that constraints allow, in matrix order and with every axis filled in; and how many
    combinations each constraint drops.

    Adds what is wrong to `problems`; then the combinations are not complete.
    """
    allowed: list[Row] = []
    excluded: Counter[str] = Counter()
    base = default_values(matrix)
    dotted = any("." in constraint.text for constraint in matrix.constraints)
    for row in matrix.axes.combinations():
        values = {**base, **row.values}
        if "packing" not in values:
            problems.add(("matrix",), "a combination has no packing", hint="add the axis 'packing'")
            break
        if values["sp"] is None:
            values["sp"] = values["tp"] > 1
        values["world_size"] = values["tp"] * values["pp"] * values["cp"] * values["dp"]
        names = {**values, **_sections(matrix, values)} if dotted else values
        try:
            broken = next((constraint for constraint in matrix.constraints if not constraint.holds(names)), None)
        except ConstraintError as error:
            problems.add(("constraints",), str(error))
            break
        if broken is not None:
            excluded[broken.text] += 1
        elif len(allowed) < MAX_ROWS:
            allowed.append(row._replace(values=values))
        else:
            problems.add(("matrix",), "too many combinations are left", allowed=f"at most {MAX_ROWS:,}", hint=_FEWER)
            break
    _check_lifted(allowed, problems)
    return allowed, excluded


def _sections(matrix: Matrix, values: dict[str, Any]) -> dict[str, Any]:
    """Return the sections as constraints see them: with the combination's values of axes like `model.layers`."""
    return {
        name: dataclasses.replace(section, **of_section(name, values))
        for name, section in (("model", matrix.model), ("train", matrix.train))
    }


def _check_lifted(combinations: Sequence[Row], problems: Problems) -> None:
    """Add a problem for each value of the axis `lift` that is no rule's id, or a rule that cannot be lifted."""
    liftable = [rule.id for rule in (*RULES, *ADDED)] + [rule for rule, why in NODE_RULES.items() if not why]
    fixed = {rule: why for rule, why in NODE_RULES.items() if rule not in liftable} | _LIMITS
    for name, line in {row.values["lift"]: row.line for row in combinations}.items():
        if name in fixed:
            problems.add_at(line, ("matrix", "lift"), "this rule cannot be lifted", found=repr(name), hint=fixed[name])
        elif name and name not in liftable:
            near = difflib.get_close_matches(name, liftable, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "docs/rules.md lists the rules"
            problems.add_at(line, ("matrix", "lift"), "no such rule", found=repr(name), hint=hint)


_LOSS_OPTIONS = ("calculate_per_token_loss", "average_in_collective")
# Values that tables do not show as they are.
_SHOWN: dict[str, Callable[[Any], Any]] = {
    **{f"model.{name}": shown_part for name in MODEL_PARTS},
    "pad_seq_to_mult": lambda value: value or "auto",
}


class Resolver:
    """Turns the values of a combination into a CellConfig; parts that cells share are created once."""

    def __init__(self, matrix: Matrix, largest_cp: int) -> None:
        self.matrix = matrix
        self.largest_cp = largest_cp
        self._layouts: dict[tuple[Any, ...], Layout] = {}
        self._options: dict[tuple[Any, ...], PackingOptions] = {}
        self._bases: dict[tuple[Any, ...], tuple[ModelConfig, TrainConfig, DocumentsConfig, str]] = {}
        self._made_of = {name: digest(stack) for name, stack in matrix.stacks.items()}
        dotted = [name for name in self.matrix.axes.names if "." in name]
        self._dotted = [name for name in dotted if not name.startswith(PREFIX)]
        self._arguments = [name for name in dotted if name.startswith(PREFIX)]
        self._common: dict[str, Any] = {
            "deadline_s": matrix.launch.deadline_s,
            "canaries": matrix.canaries,
            "fingerprints": matrix.fingerprints,
        }

    def config(self, values: dict[str, Any]) -> CellConfig:
        """Return the configuration of a combination; `values`: of every axis."""
        model, train, documents, variant = self.base(values)
        return CellConfig(
            layout=self._layout(values),
            model=model,
            train=train,
            documents=documents,
            options=self._packing_options(values),
            variant=variant,
            made_of=self._made_of.get(values["stack"], ""),
            args=self._given(values),
            timing=self._timing(values),
            **{axis.field: values[axis.name] for axis in _AXIS_FIELDS},
            **self._common,
        )

    def _given(self, values: dict[str, Any]) -> Arguments:
        """Return the arguments of the section, then of the profile, then of axes."""
        profile = values["args"]
        on_axes = {name.removeprefix(PREFIX): values[name] for name in self._arguments if values[name] is not None}
        left_out = {name.removeprefix(PREFIX): None for name in self._arguments if values[name] is None}
        pasted = self.matrix.profiles[profile].layer if profile else {}
        arguments = merged(self.matrix.args, pasted, left_out, on_axes)
        return Arguments(arguments, profile=profile, label=label_of(on_axes, profile))

    def check_models(self, combinations: Iterable[Row], problems: Problems) -> None:
        """Add problems for models and training runs that no layout can run."""
        if not self._dotted:
            return
        names = ("documents", *self._dotted)
        different = {tuple([row.values[name] for name in names]): row.values for row in combinations}
        bases = {(base[0], base[1], base[3]): None for base in map(self.base, different.values())}
        for model, train, variant in bases:
            for _, message in (*model_problems(model), *size_problems(model, train)):
                problems.add(("matrix",), f"{variant}: {message}")

    def base(self, values: dict[str, Any]) -> tuple[ModelConfig, TrainConfig, DocumentsConfig, str]:
        """Return model, train, documents, and the variant: a name of everything that differs from the matrix's
        sections.
        """
        on_axes = {name: values[name] for name in self._dotted}
        mode = values["documents"]
        key = (mode, *on_axes.items())
        if key not in self._bases:
            model = dataclasses.replace(self.matrix.model, **of_section("model", on_axes))
            train = dataclasses.replace(self.matrix.train, **of_section("train", on_axes))
            documents = self.matrix.documents
            parts = [] if mode == documents.mode else [mode]
            if mode in self.matrix.lists:
                documents = self.matrix.lists[mode]
            elif mode in MIXES:
                documents = mix(mode, train.seq_length, self.largest_cp)
            parts += [_named(name, value) for name, value in on_axes.items() if value != attrgetter(name)(self.matrix)]
            self._bases[key] = (model, train, documents, "-".join(parts))
        return self._bases[key]

    def _timing(self, values: dict[str, Any]) -> TimingConfig:
        """Return the timing of a cell. Cells with one document per row are timed only against another stack."""
        timing = self.matrix.timing if values["timed"] and values["trainer"] == HARNESS else NOT_TIMED
        unpacked = timing != NOT_TIMED and not DATA_PATHS[values["packing"]].packs
        return dataclasses.replace(timing, documents=(), unpacked=False, full_rows=False) if unpacked else timing

    def _layout(self, values: dict[str, Any]) -> Layout:
        key = tuple([values[name] for name in LAYOUT])
        if key not in self._layouts:
            self._layouts[key] = Layout(**dict(zip(LAYOUT, key)))
        return self._layouts[key]

    def _packing_options(self, values: dict[str, Any]) -> PackingOptions:
        """Return the packing options of a combination; an unpacked cell keeps only those of the loss."""
        names = OPTIONS if DATA_PATHS[values["packing"]].packs else _LOSS_OPTIONS
        key = (names, *[values[name] for name in names])
        if key not in self._options:
            self._options[key] = PackingOptions(**{name: values[name] for name in names})
        return self._options[key]


def _named(axis: str, value: Any) -> str:
    """Return a part of a variant: `layers8`, `moe4x2`, `nomoe`; the axis has a dotted name."""
    key = axis.partition(".")[2]
    if label := dotted()[axis].setting.label:
        return label.format(_text(value))
    if key in MODEL_PARTS:
        return f"no{key}" if value is None else re.sub(r"[^A-Za-z0-9._-]", "", str(value))
    return pattern_name(value) if key == "pattern" else f"{key}{_text(value)}"


def _text(value: Any) -> str:
    """Return a value as part of a cell's name, which is also a file name."""
    return re.sub(r"[^A-Za-z0-9._]", "", str(value).lower())


def value_of(config: CellConfig, name: str) -> Any:
    """Return the resolved value of a cell's axis; a part of the model is returned as it is, not as text."""
    return attrgetter(name)(config) if name.startswith("model.") else _reader(name)(config)


def axes_of(config: CellConfig, names: Iterable[str]) -> dict[str, Any]:
    """Return the resolved values of a cell's axes, as tables show them."""
    names = tuple(names)
    values = dict(zip(names, _readers(names)(config)))
    for name, shown in _shown(names):
        values[name] = shown(values[name])
    return values


@cache
def _readers(names: tuple[str, ...]) -> Callable[[CellConfig], tuple[Any, ...]]:
    """Return a function that reads several axes at once."""
    return attrgetter(*map(_path, names), "stack")  # the last so that it returns a tuple also for one name


def _path(name: str) -> str:
    """Return the attribute of CellConfig that an axis sets."""
    return "args" if name.startswith(PREFIX) else (axes().get(name) or dotted()[name]).path


@cache
def _reader(name: str) -> Callable[[CellConfig], Any]:
    getter = attrgetter(_path(name))
    for _, shown in _shown((name,)):
        return lambda config: shown(getter(config))
    return getter


@cache
def _shown(names: tuple[str, ...]) -> list[tuple[str, Callable[[Any], Any]]]:
    """Return the axes among these that are not shown as they are."""
    arguments = {name: methodcaller("text", name.removeprefix(PREFIX)) for name in names if name.startswith(PREFIX)}
    return [(name, shown) for name, shown in (_SHOWN | arguments).items() if name in names]


def control_of(config: CellConfig) -> CellConfig:
    """Return the control of a cell: one rank, unpacked, the harness's own data path, with the attention of the cell."""
    model = config.model
    if model.rope_fusion or model.gathered_logits:
        model = dataclasses.replace(model, rope_fusion=False, gathered_logits=False)
    return dataclasses.replace(
        config,
        **_NOT_OF_CONTROL,
        model=model,
        layout=Layout(),
        data_path=UNPACKED.name,
        args=config.args.of_optimizer(),
        options=PackingOptions(calculate_per_token_loss=config.token_mean),
        timing=NOT_TIMED,
        fault=None,
    )


def with_noise_legs(config: CellConfig) -> CellConfig:
    """Return the control with the legs that measure the noise of its dtype, and how training makes it grow."""
    if NOISE in config.canaries or not config.fingerprints or not config.train.steps:
        return config
    return dataclasses.replace(config, canaries=(*config.canaries, NOISE))
