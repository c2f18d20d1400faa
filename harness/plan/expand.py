"""From a matrix to its cells: resolve every combination, apply constraints and rules, find the reference cells."""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from harness.plan.axes import DOTTED, Row
from harness.plan.constraints import ConstraintError
from harness.plan.matrix import Matrix, model_problems
from harness.plan.problems import Problems
from harness.plan.rules.rule import Rule
from harness.plan.rules.table import RULES, rejections, world_size_rule
from harness.words.cell import CellConfig, ModelConfig, TrainConfig, cell_id
from harness.words.documents import DocumentsConfig, adversarial_mix
from harness.words.layout import Layout
from harness.words.packing_options import PackingOptions
from harness.words.run_plan import Expansion, PlannedCell, RejectedCell, XFail

_LAYOUT = ("tp", "pp", "cp", "dp", "ep", "vpp", "sp")
_OPTIONS = tuple(item.name for item in dataclasses.fields(PackingOptions))
_LOSS_OPTIONS = ("calculate_per_token_loss", "average_in_collective")
_DEFAULTS: dict[str, Any] = {"tp": 1, "pp": 1, "cp": 1, "dp": 1, "ep": 1, "vpp": 1, "sp": None}
_DEFAULTS |= {"micro_batch_size": 1, "dtype": "fp32", "attention": "auto"}
_ALWAYS = ("tp", "pp", "cp", "packing")  # axes that every table shows


def expand(matrix: Matrix) -> Expansion:
    """Cells, rejected cells and counts of excluded combinations; InputError when nothing is left to run."""
    problems = Problems(matrix.file, matrix.lines)
    excluded: Counter[str] = Counter()
    rows = list(_allowed_rows(matrix, excluded, problems))
    problems.raise_any()
    resolver = _Resolver(matrix, largest_cp=max((row.values["cp"] for row in rows), default=1))
    resolver.check_models(rows, problems)
    problems.raise_any()
    rules = (*RULES, world_size_rule(matrix.launch.max_ranks))
    cells, rejected = _judge_rows(rows, resolver, rules, _shown_axes(matrix))
    _check_not_empty(matrix, cells, rejected, excluded, problems)
    cells = _with_references(cells)
    cells = _with_xfail(matrix, cells, rejected, problems)
    problems.raise_any()
    return Expansion(cells=tuple(cells), rejected=tuple(rejected), excluded=dict(excluded))


def _allowed_rows(matrix: Matrix, excluded: Counter[str], problems: Problems) -> Iterable[Row]:
    """Combinations with every axis filled in, less those that a constraint drops."""
    base = {**_DEFAULTS, **{name: getattr(matrix.options, name) for name in _OPTIONS}}
    sections = {"model": dataclasses.asdict(matrix.model), "train": dataclasses.asdict(matrix.train)}
    dotted = sorted(name for name in DOTTED if any(name in constraint.text for constraint in matrix.constraints))
    for combination in matrix.axes.combinations():
        values = {**base, **combination.values}
        if "packing" not in values:
            problems.add(("matrix",), "a combination has no packing", hint="add the axis 'packing'")
            return
        if values["sp"] is None:
            values["sp"] = values["tp"] > 1
        names = values
        if matrix.constraints:
            world_size = values["tp"] * values["pp"] * values["cp"] * values["dp"]
            names = {**values, "world_size": world_size}
            if dotted:
                names |= {name: _Attributes(sections[name], name, values) for name in sections}
        try:
            broken = next((item for item in matrix.constraints if not item.holds(names)), None)
        except ConstraintError as error:
            problems.add(("constraints",), str(error))
            return
        if broken is None:
            yield Row(values, combination.line)
        else:
            excluded[broken.text] += 1


class _Attributes:
    """`model.layers` and `train.seq_length` in a constraint: the section's value, or the combination's own."""

    def __init__(self, section: dict[str, Any], name: str, values: dict[str, Any]) -> None:
        self.__dict__.update(section)
        self.__dict__.update({key: values[f"{name}.{key}"] for key in section if f"{name}.{key}" in values})


