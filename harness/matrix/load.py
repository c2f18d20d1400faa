"""Checks a matrix file and turns its sections into the types of `core`; writes the values of a resolved file.

`load` is pure: the values, their lines and the reader of length files come from `infra`
(harness/inputs/matrix_file.py).
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from harness.core.cell.axes import axes
from harness.core.cell.config import CellConfig, ModelConfig, TrainConfig
from harness.core.cell.layout import Layout
from harness.core.cell.timing import NOT_TIMED, TimingConfig
from harness.core.packing.documents import DocumentsConfig
from harness.core.packing.options import PackingOptions
from harness.core.run.run_plan import BaselineRequest, MayReject, Origin, XFail
from harness.core.setting import keys_of
from harness.core.stack import DEFAULT, ReadyStack, Stack
from harness.core.tolerances import ToleranceOverrides
from harness.matrix.arguments import Layer, Profile, check_profiles, parse_arguments, parse_profiles
from harness.matrix.arguments import as_written as arguments_as_written
from harness.matrix.axes import (
    AXES,
    AXIS_ALIASES,
    DOTTED,
    REMOVED,
    Axes,
    Covering,
    check_tests,
    parse_axes,
    parse_select,
    size_problems,
)
from harness.matrix.constraints import Constraint, ConstraintError, compile_constraint
from harness.matrix.intake.profiles import with_profiles
from harness.matrix.problems import KeyPath, Problems, shown
from harness.matrix.schema.sections import (
    LISTS,
    ChecksSection,
    Launch,
    LengthsReader,
    MatrixFile,
    bounds_as_written,
    overrides_of,
    parse_documents,
    parse_lists,
    parse_model,
    throughput_as_written,
)
from harness.matrix.stacks.recipes import RECIPES, TreeOf, WorkingTree
from harness.matrix.stacks.section import PathOf, layers_of, parse_stacks, recipe_stack
from harness.upstreams.builtin.spec import REFERENCE

Entry = TypeVar("Entry", XFail, MayReject)

CONSTRAINT_NAMES = (*AXES, "world_size", *DOTTED)
_SECTIONS = ("model", "train", "packing_options")  # whose keys a profile may set
_ELSEWHERE = dict.fromkeys((*AXES, *AXIS_ALIASES), "it is an axis: write it under 'matrix:'")


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """A checked matrix file; `expand` makes its combinations."""

    name: str
    file: str
    model: ModelConfig
    train: TrainConfig
    documents: DocumentsConfig  # modes in MIXES: lengths are made in expansion, from the largest cp
    options: PackingOptions
    axes: Axes
    constraints: tuple[Constraint, ...]
    launch: Launch
    tolerances: ToleranceOverrides
    canaries: tuple[str, ...]
    fingerprints: bool
    timing: TimingConfig
    base: str  # the stack that cells of the other stack are timed against, interleaved; empty for none
    xfail: tuple[XFail, ...]
    may_reject: tuple[MayReject, ...]
    values: Mapping[str, Any]  # the file as read
    history: BaselineRequest | None = None  # earlier runs to compare times with
    peak_tflops: Mapping[str, float] = field(default_factory=dict)  # of one GPU by dtype, where given
    covering: Covering | None = None  # None: every cell that constraints and rules allow
    cluster: str = "local"  # a profile's name or path
    stacks: Mapping[str, Stack] = field(default_factory=dict)  # without the default one
    args: Layer = field(default_factory=dict)  # of upstream's trainer, for every cell
    profiles: Mapping[str, Profile] = field(default_factory=dict)  # values of the axis `args`
    lists: Mapping[str, DocumentsConfig] = field(default_factory=dict)  # values of the axis `documents`
    origin: Origin | None = None  # the training run that it was written from
    lines: Mapping[KeyPath, int] = field(default_factory=dict, repr=False)


def load(
    values: Any,
    *,
    file: str,
    lines: Mapping[KeyPath, int],
    read_lengths: LengthsReader,
    path_of: PathOf = str,
    tree_of: TreeOf = lambda: WorkingTree("/", "megatron-lm"),
) -> Matrix:
    """Return the matrix in `values`; InputError with every problem at once.

    `read_lengths` gives the document lengths of a path written in the matrix, or raises InputError; `path_of`
    makes any other path written in it absolute; `tree_of` finds the checkout of the recipe `working-tree`.
    """
    problems = Problems(file, lines, elsewhere=_ELSEWHERE, removed=REMOVED)
    top = _top(values, problems)
    model = parse_model(top.get("model", {}), problems)
    train = problems.validate(TrainConfig, top.get("train", {}), ("train",))
    options = problems.validate(PackingOptions, top.get("packing_options", {}), ("packing_options",))
    launch = problems.validate(Launch, top.get("launch", {}), ("launch",))
    checks = problems.validate(ChecksSection, top.get("checks", {}), ("checks",))
    origin = problems.validate(Origin, top["origin"], ("origin",)) if "origin" in top else None
    documents = parse_documents(top.get("documents", {"mode": "adversarial"}), problems, read_lengths)
    axes = parse_axes(top.get("matrix", {}), problems)
    args, named = parse_arguments(top.get("args", {}), problems), _named(top, axes, problems, read_lengths)
    named["stacks"] = _stacks(top.get("stacks", {}), axes, problems, path_of, tree_of)
    chosen = _chosen(top, axes, problems)
    written = {name: top[name] for name in _SECTIONS if isinstance(top.get(name), Mapping)}
    axes, named["profiles"] = with_profiles(axes, named["profiles"], written, problems)
    if model:
        check_profiles(named["profiles"], _models(model, axes), problems)
    problems.raise_any()
    assert model and train and options and launch and checks and documents  # each None has added a problem
    return Matrix(
        name=top["name"],
        file=file,
        model=model,
        train=_sized(train, model, problems),
        documents=documents,
        options=options,
        axes=axes,
        **chosen,
        launch=launch,
        **_of_checks(checks),
        values=values,
        cluster=top.get("cluster", "local"),
        args=args,
        origin=origin,
        **named,
        lines=lines,
    )


def _models(model: ModelConfig, axes: Axes) -> list[ModelConfig]:
    """Return the matrix's model, and one for each value of an axis of it."""
    keys = [name.removeprefix("model.") for name in axes.names if name.startswith("model.")]
    values: list[dict[str, Any]] = [{key: value} for key in keys for value in _used(f"model.{key}", axes)]
    return [model, *(replace(model, **value) for value in values)]


