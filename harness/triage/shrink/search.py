"""Delta debugging over the dimensions of a cell: ranks, documents, layers, tokens, steps, options.

Pure: `search` yields cells and receives answers. A round first tries rungs: each rung reduces one dimension more than
the one before, as far as it goes, so that everything that does not matter is removed at once. Later rounds also try
every single reduction, so that the result is minimal: no single reduction of it reproduces the finding. A reduction
never makes anything larger; values that depend on the reduced dimension are reduced with it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, replace
from enum import Enum
from operator import attrgetter
from typing import Any

from harness.core.cell.arguments import Arguments
from harness.core.cell.axes import Axis, axes, dotted, with_value
from harness.core.cell.canary_legs import LEG_NAMES
from harness.core.cell.config import CellConfig
from harness.core.cell.identity import cell_name
from harness.core.cell.layout import Layout
from harness.core.cell.model import ModelConfig
from harness.core.cell.timing import NOT_TIMED
from harness.core.outcomes import Finding, Lane
from harness.core.packing.documents import MIXES, DocumentsConfig, mix
from harness.core.setting import keys_of
from harness.core.text import counted
from harness.features.experts.config import MoeConfig
from harness.features.hybrid.pattern import CUT, EXPERTS, MLP
from harness.matrix.rules.packing import layers_by_pp, stages_by_pp
from harness.matrix.rules.table import rejections
from harness.upstreams.builtin.spec import REFERENCE

SHORTEST_DEADLINE_S = 30.0  # of a cell that is tried


class Kind(str, Enum):
    """What became of a cell that was tried."""

    SAME = "same"  # fails with the same finding
    PASSES = "passes"
    DIFFERS = "differs"  # fails, but with another finding
    UNUSABLE = "unusable"  # rejected, or could not be judged


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The result of a cell that was tried."""

    kind: Kind
    text: str = ""  # as a predicate: "passes", "fails in another way (numerics: document_loss)", "is rejected: ..."


@dataclass(frozen=True, kw_only=True)
class Step:
    """A round that made the cell smaller."""

    round: int  # from 1
    changes: tuple[str, ...]  # "pp 4 -> 3"


@dataclass(frozen=True, kw_only=True)
class Needed:
    """A dimension that cannot be reduced, and what happens if it is."""

    dimension: str
    text: str  # "pp >= 3", "sp", "2 documents"
    without: str  # "with pp 2 it passes"
    judged: bool  # False: no smaller value could be judged


@dataclass(frozen=True, kw_only=True)
class Smallest:
    """The smallest cell found. `config` None: the finding did not reproduce at all."""

    config: CellConfig | None
    steps: tuple[Step, ...]
    needs: tuple[Needed, ...]
    rounds: int
    tried: int  # cells that were run
    minimal: bool  # False: the limit of rounds was reached


Round = tuple[CellConfig, ...]
Answers = Mapping[CellConfig, Answer]


def minimal_cell(config: CellConfig, finding: Finding, took_s: float) -> CellConfig:
    """Return the cell with only the canaries and timing that its finding needs, and a shorter deadline.

    `took_s`: seconds that the cell ran. A hung cell ran to its deadline; smaller cells hang sooner.
    """
    leg = str(finding.where.get("leg", ""))
    needed = leg if leg in LEG_NAMES else finding.check
    canaries = tuple(name for name in config.canaries if needed.startswith(name))
    timing = replace(config.timing, turns="", first=False) if finding.lane is Lane.THROUGHPUT else NOT_TIMED
    wanted = 4 * took_s if took_s < config.deadline_s else config.deadline_s / 2
    deadline = min(config.deadline_s, max(wanted, SHORTEST_DEADLINE_S))
    return replace(config, canaries=canaries, timing=timing, deadline_s=deadline)