@dataclass
class _Resolver:
    """Turns the values of a combination into a CellConfig; shared parts are made once."""

    matrix: Matrix
    largest_cp: int

    def __post_init__(self) -> None:
        self._layouts: dict[tuple[Any, ...], Layout] = {}
        self._options: dict[tuple[Any, ...], PackingOptions] = {}
        self._bases: dict[tuple[Any, ...], tuple[ModelConfig, TrainConfig, DocumentsConfig, str]] = {}
        self._dotted = [name for name in self.matrix.axes.names if "." in name]

    def config(self, values: dict[str, Any]) -> CellConfig:
        model, train, documents, variant = self.base(values)
        return CellConfig(
            layout=self._layout(values),
            data_path=values["packing"],
            micro_batch_size=values["micro_batch_size"],
            dtype=values["dtype"],
            attention=values["attention"],
            model=model,
            train=train,
            documents=documents,
            options=self._packing_options(values),
            variant=variant,
            deadline_s=self.matrix.launch.deadline_s,
        )

    def check_models(self, rows: list[Row], problems: Problems) -> None:
        """Models that model axes make impossible in every layout."""
        if not any(name.startswith("model.") for name in self._dotted):
            return
        for model, variant in {(base[0], base[3]): None for base in (self.base(row.values) for row in rows)}:
            for _, message in model_problems(model):
                problems.add(("matrix",), f"{variant}: {message}")

    def base(self, values: dict[str, Any]) -> tuple[ModelConfig, TrainConfig, DocumentsConfig, str]:
        """Model, train, documents and their readable name, for the values of model and train axes."""
        own = {name: values[name] for name in self._dotted if name in values}
        key = tuple(own.items())
        if key not in self._bases:
            model = dataclasses.replace(self.matrix.model, **_of_section("model", own))
            train = dataclasses.replace(self.matrix.train, **_of_section("train", own))
            documents = self.matrix.documents
            if documents.mode == "adversarial":
                documents = adversarial_mix(train.seq_length, self.largest_cp)
            variant = "-".join(f"{name.partition('.')[2]}{_text(value)}" for name, value in own.items())
            self._bases[key] = (model, train, documents, variant)
        return self._bases[key]

    def _layout(self, values: dict[str, Any]) -> Layout:
        key = tuple([values[name] for name in _LAYOUT])
        if key not in self._layouts:
            self._layouts[key] = Layout(**dict(zip(_LAYOUT, key)))
        return self._layouts[key]

    def _packing_options(self, values: dict[str, Any]) -> PackingOptions:
        """Options of the combination; an unpacked cell keeps only those of the loss."""
        names = _LOSS_OPTIONS if values["packing"] == "unpacked" else _OPTIONS
        key = (names, *[values[name] for name in names])
        if key not in self._options:
            self._options[key] = PackingOptions(**{name: values[name] for name in names})
        return self._options[key]


def _of_section(section: str, own: dict[str, Any]) -> dict[str, Any]:
    return {name.partition(".")[2]: value for name, value in own.items() if name.startswith(f"{section}.")}


def _text(value: Any) -> str:
    """A value as part of a cell's name, which is also a file name."""
    return re.sub(r"[^A-Za-z0-9._]", "", str(value).lower())


def _shown_axes(matrix: Matrix) -> list[str]:
    return [*_ALWAYS, *(name for name in matrix.axes.names if name not in _ALWAYS)]


def _judge_rows(
    rows: list[Row], resolver: _Resolver, rules: tuple[Rule, ...], shown: list[str]
) -> tuple[list[PlannedCell], list[RejectedCell]]:
    """Cells and rejected cells, in matrix order; combinations that resolve to the same cell are merged."""
    cells: list[PlannedCell] = []
    rejected: list[RejectedCell] = []
    seen: set[str] = set()
    for row in rows:
        config = resolver.config(row.values)
        name = cell_id(config)
        if name in seen:
            continue
        seen.add(name)
        axes = _axes(config, row.values, shown)
        if reasons := rejections(config, rules):
            rejected.append(RejectedCell(id=name, axes=axes, rejections=reasons, line=row.line))
        else:
            cells.append(
                PlannedCell(id=name, axes=axes, config=config, group=_group(config), reference=None, line=row.line)
            )
    return cells, rejected


