"""Where packed params differ from the truth: shared by the metadata checks and the report."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from harness.core.packing.arithmetic import MetadataStyle, PackedParams
from harness.core.packing.fields import LONGEST, OFFSETS, PADDED
from harness.core.run.records import SeenParams
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.truth import ParamsSeen
from harness.judge.locations import RankLocation

_VALUE_FIELDS = (*OFFSETS, *PADDED, *LONGEST)


@dataclass(frozen=True, kw_only=True)
class FieldProblem:
    """One field with a wrong value or form."""

    field: str
    measured: Any
    expected: Any
    tensor: str = ""  # of form problems: the cu_seqlens field


def value_problems(params: SeenParams, truth: PackedParams, style: MetadataStyle) -> list[FieldProblem]:
    """Return fields whose value differs from the truth. A garbage max_seqlen is not None, so values are compared.

    Padded offsets that the data path need not supply may be given if they equal the plain ones: attention then reads
    the same values. Copies of the last offset may be fewer or more where `last_repeats` says so.
    """
    problems = []
    repeats = style.last_repeats and _evenly_long(params)
    for name in _VALUE_FIELDS:
        measured, expected = getattr(params, name), _plain(getattr(truth, name))
        form = params.forms.get(name)
        if measured == expected or (form is not None and form.device == "meta"):
            continue  # a tensor on the meta device has no values: a form problem
        if repeats and measured and expected and _without_copies(measured) == _without_copies(expected):
            continue
        if expected is None:
            expected = _plain(getattr(truth, name.removesuffix("_padded")))
            if measured == expected:
                continue
        problems.append(FieldProblem(field=name, measured=measured, expected=expected))
    return problems


def _evenly_long(params: SeenParams) -> bool:
    """Return whether real and padded offsets have as many entries, as kernels require."""
    return len({len(offsets) for name in OFFSETS + PADDED if (offsets := getattr(params, name)) is not None}) <= 1


def _without_copies(value: Any) -> Any:
    """Return offsets without further copies of the last one; other values as they are."""
    return value[: value.index(value[-1]) + 1] if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def problems_of(seen: ParamsSeen) -> list[FieldProblem]:
    """Return fields whose value differs from the truth."""
    return value_problems(seen.params, seen.expected, seen.truth.batch.style)


def form_problems(
    params: SeenParams, style: MetadataStyle, device: str | None, context_ranks: int
) -> list[FieldProblem]:
    """Return wrong dtypes, shapes, devices, Python types and formats, which kernels refuse or silently misread.

    `device` is the model's ("cuda:0"), None if not recorded. `context_ranks`: of the layout.
    """
    wanted: list[tuple[str, str, Any, Any]] = [("qkv_format", "", params.qkv_format, "thd")]
    for name, form in params.forms.items():
        values = getattr(params, name)
        wanted.append(("dtype", name, form.dtype, "torch.int32"))
        wanted.append(("shape", name, form.shape, form.shape if values is None else [len(values)]))
        wanted.append(("device", name, form.device, device or form.device))
    if params.max_seqlen_q is not None and not (style.longest_as_tensor and params.max_seqlen_type == "Tensor"):
        wanted.append(("max_seqlen_type", "", params.max_seqlen_type, "int"))
    if params.context_ranks is not None:
        wanted.append(("context_ranks", "", params.context_ranks, context_ranks))
    return [
        FieldProblem(field=field, tensor=name, measured=measured, expected=expected)
        for field, name, measured, expected in wanted
        if measured != expected
    ]


def copied_padding(params: SeenParams) -> bool:
    """Return whether padded offsets equal the plain ones but are other tensors, and pad_between_seqs is not set.

    Transformer Engine (DotProductAttention.forward) then assumes padding between documents and leaves its fast path
    (issue 3487 there).
    """
    pairs = [(name, name.removesuffix("_padded")) for name in PADDED]
    equal = all(
        getattr(params, padded) is not None and getattr(params, padded) == getattr(params, q) for padded, q in pairs
    )
    return equal and params.pad_between_seqs is None and not all(_same(params, padded, q) for padded, q in pairs)


def _same(params: SeenParams, padded: str, plain: str) -> bool:
    names = [params.forms[name].same_as or name for name in (padded, plain) if name in params.forms]
    return len(set(names)) == 1


def pairing(real: list[int], padded: list[int]) -> list[str]:
    """Return contradictions between real and padded offsets: numbers of segments, more tokens than slots in one."""
    if len(real) != len(padded):
        return [f"there are {len(real) - 1} real segments and {len(padded) - 1} padded ones"]
    sizes = [(b - a, d - c) for (a, b), (c, d) in zip(itertools.pairwise(real), itertools.pairwise(padded))]
    full = [(number, tokens, slots) for number, (tokens, slots) in enumerate(sizes) if tokens > slots]
    return [f"segment {number} has {tokens} real tokens in {slots} slots" for number, tokens, slots in full[:1]]


def ghosts(offsets: list[int], expected: list[int]) -> int:
    """Return the number of empty segments beyond those of the plan if nothing else is wrong, else 0."""
    segments, planned = _without_empty(offsets), _without_empty(expected)
    return len(offsets) - len(expected) if segments == planned and len(offsets) > len(expected) else 0


def _without_empty(offsets: list[int]) -> list[int]:
    return [value for index, value in enumerate(offsets) if index == 0 or value != offsets[index - 1]]


def structure(offsets: list[int], *, length: int, multiple: int) -> list[str]:
    """Return defects of offsets in themselves: start, order, end (physical length in tokens), alignment."""
    if not offsets:
        return ["it is empty"]
    problems = []
    if offsets[0] != 0:
        problems.append(f"it starts at {offsets[0]}, not 0")
    if any(after < before for before, after in itertools.pairwise(offsets)):
        problems.append("it decreases")
    if offsets[-1] != length:
        problems.append(f"it ends at {offsets[-1]}, not at the physical length {length}")
    if any((after - before) % multiple for before, after in itertools.pairwise(offsets)):
        problems.append(f"a segment is not a multiple of {multiple} tokens")
    return problems


def missing_class(evidence: CellEvidence, places: list[RankLocation]) -> str:
    """Return the fault class of absent packed params or offsets, by the chunks, stages or ranks that lack them."""
    last = evidence.last_stage
    stages = {place.at.pp for place in places}
    if {place.leg for place in places} == {"training"}:
        return fault_classes.LOST_IN_MODEL
    if all(place.chunk > 0 for place in places):
        return fault_classes.LATER_CHUNKS
    if stages <= set(range(1, last)):
        return fault_classes.MIDDLE_STAGES
    if last > 0 and stages == {last}:
        return fault_classes.LAST_STAGE
    if all(place.at.tp > 0 for place in places):
        return fault_classes.TP_RANKS
    return fault_classes.MISSING
