"""Changes every field of every file of a finished run, one at a time, and says which changes still pass.

The run lies on disk and is read by the readers of `harness report`. Of fields that a file holds many times (the loss of
every document, say) as many are changed as are asked for, spread over the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from harness.edge.evidence_files import read_cell, read_plan, run_problems
from harness.edge.run_dir import RunDir, write_json
from harness.judge.evidence import CellEvidence, CellFound, evidence_in_turn
from harness.judge.verdict import CellVerdict, judge_cell
from harness.words.errors import InputError
from harness.words.jsonable import dumps, loads
from harness.words.outcomes import Outcome
from harness.words.run_plan import RunPlan, sealed

TODAY = "2026-01-01"
_BY_NAME = ("forms", "modules", "untimed", "same_as")  # mappings whose keys are data
Path_ = tuple[Any, ...]


class Change(NamedTuple):
    """One change of one file."""

    file: Path
    pattern: str  # e.g. record.steps.*.documents.*.loss_sum
    path: Path_
    kind: str  # drop | empty | negate | nan | infinity | zero | neighbour
    text: str  # of the changed file


@dataclass(frozen=True)
class Passed:
    """What passed although it was changed, and how much was tried."""

    passed: dict[str, set[str]]  # pattern -> kinds of change
    tried: dict[str, int]  # pattern -> changes


def tamper(run: RunDir, *, each: int = 1) -> Passed:
    """`each`: how many places of every pattern are changed in every file."""
    judge = _Judge(run)
    assert judge.passes(), "the run must pass before anything is changed"
    passed: dict[str, set[str]] = {}
    tried: dict[str, int] = {}
    for change in changes(run, each):
        tried[change.pattern] = tried.get(change.pattern, 0) + 1
        whole = change.file.read_text(encoding="utf-8")
        try:
            change.file.write_text(change.text, encoding="utf-8")
            if judge.passes(change.file):
                passed.setdefault(change.pattern, set()).add(change.kind)
        finally:
            change.file.write_text(whole, encoding="utf-8")
    return Passed(passed, tried)


class _Judge:
    """Judges a run again after one of its files was changed: the cell of the file, and what is held against it."""

    def __init__(self, run: RunDir) -> None:
        self.run, self.plan = run, read_plan(run)
        self.found: dict[str, CellFound] = {cell.id: self._read(cell.id) for cell in self.plan.expansion.cells}
        self.verdicts: dict[str, CellVerdict] = {}

    def _read(self, cell: str) -> CellFound:
        return read_cell(self.run, cell, {})

    def passes(self, changed: Path | None = None) -> bool:
        if changed is None or changed == self.run.plan:
            try:
                plan = read_plan(self.run)
            except InputError:
                return False
            if run_problems(self.run, plan):
                return False
            return changed is not None or self._cells_pass(None)
        return self._cells_pass(changed.relative_to(self.run.root / "cells").parts[0])

    def _cells_pass(self, changed: str | None) -> bool:
        """Cells that do not depend on the changed one keep their verdict."""
        found = dict(self.found)
        if changed is not None:
            found[changed] = self._read(changed)
        verdicts: dict[str, CellVerdict] = {}
        for evidence in evidence_in_turn(self.plan, found.__getitem__):
            cell = evidence.cell
            if changed is not None and changed not in (cell.id, cell.reference, cell.base):
                verdicts[cell.id] = self.verdicts[cell.id]
                continue
            verdicts[cell.id] = self._verdict(evidence, verdicts)
            if verdicts[cell.id].outcome is not Outcome.PASS:
                return False
        if changed is None:
            self.verdicts = verdicts
        return True

    def _verdict(self, evidence: CellEvidence, known: dict[str, CellVerdict]) -> CellVerdict:
        return judge_cell(evidence, today=TODAY, reference=known.get(evidence.cell.reference or ""))


def changes(run: RunDir, each: int) -> Iterator[Change]:
    """Of all files of the run that verdicts are made from: `each` places of every pattern, spread over the files."""
    files = [(run.plan, run.plan.stem)]
    for cell in sorted(run.root.glob("cells/*")):
        files += [(file, file.stem) for file in sorted(cell.glob("attempt-*/*.json"))]
        records = sorted(cell.glob("attempt-*/ranks/rank-*.json"))
        yield from _changes([(file, "record") for file in records], each)
    for file in files:
        yield from _changes([file], each)


def _changes(files: list[tuple[Path, str]], each: int) -> Iterator[Change]:
    """Of files of one kind, of which each has the next one beside it."""
    values = [loads(file.read_text(encoding="utf-8")) for file, _ in files]
    texts = [dumps(value) for value in values]
    places: dict[str, list[tuple[int, Path_]]] = {}
    for number, (_, name) in enumerate(files):
        for path in _paths(values[number], ()):
            places.setdefault(_pattern(name, path), []).append((number, path))
    for pattern, found in places.items():
        step = max(len(found) // each, 1)
        for number, path in found[step // 2 :: step][:each]:
            beside = values[(number + 1) % len(files)] if len(files) > 1 else None
            for kind, text in _changed(values[number], beside, path):
                if text != texts[number]:
                    yield Change(files[number][0], pattern, path, kind, text)


def _paths(value: Any, path: Path_) -> Iterator[Path_]:
    """Every field and item below a value, itself excepted."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from _paths(item, (*path, key))