def _chosen(top: Mapping[str, Any], axes: Axes, problems: Problems) -> dict[str, Any]:
    """Return which combinations run, and which of them may fail or be rejected when they start."""
    constraints = _constraints(top.get("constraints", []), problems)
    xfail = _entries("xfail", XFail, top, problems)
    may_reject = _entries("may_reject", MayReject, top, problems)
    check_tests(axes, len(constraints), len(xfail) + len(may_reject), problems)
    covering = parse_select(top.get("select", "full"), problems)
    return {"constraints": constraints, "xfail": xfail, "may_reject": may_reject, "covering": covering}


def _sized(train: TrainConfig, model: ModelConfig, problems: Problems) -> TrainConfig:
    for key, message in size_problems(model, train):
        problems.add((key,), message)
    problems.raise_any()
    return train


def _of_checks(checks: ChecksSection) -> dict[str, Any]:
    throughput = checks.throughput
    return {
        "tolerances": ToleranceOverrides(numerics=overrides_of(checks.numerics), throughput=throughput.bounds()),
        "canaries": tuple(checks.canaries),
        "fingerprints": checks.fingerprints,
        "timing": throughput.timing(),
        "base": throughput.base(),
        "history": throughput.baseline_request(),
        "peak_tflops": throughput.peak_tflops,
    }


def _top(values: Any, problems: Problems) -> dict[str, Any]:
    """Return the top-level keys; checks those that are not sections."""
    if values is None:
        problems.add((), "the matrix file is empty")
        problems.raise_any()
    top = problems.canonical(values, {}, ()) or {}
    for name in top:
        if name not in MatrixFile.model_fields:
            problems.add_unknown((name,), MatrixFile.model_fields)
    for name, declared in MatrixFile.model_fields.items():
        if declared.is_required() and name not in top:
            problems.add((name,), "is required")
    plain = {name: top[name] for name in ("name", "cluster") if name in top}
    problems.validate(MatrixFile, {"name": "x", "matrix": {}} | plain, ())
    return top


def _stacks(section: Any, axes: Axes, problems: Problems, path_of: PathOf, tree_of: TreeOf) -> dict[str, Stack]:
    """Return the stacks by name: those of the section, which the axis must name, and the recipes that it names
    besides.
    """
    stacks = parse_stacks(section, problems, path_of, tree_of)
    defined = section if isinstance(section, Mapping) else {}
    recipes = [name for name in _used("stack", axes) if name in RECIPES and name not in defined]
    for name in recipes:
        stacks |= recipe_stack(name, problems, path_of, tree_of)
    hint = "define it under 'stacks:', or name a recipe: `harness list stacks` shows them"
    _check_used("stack", "stacks", section, axes, DEFAULT, problems, more=RECIPES, hint=hint)
    return stacks


