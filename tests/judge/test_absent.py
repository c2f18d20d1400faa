"""Nothing that is compared with nothing passes: every field of a record is taken away, one at a time, and the cell is
judged again. It must not pass as before, unless the field is listed with the reason why a verdict does without it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from itertools import chain
from typing import Any

import pytest

from harness.core.cell.upstream_config import HARMLESS
from harness.core.outcomes import Outcome
from harness.core.packing.documents import DocumentsConfig
from harness.core.packing.fields import BATCH
from harness.core.run.records import OracleRecord, RankRecord
from harness.core.serialization import from_jsonable, to_jsonable
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.parts import with_predictions, with_routers
from tests.judge.simulator import TRAIN, computed, config_of, evidence_for, judge
from tests.judge.timed import timed

pytestmark = pytest.mark.slow
CANARIES = ("isolation", "order", "determinism", "padding", "repetition", "truncation")
GREEN = {Outcome.PASS, Outcome.FLAKY}

_HARMLESS = "a field that may differ between a cell and its control"
_SHOWN = "text that is shown"
_PLACED = "shown beside a mismatch; without one the content is the plan's"
_PARTS = "they name the tp rank whose shard differs; the verdict is on the whole gradient"
# Pattern of a field -> why a verdict does without it.
ABSENT = {
    "environment.pid": _SHOWN,
    "environment.placed": _SHOWN,
    "environment.memory_limit_bytes": _SHOWN,
    "cpu_stubs": "shown; ranks on the CPU must have some",
    "cpu_stubs.*": _SHOWN,
    **{f"built.*.values.{name}": _HARMLESS for name in chain.from_iterable(HARMLESS.values())},
    "built.*.values.mtp_standalone": "false is upstream's default, and releases without the field do not record it",
    **{
        f"packed_params.*.forms.{name}.same_as": "a copy is a warning about a slow kernel"
        for name in ("cu_seqlens_kv", "cu_seqlens_kv_padded")
    },
    **{f"batches.*.{name}.shape": _PLACED for name in (*BATCH, "log_probs")},
    **{f"legs.*.batches.*.{name}.{what}": _PLACED for name in BATCH for what in ("shape", "dtype")},
    "batches.*.log_probs.dtype": "upstream's, shown beside a mismatch",
    "choices.*.experts": "the oracle follows them, and has their digest",
    "choices.*.experts.*": "the oracle follows them, and has their digest",
    "oracle.record.cell": "its oracle.json names the cell",
    "oracle.record.steps.*.token_count": "the plan counts tokens",
    "oracle.record.evaluations.*.token_count": "the plan counts tokens",
    "oracle.record.evaluations.*.reported": "a copy of what simulated ranks report; the oracle reports nothing",
    "oracle.record.steps.*.tokens": "of thousands of tokens the first are kept; one that is not there is not compared",
    "oracle.record.parameters.*.parts": _PARTS,
}


def by_upstream() -> CellEvidence:
    """Trained and evaluated by Megatron-LM's trainer."""
    train = replace(TRAIN, eval_interval=1)
    return evidence_for(replace(config_of("sft", tp=2, pp=2), trainer="megatron", train=train))


def with_oracle(evidence: CellEvidence) -> CellEvidence:
    evidence.oracle = computed(evidence)
    return evidence


def by_oracle() -> CellEvidence:
    return with_oracle(evidence_for(config_of("reference", tp=2, pp=2)))


def truncated() -> CellEvidence:
    documents = DocumentsConfig(mode="file", lengths=(20, 7, 9))
    config = replace(config_of("reference", tp=2, canaries=("truncation",)), documents=documents)
    return with_oracle(evidence_for(config))


def alone(evidence: CellEvidence) -> CellEvidence:
    """The cell without the control, whose simulated ranks have no such parts."""
    return replace(evidence, control=None, cell=replace(evidence.cell, control=None))


# Kind of cell -> (evidence, how the patterns begin that are taken away: those of which it has more than the others).
CELLS: dict[str, tuple[Callable[[], CellEvidence], tuple[str, ...]]] = {
    "canaries": (lambda: evidence_for(config_of("reference", tp=2, pp=2, canaries=CANARIES)), ("",)),
    "by the oracle": (by_oracle, ("",)),
    "timed": (lambda: timed({("packed", 0): 0.1, ("unpacked", 0): 0.1}, jitter=0.01, tp=2), ("",)),
    "by upstream": (by_upstream, ("",)),
    "by upstream and the oracle": (lambda: with_oracle(by_upstream()), ("evaluations", "oracle.", "reported")),
    "truncation": (truncated, ("legs", "batches")),
    "log-probabilities": (lambda: evidence_for(config_of("skyrl", pp=2)), ("batches",)),
    "virtual stages": (lambda: evidence_for(config_of("reference", pp=2, vpp=2)), ("layers", "gradient_scales")),
    "routers": (lambda: alone(with_routers(pp=2)), ("routers", "choices", "aux_scale", "expert_biases")),
    "predictions": (lambda: alone(with_predictions(depths=2, pp=2)), ("mtp",)),
}


