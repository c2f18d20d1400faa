"""Judges a run of 1,000 cells of 64 ranks each, with all reports: `python benchmarks/bench_judge.py [CELLS]`.

One real cell (tp 2, pp 2, cp 2) and its control are trained on this machine. Its eight ranks become the 64 of a cell
with eight replicas by rewriting coordinates and document numbers, and that cell is written under a thousand names; in
every twentieth the gradient norm is cp times too large, so that reports have findings. Then `harness report` judges
the run. Limits: 60 s and 1 GB. Uses about 2.5 GB of disk below the temporary folder until it ends.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from figures import Figure, finished, parser

from harness.core.cell.config import CellConfig
from harness.core.cell.identity import cell_id
from harness.core.cell.layout import Layout
from harness.core.run.record_file import record_text
from harness.core.run.records import OracleRecord, RankRecord
from harness.core.run.run_dir import RunDir, write_atomic, write_json
from harness.core.run.run_plan import Expansion, PlannedCell, sealed_text
from harness.core.serialization import dumps, from_jsonable
from harness.runs.evidence_files import read_plan

SECONDS, BYTES = 60.0, 1e9
REPLICAS, ROW, ROWS = 8, 2, 4  # replicas of the big cell; documents per row, rows of the small cell
BROKEN_EVERY = 20
REPORTS = ("report.json", "report.html", "report.md", "junit.xml")
HARNESS = [sys.executable, "-m", "harness"]
MATRIX = """
name: judge
train: {steps: 3, global_batch: 8, seq_length: 64}
documents: {mode: file, lengths: [40, 20]}  # two of them fill a row, so that each row is one pack
matrix: {tp: 2, pp: 2, cp: 2, packing: reference}
checks: {canaries: none}
"""


def main() -> int:
    options = parser(__doc__)
    options.add_argument("cells", type=int, nargs="?", default=1000)
    arguments = options.parse_args()
    count = BROKEN_EVERY if arguments.smallest else arguments.cells
    matrix = MATRIX.replace("tp: 2, pp: 2, cp: 2", "cp: 2") if arguments.smallest else MATRIX
    with tempfile.TemporaryDirectory(prefix="bench-judge-") as folder:
        small = _train(Path(folder), matrix)
        run = RunDir(Path(folder) / "big")
        ranks, size = _grow(small, run, count)
        seconds, cpu, code, peak = _report(run)
        report = json.loads(run.report("report.json").read_text())
        sizes = {name: run.report(name).stat().st_size for name in REPORTS}
    outcomes = {name: number for name, number in report["counts"].items() if number}
    print(f"{count} cells, {ranks} rank records, {size / 1e9:.2f} GB: {outcomes}, exit code {code}")
    expected = {"FAIL": count // BROKEN_EVERY, "PASS": count - count // BROKEN_EVERY + 1}
    if outcomes != {name: number for name, number in expected.items() if number}:
        raise SystemExit(f"expected {expected}")
    note = f"{count} cells, {ranks} rank records"
    figures = [
        Figure(name="judging, wall time", values=[seconds], limit=SECONDS * count / 1000, note=note),
        Figure(name="judging, processor time", values=[cpu], note=note),
        Figure(name="peak memory of the largest process", values=[peak / 1e9], unit="GB", limit=BYTES / 1e9),
    ]
    figures += [Figure(name=name, values=[size / 1e6], unit="MB") for name, size in sizes.items()]
    return finished(figures, arguments)


def _train(folder: Path, matrix: str) -> RunDir:
    """Run the small cell; returns the run."""
    (folder / "judge.yaml").write_text(matrix)
    subprocess.run(
        [*HARNESS, "run", "judge.yaml", "--run-dir", "runs"], cwd=folder, check=True, stdout=subprocess.DEVNULL
    )
    [run] = (folder / "runs").glob("judge-*")
    return RunDir(run)


def _report(run: RunDir) -> tuple[float, float, int, int]:
    """Run `harness report`: seconds, CPU seconds, exit code, and peak resident bytes of its largest process."""
    begin = time.perf_counter()
    child = subprocess.Popen([*HARNESS, "report", str(run.root)], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    seconds, cpu = time.perf_counter() - begin, usage.ru_utime + usage.ru_stime
    return seconds, cpu, child.returncode, usage.ru_maxrss * 1024


def _grow(small: RunDir, run: RunDir, count: int) -> tuple[int, int]:
    """Write the big run; returns the number of rank records of the big cells, and the bytes of all records."""
    plan = read_plan(small)
    trained, cell = plan.expansion.controls_first
    control = _planned(trained, _big(trained.config, Layout()), None, "")
    write_json(run.attempt(control.id).config, control.config)
    written = _write(run, control.id, _control_records(_read(small, trained.id)), _read_result(small, trained.id))
    config = _big(cell.config, replace(cell.config.layout, dp=REPLICAS))
    records = list(_replicas(_read(small, cell.id), config.layout))
    cells = [_planned(cell, config, control.id, f"-{number:04d}") for number in range(count)]
    for number, one in enumerate(cells):
        broken = number % BROKEN_EVERY == BROKEN_EVERY - 1
        write_json(run.attempt(one.id).config, one.config)
        written += _write(run, one.id, records, _read_result(small, cell.id), broken=broken)
    expansion = Expansion(cells=(control, *cells), rejected=())
    write_atomic(run.plan, sealed_text(replace(plan, expansion=expansion, allocations=())))
    return count * len(records), written


def _big(config: CellConfig, layout: Layout) -> CellConfig:
    train = replace(config.train, global_batch=config.train.global_batch * REPLICAS)
    return replace(config, layout=layout, train=train)


def _planned(cell: PlannedCell, config: CellConfig, control: str | None, suffix: str) -> PlannedCell:
    return replace(cell, id=f"{cell_id(config)}{suffix}", config=config, control=control)


def _read(run: RunDir, cell: str) -> list[dict[str, Any]]:
    paths = sorted((run.attempt(cell).root / "ranks").glob("rank-*.json"))
    return [json.loads(path.read_text()) for path in paths]


def _read_result(run: RunDir, cell: str) -> dict[str, Any]:
    return json.loads(run.attempt(cell).result.read_text())  # type: ignore[no-any-return]


def _write(
    run: RunDir, cell: str, records: list[dict[str, Any]], result: dict[str, Any], *, broken: bool = False
) -> int:
    from tests.judge.written import seal

    attempt, written = run.attempt(cell), 0
    attempt.record(0).parent.mkdir(parents=True)
    built = from_jsonable(RankRecord, records[0]).built
    write_json(attempt.oracle, OracleRecord(cell=cell, built=built, not_modelled="copies of ranks"))
    for record in records:
        record = {**record, "cell": cell}
        if broken:
            record["steps"] = [{**step, "grad_norm": step["grad_norm"] * 2} for step in record["steps"]]
        written += attempt.record(record["rank"]).write_text(record_text(from_jsonable(RankRecord, record)))
    ranks = [{**result["ranks"][0], "rank": record["rank"]} for record in records]
    attempt.result.write_text(dumps({**result, "cell": cell, "ranks": ranks}))
    seal(attempt)
    return written


def _renumbered(document: int, replica: int) -> int:
    """Rows are dealt to the replicas in turn: row m of the small cell is row m * REPLICAS + r of the big one."""
    row, position = divmod(document, ROW)
    return (row * REPLICAS + replica) * ROW + position


def _replicas(records: list[dict[str, Any]], layout: Layout) -> Iterator[dict[str, Any]]:
    """The records of the big layout: each replica gets copies of the records of the one that was trained."""
    small = replace(layout, dp=1)
    for rank in range(layout.world_size):
        place = layout.coordinates(rank)
        record = copy.deepcopy(records[small.rank(replace(place, dp=0))])
        record |= {"rank": rank, "place": vars(place), "built_at": vars(place)}
        _more_work(record)
        for step in record["steps"]:
            _renumber(step, [place.dp])
            if step["loss_sum"] is not None:
                step |= {"loss_sum": step["loss_sum"] * REPLICAS, "token_count": step["token_count"] * REPLICAS}
        for seen in record["activations"]:
            seen["documents"] = {str(_renumbered(int(key), place.dp)): one for key, one in seen["documents"].items()}
        yield record


def _control_records(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The record of the control's rank, as if it had trained on the documents of every replica."""
    [record] = records
    copies, batches = range(REPLICAS), len(record["batches"])
    for seen in record["steps"]:
        _renumber(seen, copies)
        seen |= {name: seen[name] * REPLICAS for name in ("loss_sum", "token_count") if name in seen}
    for step in record["steps"]:
        summed = ("micro_batches", "real_tokens", "slots", "returned_tokens")
        step |= {name: step[name] * REPLICAS for name in summed}
    _more_work(record)
    record["micro_batches"] = [number * REPLICAS for number in record["micro_batches"]]
    for seen in record["activations"]:
        documents = seen["documents"].items()
        seen["documents"] = {str(_renumbered(int(key), replica)): one for key, one in documents for replica in copies}
    for name in ("batches", "layers"):
        record[name] = [
            {**one, "micro_batch": one["micro_batch"] + replica * batches} for replica in copies for one in record[name]
        ]
    return [record]


def _more_work(record: dict[str, Any]) -> None:
    """Multiply the record's sums of lengths by the number of replicas; gradients are divided by so many more tokens."""
    for scale in record["gradient_scales"]:
        scale["dense"] /= REPLICAS
    record["workloads"] = [
        {name: value * REPLICAS if name.startswith(("tokens", "squares")) else value for name, value in one.items()}
        for one in record["workloads"]
    ]


def _renumber(step: dict[str, Any], replicas: Iterable[int]) -> None:
    """Repeat the losses of documents, and of tokens if it holds any, for every replica, under its document numbers."""
    losses = step["documents"].items()
    step["documents"] = {str(_renumbered(int(key), replica)): one for key, one in losses for replica in replicas}
    if tokens := step.get("tokens"):
        step["tokens"] = [
            {**one, "document": _renumbered(one["document"], replica)} for one in tokens for replica in replicas
        ]


if __name__ == "__main__":
    sys.exit(main())
