"""Required of upstream's own trainer: its entry point, and a report of every step with every number that its release
reports.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.core.cell.reports import WITH_COUNTERS, counting_ranks, counts_lengths, counts_packed, entry_point, logged
from harness.core.run.records import RankRecord, ReportedStep
from harness.judge.required.expected import Expected


def problems(expected: Expected, record: RankRecord) -> Iterator[str]:
    """Problems of one completed rank."""
    entry = entry_point(expected.config)
    if record.entry_point != entry:
        yield f"entry_point is {record.entry_point!r}, expected {entry!r}"
    found = [seen.step for seen in record.reported]
    right = [] if expected.config.own_trainer else list(expected.evidence.steps)
    if found != right:
        yield f"reported: the trainer reported steps {found}, expected {right}"
        return
    yield from _counting(expected, record)
    for seen in record.reported:
        if seen.loss is not None and not expected.is_last(record.place):
            yield f"reported: step {seen.step}: loss is {seen.loss!r}, and only the last stage computes it"
        yield from _counters(expected, record, seen)
        yield from _printed(expected, record, seen)


def _counting(expected: Expected, record: RankRecord) -> Iterator[str]:
    """Whether the release counts packed tokens is known from its version, except for a few."""
    found = record.counts_packed
    if expected.config.trainer not in WITH_COUNTERS:
        if found is not None:
            yield f"counts_packed is {found!r}, and the trainer counts no FLOPs"
        return
    versions = {proof.module: proof.version for proof in record.imports}
    right = counts_packed(expected.config, versions)
    if found is None or right not in (None, found):
        yield f"counts_packed is {found!r}, and the release {'counts' if right else 'does not count'} packed tokens"


def _counters(expected: Expected, record: RankRecord, seen: ReportedStep) -> Iterator[str]:
    counts = counting_ranks(expected.config, record.place.pp)
    packed = counts and bool(record.counts_packed) and counts_lengths(expected.config)
    lengths = () if expected.config.path.scheduled else (("packed_tokens", packed), ("packed_squares", packed))
    for name, due in (("flops", counts), *lengths):  # those of the scheduler are required as workloads
        if (getattr(seen, name) is not None) != due:
            rule = "the trainer counts it" if due else "nothing counts it on this rank"
            yield f"reported: step {seen.step}: {name} is {getattr(seen, name)!r}, and {rule}"


def _printed(expected: Expected, record: RankRecord, seen: ReportedStep) -> Iterator[str]:
    last = record.rank == expected.layout.world_size - 1
    due = last and len(logged(expected.config, seen.step)) > 0
    if (seen.printed is not None) != due:
        rule = "a line is printed" if due else "this rank prints none"
        yield f"reported: step {seen.step}: printed is {seen.printed!r}, and {rule}"
