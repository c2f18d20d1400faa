"""Changes every field of every file of a finished run, one at a time, and returns which changes leave its verdicts.

The run is on disk and is read as by `harness report`. Of fields that a file holds many times (such as the loss of every
document), as many are changed as asked for, spread over the files of a cell.

A change that leaves them is filed under the fields that it alters: replacing a record's environment by another rank's
counts as a change of the process number, and one that leaves all values equal counts as none.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from harness.app.pipeline.baselines import baseline_problem, read_baselines
from harness.core.errors import InputError
from harness.core.hardware.environment import RECORDED
from harness.core.outcomes import Outcome
from harness.core.run.records import OracleRecord
from harness.core.run.run_dir import AttemptDir, RunDir, write_atomic, write_json
from harness.core.run.run_plan import RunPlan, sealed_text
from harness.infra.runs import evidence_files
from harness.infra.runs.evidence_files import newest, read_cell, read_plan, read_records, run_problems
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.in_turn import CellFound, evidence_in_turn
from harness.judge.required.not_evidence import NOT_EVIDENCE
from harness.judge.verdict import CellVerdict, judge_cell

TODAY = "2026-01-01"
GREEN = {Outcome.PASS, Outcome.FLAKY}
REFUSALS = (
    "its control, ",
    "incomplete evidence",
    "contradictory evidence",
    "times cannot be compared with earlier runs",
)
LONE = "lone"  # in place of "record", for a control whose gradients no cell is compared with
_BY_NAME = ("forms", "modules", "untimed", "same_as")  # mappings whose keys are data
KINDS = ("drop", "empty", "negate", "nan", "infinity", "zero", "fill", "neighbour")
_NAN, _INFINITY = {"$float": "nan"}, {"$float": "inf"}  # as core/serialization.py writes them
Path_ = tuple[Any, ...]


class Change(NamedTuple):
    """One change of one file."""

    file: Path
    pattern: str  # e.g. record.steps.*.documents.*.loss_sum
    path: Path_
    kind: str  # of KINDS
    text: str  # the whole file after the change
    differs: frozenset[str]  # patterns of the values that it alters


@dataclass(frozen=True)
class Passed:
    """The changes that left the verdicts as they were, and how many were tried."""

    passed: dict[str, set[str]]  # pattern of an altered value -> kinds of change
    tried: dict[str, int]  # pattern -> changes


def tamper(run: RunDir, *, each: int = 1, only: tuple[str, ...] = ("",), kinds: Collection[str] = KINDS) -> Passed:
    """Change every field of a run that passes and judge it each time.

    `each`: places changed per pattern and file. `only`: how patterns begin. `kinds`: of changes, see Change.
    """
    passed: dict[str, set[str]] = {}
    tried: dict[str, int] = {}
    with _judge_of(run) as judge:
        assert {verdict.outcome for verdict in judge.verdicts.values()} <= GREEN
        for change in judge.made(changes(run, each, judge.lone, only=only, kinds=kinds)):
            tried[change.pattern] = tried.get(change.pattern, 0) + 1
            if judge.unchanged(change.file):
                for pattern in change.differs:
                    passed.setdefault(pattern, set()).add(change.kind)
    return Passed(passed, tried)


def decisive(run: RunDir, *, each: int = 1) -> dict[str, str]:
    """Listed fields that decide whether a cell fails: pattern -> the verdict after a change that is not refused."""
    found: dict[str, str] = {}
    with _judge_of(run) as judge:
        listed = (
            one for one in changes(run, each, judge.lone) if all(known(item) in NOT_EVIDENCE for item in one.differs)
        )
        for change in judge.made(listed):
            for cell, verdict in (judge.after(change.file) or {}).items():
                refused = not verdict.usable or verdict.reason.startswith(REFUSALS)
                failed = judge.verdicts[cell].outcome is Outcome.FAIL
                if failed and not refused and verdict.outcome is not Outcome.FAIL:
                    found[change.pattern] = f"{change.kind}: {cell} is {verdict.outcome}: {verdict.reason}"
    return found


def undone(run: RunDir, cell: str, *, each: int = 1, only: tuple[str, ...] = ("",)) -> dict[str, set[str]]:
    """Fields of a cell's first attempt by whose change the cell no longer fails -> kinds of change."""
    found: dict[str, set[str]] = {}
    with _judge_of(run) as judge:
        assert judge.verdicts[cell].outcome is Outcome.FAIL
        first = run.attempt(cell, 1).root
        of_first = (one for one in changes(run, each, attempt=1, only=only) if one.file.is_relative_to(first))
        for change in judge.made(of_first):
            verdicts = judge.after(change.file)
            if verdicts is not None and verdicts[cell].outcome in GREEN:
                found.setdefault(change.pattern, set()).add(change.kind)
    return found