def _axes(config: CellConfig, values: dict[str, Any], shown: list[str]) -> dict[str, Any]:
    """Resolved values of the axes that tables show. A model or train axis that a row leaves out has the section's."""
    axes = {}
    for name in shown:
        section, _, key = name.rpartition(".")
        value = values.get(name) if not section else getattr(getattr(config, section), key)
        axes[name] = getattr(config.options, name) if name in _OPTIONS else value
    if "pad_seq_to_mult" in axes and axes["pad_seq_to_mult"] is None:
        axes["pad_seq_to_mult"] = "auto"
    return axes


def _group(config: CellConfig) -> str:
    """Within one matrix, cells differ in model, train and documents only by their variant."""
    return f"{config.dtype}-{config.variant}" if config.variant else config.dtype


def reference_config(config: CellConfig, attention: str) -> CellConfig:
    """The control of a cell's parity group: one rank, unpacked, the harness's own data path."""
    return dataclasses.replace(
        config,
        layout=Layout(),
        data_path="unpacked",
        micro_batch_size=1,
        attention=attention,
        options=PackingOptions(),
        fault=None,
    )


def _with_references(cells: list[PlannedCell]) -> list[PlannedCell]:
    """The cells, each with its group's reference; a reference that the matrix lacks is added before its group."""
    groups: dict[str, list[PlannedCell]] = {}
    for cell in cells:
        groups.setdefault(cell.group, []).append(cell)
    result: list[PlannedCell] = []
    for group, members in groups.items():
        # "auto" where any member uses it: the control runs the attention that most of its group runs.
        attention = min(cell.config.attention for cell in members)
        config = reference_config(members[0].config, attention)
        reference = cell_id(config)
        if all(cell.id != reference for cell in members):
            axes = {name: _reference_axis(name, value, config) for name, value in members[0].axes.items()}
            result.append(
                PlannedCell(id=reference, axes=axes, config=config, group=group, reference=None, role="reference")
            )
        result += [cell if cell.id == reference else dataclasses.replace(cell, reference=reference) for cell in members]
    return result


def _reference_axis(name: str, value: Any, config: CellConfig) -> Any:
    if name in _LAYOUT:
        return getattr(config.layout, name)
    if name == "pad_seq_to_mult":
        return "auto"
    if name in _OPTIONS:
        return getattr(config.options, name)
    return {"packing": "unpacked", "micro_batch_size": 1, "attention": config.attention}.get(name, value)


def _with_xfail(
    matrix: Matrix, cells: list[PlannedCell], rejected: list[RejectedCell], problems: Problems
) -> list[PlannedCell]:
    """The cells with their known failure, the first entry that matches; an entry that matches none is a problem."""
    patterns = [(entry, re.compile(fnmatch.translate(entry.pattern))) for entry in matrix.xfail]
    if not patterns:
        return cells
    used: set[XFail] = set()
    result = []
    for cell in cells:
        matching = [entry for entry, pattern in patterns if pattern.match(name_of(cell.id))]
        used.update(matching)
        result.append(dataclasses.replace(cell, xfail=matching[0]) if matching else cell)
    for number, (entry, pattern) in enumerate(patterns):
        if entry not in used:
            only_rejected = any(pattern.match(name_of(cell.id)) for cell in rejected)
            hint = "it matches rejected cells only" if only_rejected else "`harness plan` lists the names of the cells"
            problems.add(("xfail", number, "pattern"), "matches no cell", found=repr(entry.pattern), hint=hint)
    return result


def name_of(cell: str) -> str:
    """A cell id without its hash."""
    return cell.rpartition("-")[0]


def _check_not_empty(
    matrix: Matrix,
    cells: list[PlannedCell],
    rejected: list[RejectedCell],
    excluded: Counter[str],
    problems: Problems,
) -> None:
    if cells:
        return
    if rejected:
        counts = Counter(rejection.rule for cell in rejected for rejection in cell.rejections)
        first = rejected[0].rejections[0]
        listed = ", ".join(f"{rule} ({count})" for rule, count in counts.most_common())
        message = f"nothing left to run: rules reject all {len(rejected)} combinations: {listed}"
        problems.add(("matrix",), message, hint=f"first: {rejected[0].id}: {first.reason}")
    elif excluded:
        listed = ", ".join(f"{text!r} ({count})" for text, count in excluded.items())
        problems.add(("constraints",), f"nothing left to run: constraints drop every combination: {listed}")
    else:
        problems.add(("matrix",), "the matrix has no combination", hint="give at least one axis a value")
    problems.raise_any()