def _pattern(name: str, path: Path_) -> str:
    """Indices, documents and names of data become *."""
    parts = [name]
    for number, key in enumerate(path):
        data = isinstance(key, int) or key.lstrip("-").isdigit() or (number and path[number - 1] in _BY_NAME)
        parts.append("*" if data else key)
    return ".".join(parts)


def _at(value: Any, path: Path_) -> Any:
    for key in path:
        value = value[key]
    return value


def _changed(whole: Any, beside: Any, path: Path_) -> Iterator[tuple[str, str]]:
    """(kind, text of the file) of every change of one place."""
    holder, key = _at(whole, path[:-1]), path[-1]
    for kind, value in list(_values(whole, beside, path)):
        kept = list(holder.items()) if isinstance(holder, dict) else list(holder)
        if kind == "drop":
            del holder[key]
        else:
            holder[key] = value
        text = dumps(whole)
        holder.clear()
        holder.update(kept) if isinstance(holder, dict) else holder.extend(kept)
        yield kind, text


def _values(whole: Any, beside: Any, path: Path_) -> Iterator[tuple[str, Any]]:
    value = _at(whole, path)
    yield "drop", None
    if isinstance(value, bool):
        yield "negate", not value
    elif isinstance(value, (int, float)):
        yield from (("empty", None), ("negate", -value or -1), ("zero", type(value)(0)))
        yield from (("nan", math.nan), ("infinity", math.inf))
    elif value is not None:
        yield "empty", type(value)()
    yield from (("neighbour", item) for item in _neighbours(whole, beside, path))


def _neighbours(whole: Any, beside: Any, path: Path_) -> Iterator[Any]:
    """What lies beside the place in the file, and at the same place in the file of the next rank."""
    holder, key = _at(whole, path[:-1]), path[-1]
    if isinstance(holder, list) and len(holder) > 1:
        yield holder[key - 1]
    elif isinstance(holder, dict) and len(holder) > 1:
        keys = list(holder)
        yield holder[keys[keys.index(key) - 1]]
    if beside is not None:
        try:
            yield _at(beside, path)
        except (KeyError, IndexError, TypeError):
            return  # the other rank has no such place


def listed(found: Passed) -> str:
    """For a failed assertion."""
    return json.dumps({pattern: sorted(kinds) for pattern, kinds in sorted(found.passed.items())}, indent=1)


def write_run(root: Path, plan: RunPlan, evidence: Mapping[str, CellEvidence]) -> RunDir:
    """A simulated run as a real one leaves it."""
    run = RunDir(root)
    write_json(run.plan, sealed(plan))
    for name, item in evidence.items():
        attempt = run.attempt(name)
        write_json(attempt.config, item.config)
        write_json(attempt.result, item.result)
        for rank, record in item.records.items():
            write_json(attempt.record(rank), record)
    return run