@contextmanager
def _judge_of(run: RunDir) -> Iterator[_Judge]:
    with tempfile.TemporaryDirectory() as folder:
        yield _Judge(run, Path(folder))


class _Judge:
    """Judges a run again after a change of one file: the file's cell, and the cells that are compared with it.

    A changed record of a cell's newest attempt is written to `folder`, and read there alone.
    """

    def __init__(self, run: RunDir, folder: Path) -> None:
        self.run, self.plan, self.aside = run, read_plan(run), RunDir(folder)
        self.found: dict[str, CellFound] = {cell.id: self._read(cell.id) for cell in self.plan.expansion.cells}
        self.verdicts: dict[str, CellVerdict] = {}
        self.verdicts = self.after(self.run.plan) or {}
        assert self.verdicts, "the run must be judged before anything is changed"
        evidence = {item.cell.id: item for item in evidence_in_turn(self.plan, self.found.__getitem__)}
        compared = {item.cell.control for item in evidence.values() if item.same_rows}
        self.lone = {name for name, item in evidence.items() if not item.same_rows and name not in compared}

    def _read(self, cell: str) -> CellFound:
        found = read_cell(self.run, cell, {})
        return replace(found, before=read_baselines(self.run).get(cell))

    def made(self, wanted: Iterable[Change]) -> Iterator[Change]:
        """Make one change after the other; each is undone before the next."""
        for change in wanted:
            if self._is_record(change.file):
                alone = self.aside.root / change.file.relative_to(self.run.root)
                alone.parent.mkdir(parents=True, exist_ok=True)
                alone.write_text(change.text, encoding="utf-8")
                yield change
                alone.unlink()
                continue
            whole = change.file.read_text(encoding="utf-8")
            try:
                change.file.write_text(change.text, encoding="utf-8")
                yield change
            finally:
                change.file.write_text(whole, encoding="utf-8")

    def _is_record(self, file: Path) -> bool:
        """Whether a file is a record of the newest attempt of its cell."""
        cell = file.parents[2].name
        return cell in self.found and file.parent == self.run.attempt(cell, self.found[cell].attempt).record(0).parent

    def _read_changed(self, cell: str, file: Path) -> CellFound:
        before, damaged = self.found[cell], list[str]()
        if file == self.run.attempt(cell, before.attempt).oracle:
            return replace(before, oracle=evidence_files._read(file, OracleRecord, damaged), damaged=damaged)
        if not self._is_record(file):
            return self._read(cell)
        changed = read_records(self.aside.attempt(cell, before.attempt), damaged)
        kept = {rank: one for rank, one in before.records.items() if self._record(cell, rank) != file}
        return replace(before, records=dict(sorted({**kept, **changed}.items())), damaged=damaged)

    def _record(self, cell: str, rank: int) -> Path:
        return self.run.attempt(cell, self.found[cell].attempt).record(rank)

    def unchanged(self, changed: Path) -> bool:
        """Whether every cell has the outcome and the lanes that it had."""
        verdicts = self.after(changed)
        return verdicts is not None and all(
            (one.outcome, one.lanes) == (self.verdicts[cell].outcome, self.verdicts[cell].lanes)
            for cell, one in verdicts.items()
        )

    def after(self, changed: Path) -> dict[str, CellVerdict] | None:
        """The verdicts after a change of one file; None if the run as a whole is undecided.

        Cells that do not depend on the file keep their verdict.
        """
        if changed.parent == self.run.root:
            try:
                plan = read_plan(self.run)
            except InputError:
                return None
            if run_problems(self.run, plan) or baseline_problem(self.run, plan):
                return None
            if self.verdicts:
                return self.verdicts
        inside = self.run.root / "cells"
        cell = changed.relative_to(inside).parts[0] if changed.is_relative_to(inside) else None
        found = dict(self.found)
        if cell is not None:
            found[cell] = self._read_changed(cell, changed)
        verdicts: dict[str, CellVerdict] = {}
        for evidence in evidence_in_turn(self.plan, found.__getitem__):
            known = evidence.cell
            kept = cell is not None and cell not in (known.id, known.control, known.base)
            verdicts[known.id] = self.verdicts[known.id] if kept else self._verdict(evidence, verdicts)
        return verdicts

    def _verdict(self, evidence: CellEvidence, known: dict[str, CellVerdict]) -> CellVerdict:
        return judge_cell(evidence, today=TODAY, control=known.get(evidence.cell.control or ""))