def _named(top: Mapping[str, Any], axes: Axes, problems: Problems, read_lengths: LengthsReader) -> dict[str, Any]:
    """Return the sections whose entries are values of an axis."""
    lists = parse_lists(top.get("documents", {}), _used("documents", axes), problems, read_lengths)
    return {"profiles": _profiles(top, axes, problems), "lists": lists}


def _profiles(top: Mapping[str, Any], axes: Axes, problems: Problems) -> dict[str, Profile]:
    section = top.get("profiles", {})
    profiles = parse_profiles(section, problems)
    _check_used("args", "profiles", section, axes, "", problems)
    return profiles


def _check_used(
    axis: str,
    key: str,
    section: Any,
    axes: Axes,
    default: str,
    problems: Problems,
    more: Collection[str] = (),
    hint: str = "",
) -> None:
    """Add a problem for a name of the axis that the section lacks, and for one of the section that no row uses.

    `more`: names that need no entry in the section; `hint`: what to do where no name is near.
    """
    names = [name for name in section if isinstance(name, str)] if isinstance(section, Mapping) else []
    used, whole = _used(axis, axes), not problems.within("matrix")  # rows with problems are not among the axes
    what = key.removesuffix("s")
    for name, line in used.items():
        if name != default and name not in names and name not in more:
            near = difflib.get_close_matches(name, [*names, default, *more], n=1)
            advice = f"did you mean {near[0]!r}?" if near else hint or f"define it under '{key}:'"
            allowed = ", ".join([*names, default, *more]) if more else None
            message = f"no such {what}"
            problems.add_at(line, ("matrix", axis), message, found=repr(name), allowed=allowed, hint=advice)
    for name in names:
        if name not in used and whole:
            problems.add((key, name), f"no row of the matrix uses this {what}", hint=f"add it to the axis '{axis}'")


def _used(axis: str, axes: Axes) -> dict[str, int | None]:
    """Return the values of an axis that a row has, each with the line of the first one."""
    used: dict[str, int | None] = {}
    for row in (*(row for rows in axes.dimensions for row in rows), *axes.include):
        if axis in row.values:
            used.setdefault(row.values[axis], row.line)
    return used


def _constraints(section: Any, problems: Problems) -> tuple[Constraint, ...]:
    path: KeyPath = ("constraints",)
    items = [section] if isinstance(section, str) else section
    if not isinstance(items, list):
        problems.add(path, "must be a list of expressions", found=shown(section))
        return ()
    compiled = []
    for number, text in enumerate(items):
        if not isinstance(text, str):
            problems.add((*path, number), "must be an expression", found=shown(text))
            continue
        try:
            compiled.append(compile_constraint(text, CONSTRAINT_NAMES))
        except ConstraintError as error:
            problems.add((*path, number), str(error), found=shown(text))
    return tuple(dict.fromkeys(compiled))


def _entries(key: str, kind: type[Entry], top: Mapping[str, Any], problems: Problems) -> tuple[Entry, ...]:
    section = top.get(key, [])
    if not isinstance(section, list):
        problems.add((key,), "must be a list", found=shown(section))
        return ()
    entries = [
        problems.validate(kind, entry_as_written, (key, number)) for number, entry_as_written in enumerate(section)
    ]
    return tuple(entry for entry in entries if entry)