def taken_away(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[str, tuple[Any, ...], Any]]:
    """(pattern, path, replacement) of everything below a value that can be absent, once for each pattern of a path."""
    seen: set[tuple[str, str]] = set()
    for found, at in _below(value, path):
        pattern = ".".join(_shown(at))
        for kind, empty in _absences(found):
            if (pattern, kind) not in seen:
                seen.add((pattern, kind))
                yield pattern, at, empty


def _below(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    if path:
        yield value, path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _below(item, (*path, key))


def _shown(path: tuple[Any, ...]) -> list[str]:
    return ["*" if isinstance(key, int) or re.fullmatch(r"-?\d+", str(key)) else str(key) for key in path]


def _absences(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list) and value:
        yield from (("empty", []), ("shorter", value[:-1]))
    elif isinstance(value, dict) and value:
        yield from (("empty", {}), ("none", None))
    elif isinstance(value, str) and value:
        yield "empty", ""
    elif value is not None and not isinstance(value, (bool, list, dict, str)):
        yield "none", None


def _with(value: Any, path: tuple[Any, ...], item: Any) -> Any:
    """A copy of a JSON value with another item at a path."""
    if not path:
        return item
    key, rest = path[0], path[1:]
    if isinstance(value, dict):
        return {**value, key: _with(value[key], rest, item)}
    return [*value[:key], _with(value[key], rest, item), *value[key + 1 :]]


def _has(value: Any, path: tuple[Any, ...]) -> bool:
    with suppress(LookupError, TypeError):
        return reduce(lambda held, key: held[key], path, value) is not None
    return False


def passing_without(
    evidence: CellEvidence, parts: tuple[str, ...], *, everywhere: bool = False
) -> tuple[dict[str, Any], int]:
    """Patterns of fields without which the cell has the verdict that it had, with what replaced them; and the tries.

    They are taken from the last rank's record, or `everywhere` from those of all ranks that have them.
    """
    before = judge(evidence)
    assert before.outcome in GREEN, before.reason
    rank, record = max(evidence.records.items())
    wholes = {"": to_jsonable(record)}
    if evidence.oracle is not None and evidence.oracle.record is not None:
        wholes["oracle."] = to_jsonable(evidence.oracle)
    others = {other: to_jsonable(one) for other, one in evidence.records.items() if everywhere and other != rank}
    found, count = {}, 0
    for prefix, whole in wholes.items():
        for pattern, path, item in taken_away(whole):
            if not (prefix + pattern).startswith(parts):
                continue
            count += 1
            changed = _with(whole, path, item)
            with suppress(TypeError, ValueError, LookupError):  # no record without it can be read or judged
                if prefix:
                    again = replace(evidence, oracle=from_jsonable(OracleRecord, changed, whole=True))
                else:
                    records = {**evidence.records, rank: from_jsonable(RankRecord, changed, whole=True)}
                    if everywhere:
                        records |= {
                            other: from_jsonable(RankRecord, _with(values, path, item), whole=True)
                            for other, values in others.items()
                            if _has(values, path)
                        }
                    again = replace(evidence, records=records)
                after = judge(again)
                if (after.outcome, after.lanes) == (before.outcome, before.lanes):
                    found[prefix + pattern] = item
    return found, count


@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("name", CELLS)
def test_no_cell_passes_without_a_field_that_is_not_listed(name: str, everywhere: bool) -> None:
    make, parts = CELLS[name]
    found, tried = passing_without(make(), parts, everywhere=everywhere)
    assert tried > 3
    assert {pattern: item for pattern, item in found.items() if pattern not in ABSENT} == {}


def test_every_listed_field_can_be_absent() -> None:
    """A listed field that a verdict needs has become evidence, or no longer exists."""
    found = {pattern for make, parts in CELLS.values() for pattern in passing_without(make(), parts)[0]}
    built = {pattern for pattern in ABSENT if pattern.startswith("built.")}  # simulated ranks have a few of the fields
    assert ABSENT.keys() - built <= found