def search(start: CellConfig, most_rounds: int) -> Generator[Round, Answers, Smallest]:
    """Yield the cells of a round, receive an answer for each, and return the smallest cell. Deterministic."""
    known: dict[CellConfig, Answer] = {}
    steps: list[Step] = []
    starts = [config for config in map(normalized, (start, listed(start))) if config is not None]
    current = starts[0]
    rounds, tried = 0, 0
    while rounds < most_rounds:
        requested = _round(current, known, () if rounds else starts)
        if not requested:
            break
        rounds += 1
        tried += len(requested)
        answers = yield requested
        known.update(answers)
        same = [config for config in requested if known[config].kind is Kind.SAME]
        if not same and rounds == 1:
            return Smallest(config=None, steps=(), needs=(), rounds=1, tried=tried, minimal=False)
        smallest = min(same, key=size_of, default=current)
        if smallest != current:
            steps.append(Step(round=rounds, changes=changes(current, smallest)))
            current = smallest
    minimal = not _round(current, known)
    needs = tuple(_needs(current, known)) if minimal else ()
    return Smallest(config=current, steps=tuple(steps), needs=needs, rounds=rounds, tried=tried, minimal=minimal)


def _round(current: CellConfig, known: dict[CellConfig, Answer], starts: Sequence[CellConfig] = ()) -> Round:
    """Return the cells to try in a round. Single reductions wait for later rounds, when the cell is cheaper to run."""
    wanted = [*starts, *_rungs(current, known), *(() if starts else _singles(current))]
    return tuple(config for config in dict.fromkeys(wanted) if _open(config, known))


def _open(config: CellConfig, known: dict[CellConfig, Answer]) -> bool:
    """Return whether a cell must be run to know its answer; one that a rule rejects is answered here, in `known`."""
    if config in known:
        return False
    rejecting = rejections(config)
    if rejecting:
        known[config] = Answer(kind=Kind.UNUSABLE, text=f"is rejected: {rejecting[0].reason}")
    return not rejecting


def _singles(current: CellConfig) -> Iterator[CellConfig]:
    yield from (reduction.config for reduction in reductions(current))


def _rungs(current: CellConfig, known: dict[CellConfig, Answer]) -> Iterator[CellConfig]:
    """Yield rungs, each reducing one more dimension as far as it goes, without reductions that lose the finding."""
    lost = {
        (reduction.dimension.name, reduction.to)
        for reduction in reductions(current)
        if reduction.config in known and known[reduction.config].kind in (Kind.PASSES, Kind.DIFFERS)
    }
    config = current
    for dimension in DIMENSIONS:
        chosen = next(
            (
                reduction
                for reduction in _usable(config, dimension, known)
                if (dimension.name, reduction.to) not in lost
            ),
            None,
        )
        if chosen is not None:
            config = chosen.config
            yield config


def _usable(config: CellConfig, dimension: Dimension, known: dict[CellConfig, Answer]) -> Iterator[Reduction]:
    for reduction in reductions(config, (dimension,)):
        if _open(reduction.config, known) or known[reduction.config].kind is Kind.SAME:
            yield reduction


def _needs(config: CellConfig, known: Answers) -> Iterator[Needed]:
    """Yield dimensions that cannot be reduced, ranks first, with the next smaller cell's answer, judged if any."""
    for dimension in reversed(DIMENSIONS):
        answered = [
            (reduction, known[reduction.config])
            for reduction in reductions(config, (dimension,))
            if reduction.config in known
        ]
        judged = [pair for pair in answered if pair[1].kind is not Kind.UNUSABLE]
        if not answered or dimension.name == "lengths":
            continue
        reduction, answer = max(judged or answered, key=lambda pair: size_of(pair[0].config))
        yield _needed(dimension, config, reduction, answer)


def _needed(dimension: Dimension, config: CellConfig, reduction: Reduction, answer: Answer) -> Needed:
    if dimension.count is None:
        now, then = shown(dimension.value(config)), shown(reduction.to)
        text, less = f"{dimension.name} {now}", f"{dimension.name} {then}"
    elif dimension.name == "documents":
        text, less = f"documents {dimension.value(config)}", f"{reduction.to}"
    else:
        text, less = f"{dimension.name} >= {dimension.count(config)}", f"{dimension.name} {reduction.to}"
    return Needed(
        dimension=dimension.name,
        text=text,
        without=f"with {less} it {answer.text}",
        judged=answer.kind is not Kind.UNUSABLE,
    )