def resolved(matrix: Matrix) -> dict[str, Any]:
    """Return plain values for matrix.resolved.yaml: the matrix with every default written out.

    They load to the same cells.

    Lengths that came from a file are written out too, so that the resolved file needs no other file.
    """
    written = dict(matrix.values)
    result: dict[str, Any] = {"name": matrix.name}
    result["model"] = {key: value for key, value in dataclasses.asdict(matrix.model).items() if value is not None}
    result["train"] = dataclasses.asdict(matrix.train)
    lists = {name: list(lengths.lengths) for name, lengths in matrix.lists.items()}
    result["documents"] = matrix.documents.section() | ({LISTS: lists} if lists else {})
    options = dataclasses.asdict(matrix.options)
    options["pad_seq_to_mult"] = options["pad_seq_to_mult"] or "auto"
    result["packing_options"] = options
    result["matrix"] = written["matrix"]
    result["constraints"] = [constraint.text for constraint in matrix.constraints]
    result["select"] = matrix.covering.section() if matrix.covering else "full"
    result["cluster"] = matrix.cluster
    result["stacks"] = {name: layers_of(stack) for name, stack in matrix.stacks.items()}
    result |= {"args": arguments_as_written(matrix.args)} if matrix.args else {}
    profiles = {
        name: arguments_as_written({**profile.owned, **profile.layer}) for name, profile in matrix.profiles.items()
    }
    result |= {"profiles": profiles} if profiles else {}
    result |= {"origin": dataclasses.asdict(matrix.origin)} if matrix.origin else {}
    result["launch"] = {key: value for key, value in dataclasses.asdict(matrix.launch).items() if value is not None}
    result["checks"] = {"numerics": bounds_as_written(matrix.tolerances.numerics), "canaries": list(matrix.canaries)}
    result["checks"] |= {} if matrix.fingerprints else {"fingerprints": False}
    result["checks"]["throughput"] = _resolved_throughput(matrix)
    result["xfail"] = [{k: v for k, v in dataclasses.asdict(entry).items() if v} for entry in matrix.xfail]
    result |= {"may_reject": [dataclasses.asdict(entry) for entry in matrix.may_reject]} if matrix.may_reject else {}
    return result


def _resolved_throughput(matrix: Matrix) -> dict[str, Any]:
    bounds = matrix.tolerances.throughput
    result = throughput_as_written(matrix.timing, bounds)
    result |= {"peak_tflops": dict(matrix.peak_tflops)} if matrix.peak_tflops else {}
    if matrix.base:
        result["slower_than"] = {"stack": matrix.base, "bound": bounds["slower_than"]}
    if matrix.history:
        since = {"since": matrix.history.since} if matrix.history.since else {}
        result["history"] = {"runs": matrix.history.runs, "slower": bounds["slower_than_history"], **since}
    return result


_PLAIN = CellConfig(layout=Layout(), data_path=REFERENCE.name)
_OWN_SECTION = (
    "args",
    "documents",
    "timed",
    *keys_of(PackingOptions),
)  # written in their sections, not as axes


def one_cell(
    config: CellConfig, *, name: str, stack: Stack | None = None, tolerances: ToleranceOverrides | None = None
) -> dict[str, Any]:
    """Return the values of a matrix file whose only cell is this one.

    If its documents are a built-in mix, the one for its cp.

    `stack`: definition of the cell's stack, None for the default one. An injected fault is left out.
    """
    bounds = tolerances or ToleranceOverrides()
    written: dict[str, Any] = {
        "name": name,
        "model": {key: value for key, value in asdict(config.model).items() if value is not None},
        "train": asdict(config.train),
        "documents": config.documents.section(),
        "matrix": _axes(config),
    }
    options = asdict(config.options)
    changed = {key: value for key, value in options.items() if value != getattr(_PLAIN.options, key)}
    written |= {"packing_options": changed} if changed else {}
    arguments = {argument.name: argument.words for argument in config.args.given}
    written |= {"args": arguments_as_written(arguments)} if arguments else {}
    written |= {"stacks": {config.stack: layers_of(stack)}} if stack is not None else {}
    written["launch"] = {"deadline_s": config.deadline_s}
    written["checks"] = {"canaries": list(config.canaries)}
    written["checks"] |= {} if config.fingerprints else {"fingerprints": False}
    written["checks"] |= {"numerics": bounds_as_written(bounds.numerics)} if bounds.numerics else {}
    written["checks"] |= (
        {"throughput": throughput_as_written(config.timing, bounds.throughput)} if config.timing != NOT_TIMED else {}
    )
    return written


def pinned(stack: ReadyStack) -> Stack:
    """Return the stack with refs of checkouts replaced by the commits that they resolved to; working trees stay."""
    checkouts = [
        replace(checkout, ref=checkout.ref and stack.commits.get(checkout.package, checkout.ref))
        for checkout in stack.requested.checkouts
    ]
    return replace(stack.requested, checkouts=tuple(checkouts))


def _axes(config: CellConfig) -> dict[str, Any]:
    plain = replace(_PLAIN, layout=replace(_PLAIN.layout, sp=config.layout.tp > 1))
    return {
        name: value
        for name, axis in axes().items()
        if name not in _OWN_SECTION and ((value := axis.of(config)) != axis.of(plain) or axis.setting.always)
    }