def changes(
    run: RunDir,
    each: int,
    lone: Collection[str] = (),
    *,
    attempt: int | None = None,
    only: tuple[str, ...] = ("",),
    kinds: Collection[str] = KINDS,
) -> Iterator[Change]:
    """Changes of `each` places of every pattern, spread over all files of the run that verdicts depend on.

    `lone`: cells whose gradients are compared with no other cell's. `attempt`: whose files; None: each cell's newest.
    `only`: how patterns begin. `kinds`: of changes.
    """
    files = [(file, file.stem) for file in (run.plan, run.report("baseline.json")) if file.exists()]
    for cell in sorted(run.root.glob("cells/*")):
        whole = run.attempt(cell.name, attempt or newest(run, cell.name))
        for folder in (whole.root, whole.resumed.root):
            files += [(file, file.stem) for file in sorted(folder.glob("*.json"))]
            records = sorted(folder.glob("ranks/rank-*.json"))
            of_cell = [(file, LONE if cell.name in lone else "record") for file in records]
            yield from _changes(of_cell, each, only, kinds)
    for file in files:
        yield from _changes([file], each, only, kinds)


def _changes(
    files: list[tuple[Path, str]], each: int, only: tuple[str, ...], kinds: Collection[str]
) -> Iterator[Change]:
    """Changes of files of one kind; values are also taken from the next file and from one half the files away."""
    values = [json.loads(file.read_text(encoding="utf-8")) for file, _ in files]
    places: dict[tuple[str, bool], list[tuple[int, Path_]]] = {}  # fields with a value, and fields without
    for number, (_, name) in enumerate(files):
        for path in _paths(values[number], ()):
            there = _at(values[number], path) not in (None, [])
            pattern = _pattern(name, path)
            if _of_record(pattern).startswith(only):
                places.setdefault((pattern, there), []).append((number, path))
    for found in places.values():
        step = max(len(found) // each, 1)
        for number, path in found[step // 2 :: step][:each]:
            others = {(number + 1) % len(files), (number + len(files) // 2) % len(files)} - {number}
            beside = [values[other] for other in sorted(others)]
            yield from _changed(*files[number], values[number], beside, path, kinds)


def _paths(value: Any, path: Path_) -> Iterator[Path_]:
    """Every field and item below a value, without the value itself."""
    if isinstance(value, dict):
        items: Iterable[tuple[Any, Any]] = () if value == _NAN else value.items()
    else:
        items = enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from _paths(item, (*path, key))


def _pattern(name: str, path: Path_) -> str:
    """A path as text, in which indices, documents and names that are data become *."""
    parts = [name]
    for number, key in enumerate(path):
        data = isinstance(key, int) or key.lstrip("-").isdigit() or key.startswith(RECORDED)
        weight = number > 1 and path[number - 2] == "training"  # of a second training, by its name
        parts.append("*" if data or weight or (number and path[number - 1] in _BY_NAME) else key)
    return ".".join(parts)


def _at(value: Any, path: Path_) -> Any:
    for key in path:
        value = value[key]
    return value


def _changed(
    file: Path, name: str, whole: Any, beside: Sequence[Any], path: Path_, kinds: Collection[str]
) -> Iterator[Change]:
    """Every change of one place; replacing a value by an equal one is not a change."""
    holder, key, pattern = _at(whole, path[:-1]), path[-1], _pattern(name, path)
    before = holder[key]
    for kind, value in [(kind, value) for kind, value in _values(whole, beside, path) if kind in kinds]:
        if kind == "drop":
            differs = frozenset((pattern,))
            kept = list(holder.items()) if isinstance(holder, dict) else list(holder)
            del holder[key]
            text = json.dumps(whole)
            holder.clear()
            holder.update(kept) if isinstance(holder, dict) else holder.extend(kept)
        else:
            differs = frozenset(_pattern(name, place) for place in _differing(before, value, path))
            holder[key] = value
            text = json.dumps(whole)
            holder[key] = before
        if differs:
            yield Change(file, pattern, path, kind, text, differs)


def _differing(one: Any, other: Any, path: Path_) -> Iterator[Path_]:
    """The innermost places at which two values differ; for lists and mappings with other keys, the place itself."""
    alike = type(one) is type(other) and isinstance(one, (dict, list)) and len(one) == len(other)
    if alike and isinstance(one, dict) and one.keys() == other.keys():
        for key in one:
            yield from _differing(one[key], other[key], (*path, key))
    elif alike and isinstance(one, list):
        for number, pair in enumerate(zip(one, other)):
            yield from _differing(*pair, (*path, number))
    elif one != other or isinstance(one, bool) != isinstance(other, bool):
        yield path


def _values(whole: Any, beside: Sequence[Any], path: Path_) -> Iterator[tuple[str, Any]]:
    value = _at(whole, path)
    yield "drop", None
    if isinstance(value, bool):
        yield "negate", not value
    elif isinstance(value, (int, float)):
        yield from (("empty", None), ("negate", -value or -1), ("zero", type(value)(0)))
        yield from (("nan", _NAN), ("infinity", _INFINITY))
    elif value is None:
        yield from (("fill", 1), ("fill", "1"), ("fill", []))
    elif value == []:
        yield from (("fill", [1]), ("fill", ["1"]))
    else:
        yield "empty", type(value)()
    yield from (("neighbour", item) for item in _neighbours(whole, beside, path))


def _neighbours(whole: Any, beside: Sequence[Any], path: Path_) -> Iterator[Any]:
    """The value before the place in the file, and those at the same place in the files of other ranks."""
    holder, key = _at(whole, path[:-1]), path[-1]
    if isinstance(holder, list) and len(holder) > 1:
        yield holder[key - 1]
    elif isinstance(holder, dict) and len(holder) > 1:
        keys = list(holder)
        yield holder[keys[keys.index(key) - 1]]
    for other in beside:
        with suppress(KeyError, IndexError, TypeError):  # the other rank has no such place
            yield _at(other, path)


def known(pattern: str) -> str:
    """The key of NOT_EVIDENCE for a pattern, present or not; entries of `record` apply to `lone` too."""
    record = _of_record(pattern)
    any_field = re.sub(r"^(record\.built\.\*\.values\.).+", r"\1*", record)
    return any_field if any_field in NOT_EVIDENCE else pattern


def _of_record(pattern: str) -> str:
    """A pattern with `record` in place of `lone`."""
    return f"record{pattern.removeprefix(LONE)}" if pattern.startswith(LONE) else pattern


def unlisted(found: Passed) -> str:
    """Patterns of changes that pass and are not listed, with the kinds of change; empty if there are none."""
    passed = {pattern: sorted(kinds) for pattern, kinds in found.passed.items() if known(pattern) not in NOT_EVIDENCE}
    return json.dumps(passed, indent=1) if passed else ""


def write_run(root: Path, plan: RunPlan, evidence: Mapping[str, CellEvidence]) -> RunDir:
    """Write a simulated run to disk as a real one does."""
    run = RunDir(root)
    write_atomic(run.plan, sealed_text(plan))
    for name, item in evidence.items():
        _write_attempt(run.attempt(name), item)
        if item.resumed is not None:
            _write_attempt(run.attempt(name).resumed, item.resumed)
    return run


def _write_attempt(attempt: AttemptDir, item: CellEvidence) -> None:
    write_json(attempt.config, item.config)
    write_json(attempt.result, item.result)
    if item.oracle is not None:
        write_json(attempt.oracle, item.oracle)
    for rank, record in item.records.items():
        write_json(attempt.record(rank), record)