FEW_DOCUMENTS = 8  # up to this many documents are left out one at a time; of more, an eighth at a time
_SHORTEST_ROW = 4  # as train.seq_length allows


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """A part of a cell that can be reduced."""

    name: str
    value: Callable[[CellConfig], Any]
    smaller: Callable[[CellConfig], Iterable[CellConfig]]  # the smallest first, not yet normalized
    count: Callable[[CellConfig], int] | None = None  # None: it is on or off


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """A cell that is smaller in one dimension."""

    dimension: Dimension
    to: Any  # the dimension's value in `config`
    config: CellConfig


def normalized(config: CellConfig) -> CellConfig | None:
    """Return the cell with dependent values adjusted; None if that is impossible (fewer layers than stages)."""
    layout = config.layout
    layout = replace(layout, vpp=1) if layout.pp == 1 else layout
    layout = replace(layout, sp=False) if layout.tp == 1 else layout
    layout = replace(layout, ep=math.gcd(layout.ep, layout.dp * layout.cp) if config.model.moe else 1)
    if not config.model.moe or layout.tp * layout.cp * layout.dp % (layout.expert_tp * layout.ep):
        layout = replace(layout, etp=0)
    chunks = layout.pp * layout.vpp
    smaller, layers = replace(config, layout=layout), config.model.layers
    if stages_by_pp(smaller) or layers_by_pp(smaller):
        layout = layout.split_evenly
    layers = layers if layout.splits_unevenly else layers // chunks * chunks
    if not layers or (config.model.pattern and layers != config.model.layers):
        return None
    documents = config.documents
    if documents.mode in MIXES:
        documents = mix(documents.mode, config.train.seq_length, layout.cp)
    return replace(
        config,
        layout=layout,
        model=with_moe(replace(config.model, layers=layers)),
        documents=documents,
        args=Arguments(config.args.given),
        variant="",
    )


def reductions(config: CellConfig, dimensions: Iterable[Dimension] | None = None) -> Iterator[Reduction]:
    """Yield every cell that is smaller in one dimension: dimension by dimension, the smallest first."""
    for dimension in DIMENSIONS if dimensions is None else dimensions:
        for candidate in dimension.smaller(config):
            smaller = normalized(candidate)
            if smaller is not None and smaller != config:
                yield Reduction(dimension=dimension, to=dimension.value(smaller), config=smaller)


def changes(before: CellConfig, after: CellConfig) -> tuple[str, ...]:
    """Return what differs between two cells, in words: "pp 4 -> 3", "layers 4 -> 3"."""
    pairs = {dimension.name: (dimension.value(before), dimension.value(after)) for dimension in DIMENSIONS}
    del pairs["lengths"]  # shown with the documents
    return tuple(f"{name} {shown(old)} -> {shown(new)}" for name, (old, new) in pairs.items() if old != new)


def shown(value: Any) -> str:
    """Return the value of a dimension in words."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "auto" if value is None else str(value)


def size_of(config: CellConfig) -> tuple[float, ...]:
    """Return the sort key of a cell's size, the most important part first."""
    layout, train, model = config.layout, config.train, config.model
    documents = config.documents_of(0)
    extras = sum(
        dimension.count is None and dimension.value(config) != dimension.value(_PLAIN) for dimension in DIMENSIONS
    )
    return (
        layout.world_size,
        layout.vpp * layout.ep * config.micro_batch_size,
        extras,
        model.layers,
        len(documents),
        sum(document.original_length for document in documents),
        train.seq_length,
        train.steps,
    )


def _fewer(value: int, least: int = 1) -> list[int]:
    """Return `least`, half of `value`, and one less than `value`."""
    return sorted({number for number in (least, value // 2, value - 1) if least <= number < value})


def _divisors(value: int) -> list[int]:
    return [number for number in range(1, value) if value % number == 0]


def _size(name: str, values: Callable[[int], list[int]] = _fewer) -> Dimension:
    """Return the dimension of a parallel size."""
    read = attrgetter(f"layout.{name}")
    return Dimension(
        name=name,
        value=read,
        smaller=lambda config: [
            replace(config, layout=replace(config.layout, **{name: number}))  # type: ignore[arg-type]
            for number in values(read(config))
        ],
        count=read,
    )


def _train(config: CellConfig, **values: Any) -> CellConfig:
    return replace(config, train=replace(config.train, **values))


def _model(config: CellConfig, **values: Any) -> CellConfig:
    return replace(config, model=replace(config.model, **values))


def _layers(config: CellConfig) -> list[CellConfig]:
    chunks, pattern = config.layout.pp * config.layout.vpp, config.model.pattern
    if pattern:
        counts = [] if CUT in pattern else [chunks * number for number in _fewer(len(pattern) // chunks)]
        return [replace(config, model=first_layers(config.model, count)) for count in counts]
    moe = config.model.moe
    counts = [chunks * number for number in _fewer(config.model.layers // chunks)]
    return [_model(config, layers=count, moe=moe and moe.of_first_layers(count)) for count in counts]


def _without(part: str) -> Dimension:
    """Return the dimension of a part of the model: experts, multi-token prediction, latent attention."""
    read = attrgetter(f"model.{part}")
    return Dimension(
        name=part,
        value=lambda config: str(read(config) or "none"),
        smaller=lambda config: [] if read(config) is None else [_model(config, **{part: None}), *plainer(config, part)],
    )


def _has_plain(axis: Axis) -> bool:
    return axis.setting.shrink and axis.default is not MISSING


def _to_default(axis: Axis) -> Dimension:
    """Return the dimension of an axis, or of a switch of the model, that is reduced to its default."""
    return Dimension(
        name=axis.path.rpartition(".")[2],
        value=axis.of,
        smaller=lambda config: [with_value(config, axis, axis.default)],
    )


def _lengths(config: CellConfig) -> tuple[int, ...]:
    """Return lengths of the documents of step 0, before truncation."""
    return tuple(document.original_length for document in config.documents_of(0))


def _documents_text(config: CellConfig) -> str:
    """Return e.g. "2 (19, 64)", "8 (adversarial)"."""
    lengths = _lengths(config)
    how = ", ".join(map(str, lengths)) if _is_listed(config) else config.documents.mode
    turns = config.documents.turns
    return f"{len(lengths)} ({how}{f', {turns} turns' if turns > 1 else ''})"


def _talk(config: CellConfig) -> dict[str, Any]:
    """Return what a list of lengths keeps of the documents: their turns and images."""
    return {name: getattr(config.documents, name) for name in ("turns", "delimited", "images")}


def _with_lengths(config: CellConfig, lengths: Iterable[int]) -> CellConfig:
    documents = DocumentsConfig(mode="file", lengths=tuple(lengths), **_talk(config))
    return _train(replace(config, documents=documents), global_batch=len(documents.lengths))


def listed(config: CellConfig) -> CellConfig:
    """Return the cell with the documents of step 0 as a list of lengths, without masks and copies."""
    return _with_lengths(config, _lengths(config))


def _is_listed(config: CellConfig) -> bool:
    """Return whether every step has exactly the documents that the configuration lists."""
    return replace(config.documents, name="") == DocumentsConfig(mode="file", lengths=_lengths(config), **_talk(config))


def _documents(config: CellConfig) -> Iterator[CellConfig]:
    """Yield quarters, halves, all but a few. Documents of a mix or distribution first become a list of lengths."""
    lengths = _lengths(config)
    if config.documents.turns > 1:
        as_list = listed(config)
        yield replace(as_list, documents=replace(as_list.documents, turns=1, delimited=False))
    if config.documents.images:
        as_list = listed(config)
        yield replace(as_list, documents=replace(as_list.documents, images=0))
    if not _is_listed(config):
        yield listed(config)
        if config.documents.mode in MIXES:
            yield from (_train(config, global_batch=count) for count in _fewer(len(lengths)))
        return
    count = len(lengths)
    for parts in (4, 2):
        edges = [count * part // parts for part in range(parts + 1)] if count >= parts else []
        yield from (_with_lengths(config, lengths[a:b]) for a, b in itertools.pairwise(edges))
    few = max(count // FEW_DOCUMENTS, 1)
    if count > 2:  # with two documents, leaving one out gives the halves again
        yield from (_with_lengths(config, lengths[:at] + lengths[at + few :]) for at in range(0, count, few))


def _shorter_documents(config: CellConfig) -> Iterator[CellConfig]:
    if not _is_listed(config):
        return
    lengths = _lengths(config)
    shorter = [tuple(1 for _ in lengths), tuple(max(length // 2, 1) for length in lengths)]
    if 1 < len(lengths) <= FEW_DOCUMENTS // 2:
        halved = [max(length // 2, 1) for length in lengths]
        shorter += [(*lengths[:at], halved[at], *lengths[at + 1 :]) for at in range(len(lengths))]
    yield from (_with_lengths(config, shortened) for shortened in dict.fromkeys(shorter) if shortened != lengths)


def _shorter_rows(config: CellConfig) -> Iterator[CellConfig]:
    """Yield rows and documents a quarter or half as long; documents that fill or overflow a row do so by as much."""
    row = config.train.seq_length
    for part in (4, 2):
        shorter = row // part
        if row % part or shorter < _SHORTEST_ROW:
            continue
        smaller = _train(config, seq_length=shorter)
        if _is_listed(config):
            lengths = [
                length - (row - shorter) if length >= row else max(-(-length // part), 1) for length in _lengths(config)
            ]
            smaller = _with_lengths(smaller, lengths)
        yield smaller


def _fewer_arguments(config: CellConfig) -> Iterator[CellConfig]:
    """Yield the cell without any argument, then without each one."""
    given = config.args.given
    if given:
        yield replace(config, args=Arguments())
    for left_out in given if len(given) > 1 else ():
        yield replace(config, args=Arguments(tuple(argument for argument in given if argument != left_out)))


# Dimensions that seldom matter come first: once a rung reduces one that matters, all later rungs fail (search.py).
DIMENSIONS: tuple[Dimension, ...] = (
    Dimension(
        name="steps",
        value=attrgetter("train.steps"),
        smaller=lambda config: [_train(config, steps=number) for number in _fewer(config.train.steps)],
        count=attrgetter("train.steps"),
    ),
    *(
        _to_default(axis)
        for axis in axes().values()
        if axis.field and axis.name != "micro_batch_size" and _has_plain(axis)
    ),
    *(_to_default(axis) for name, axis in axes().items() if axis.path.startswith("options.")),
    *(_to_default(axis) for axis in dotted().values() if axis.type is bool and _has_plain(axis)),
    Dimension(name="pattern", value=attrgetter("model.pattern"), smaller=lambda config: [_model(config, pattern="")]),
    *(_without(part) for part in ("peft", "mtp", "mla", "moe")),
    Dimension(
        name="args", value=attrgetter("args"), smaller=_fewer_arguments, count=lambda config: len(config.args.given)
    ),
    Dimension(
        name="micro_batch_size",
        value=attrgetter("micro_batch_size"),
        smaller=lambda config: [replace(config, micro_batch_size=number) for number in _fewer(config.micro_batch_size)],
        count=attrgetter("micro_batch_size"),
    ),
    Dimension(
        name="stages",
        value=lambda config: "uneven" if config.layout.splits_unevenly else "even",
        smaller=lambda config: [replace(config, layout=config.layout.split_evenly)],
    ),
    Dimension(
        name="pp_before_dp",
        value=lambda config: config.layout.pp_before_dp,
        smaller=lambda config: [replace(config, layout=replace(config.layout, pp_before_dp=False))],
    ),
    _size("ep"),
    _size("dp"),
    _size("vpp"),
    _size("cp"),
    Dimension(name="layers", value=attrgetter("model.layers"), smaller=_layers, count=attrgetter("model.layers")),
    Dimension(name="documents", value=_documents_text, smaller=_documents, count=attrgetter("train.global_batch")),
    Dimension(
        name="seq_length",
        value=attrgetter("train.seq_length"),
        smaller=_shorter_rows,
        count=attrgetter("train.seq_length"),
    ),
    Dimension(
        name="lengths",
        value=_documents_text,
        smaller=_shorter_documents,
        count=lambda config: sum(_lengths(config)),
    ),
    Dimension(
        name="sp",
        value=attrgetter("layout.sp"),
        smaller=lambda config: [replace(config, layout=replace(config.layout, sp=False))],
    ),
    _size("pp"),
    _size("tp", _divisors),
)
_PLAIN = CellConfig(layout=Layout(), data_path=REFERENCE.name, documents=DocumentsConfig(mode="file", lengths=(1,)))


def with_moe(model: ModelConfig) -> ModelConfig:
    """Return the model with feed-forward blocks for the experts of its pattern, if it has none."""
    return model if model.moe else replace(model, pattern=model.pattern.replace(EXPERTS, MLP))


def first_layers(model: ModelConfig, count: int) -> ModelConfig:
    """Return the model with the first `count` layers of its pattern, which has no cuts."""
    pattern = model.pattern[:count]
    return replace(model, pattern=pattern, layers=count, moe=model.moe if EXPERTS in pattern else None)


def plainer(config: CellConfig, part: str) -> list[CellConfig]:
    """Return cells with simpler experts, if `part` of the model is `moe`: each setting of them at its default."""
    moe = config.model.moe
    if part != "moe" or moe is None:
        return []
    sizes = ("experts", "topk", "ffn", "aux_loss_coeff")
    plain = [{name: key.default} for name, key in keys_of(MoeConfig).items() if name not in sizes]
    return [replace(config, model=replace(config.model, moe=replace(moe, **change))) for change in plain]


def smallest_text(smallest: Smallest, matrix: str) -> str:
    """Return text for the terminal. `matrix`: path of smallest.yaml."""
    if smallest.config is None:
        alone = "the finding did not reproduce in the same cell alone"
        return f"{alone}: it may be flaky, or depend on cells that ran alongside it"
    lines = [f"round {step.round}: {', '.join(step.changes)}" for step in smallest.steps]
    lines += [f"smallest: {described(smallest.config)}", *needs_lines(smallest)]
    lines += [f"{counted(smallest.tried, 'cell')} tried in {counted(smallest.rounds, 'round')}"]
    fault = smallest.config.fault
    lines += [f"reproduce: harness run {matrix}{f' --fault {fault}' if fault else ''}"]
    return "\n".join(lines)


def described(config: CellConfig) -> str:
    """Return e.g. "tp2-pp3-cp1-sft: 6 ranks, 3 layers, 1 document (lengths 5), rows of 64, 1 step"."""
    documents = config.documents_of(0)
    lengths = ", ".join(str(document.original_length) for document in documents)
    parts = [counted(config.layout.world_size, "rank"), counted(config.model.layers, "layer")]
    parts += [f"{counted(len(documents), 'document')} (lengths {lengths})", f"rows of {config.train.seq_length}"]
    return f"{cell_name(config)}: {', '.join([*parts, counted(config.train.steps, 'step')])}"


def needs_lines(smallest: Smallest) -> list[str]:
    """Return what the finding needs: one line for all judged dimensions, then one for each other, with why."""
    if not smallest.minimal:
        return ["it may not be the smallest: the limit of rounds was reached"]
    judged = [need for need in smallest.needs if need.judged]
    lines = [f"needs {' and '.join(need.text for need in judged)}: {'; '.join(need.without for need in judged)}"]
    return (lines if judged else []) + [f"{need.text}: {need.without}" for need in smallest.needs if not need.judged]


def head_lines(smallest: Smallest, cell: str, finding: Finding) -> list[str]:
    """Return comments at the top of smallest.yaml."""
    lines = [f"The smallest cell found that fails as {cell} did:"]
    lines += [f"{finding.lane.value}, {finding.check}: {' '.join(finding.message.split())}"]
    lines += needs_lines(smallest)
    if smallest.config is not None and smallest.config.fault:
        lines.append(f"The fault {smallest.config.fault} was injected: without --fault, this file passes.")
    return lines
