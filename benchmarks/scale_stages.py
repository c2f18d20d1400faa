"""The stages of bench_scale.py: each works on the folder of a campaign and returns the times of its parts."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

from harness.core.cell.upstream_config import asked
from harness.core.run.events import CellFinished, CellStarted, Event, Finished, Loaded, Started, note
from harness.core.run.record_file import write_record
from harness.core.run.records import BuiltSeen, RankRecord
from harness.core.run.run_dir import RunDir, write_json
from harness.core.run.run_plan import PlannedCell, RunPlan

MATRIX = """
name: scale
model: {{layers: 8, hidden: 64, heads: 8, kv_heads: 8, ffn: 128, vocab: 256}}
train: {{steps: 2, global_batch: 8, seq_length: 64}}
matrix:
  tp: [1, 2]
  pp: [1, 2]
  cp: [1, 2]
  packing: reference
  train.lr: [{rates}]
  {largest}
checks: {{canaries: none}}
launch: {{max_ranks: 4096, cells_per_allocation: 40}}
"""
LARGEST = "include: [{tp: 8, pp: 8, cp: 8, dp: 8, packing: reference, train.lr: 0.001}]"  # 4,096 ranks
FEW = 50  # cells of a campaign without the largest cell
CLUSTER = """
name: simulated
kind: slurm
partition: batch
nodes: 512
gpus_per_node: 8
time: 120
"""
OF_A_GROUP = 9  # cells of one learning rate: eight layouts and the control
WRONG_EVERY = 20  # groups


def processor() -> float:
    """Seconds of processor time of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _run(folder: Path) -> RunDir:
    return RunDir(folder / "run")


def _plan(folder: Path) -> RunPlan:
    from harness.runs.evidence_files import read_plan

    return read_plan(_run(folder))


def _command(*words: str) -> str:
    """The output of a command of the harness; SystemExit unless it succeeds."""
    from harness.cli.cli import main

    text = io.StringIO()
    with redirect_stdout(text):
        code = main(list(words))
    if code:
        raise SystemExit(f"harness {' '.join(words)}: exit code {code}\n{text.getvalue()}")
    return text.getvalue()


def plan(folder: Path, cells: int) -> dict[str, float]:
    """`harness plan`."""
    rates = [0.001 + 1e-7 * number for number in range(max(1, cells // OF_A_GROUP))]
    values = {"rates": ", ".join(f"{rate:.7f}" for rate in rates), "largest": LARGEST if cells > FEW else ""}
    (folder / "scale.yaml").write_text(MATRIX.format(**values))
    (folder / "cluster.yaml").write_text(CLUSTER)
    _command("plan", str(folder / "scale.yaml"))
    return {}


def write(folder: Path, cells: int) -> dict[str, float]:
    """What `harness run` does before it submits: plan, then plan.json, configurations and job files."""
    from harness.campaign import plan_run
    from harness.campaign.options import PlanOptions

    planned = plan_run.plan_run(folder / "scale.yaml", PlanOptions(cluster=str(folder / "cluster.yaml")))
    plan_run.write_run(_run(folder), planned)
    return {}


def run(folder: Path, cells: int) -> dict[str, float]:
    """The agents write records, results and journals; the launcher reads these and judges each cell that has ended."""
    from harness.campaign.judging import LiveJudging
    from harness.campaign.launch import Listener
    from harness.campaign.progress import Progress
    from harness.core.run.events import Journal

    directory, found = _run(folder), _plan(folder)
    known = {cell.id: cell for cell in found.expansion.cells}
    begin = processor()
    live = LiveJudging(directory, found, lambda cell: None)
    listener = Listener(directory, Progress(io.StringIO()), live.ended)
    following, agent = processor() - begin, SimulatedAgent(directory, found)
    for one in found.allocations:
        agent.work(one.name, [known[cell] for cell in one.cells])
        begin = processor()
        for event in Journal(directory.agent_journal(one.name, 0)).new_events():
            listener(event)
        following += processor() - begin
    return {
        "writing records, s": agent.recording,
        "writing journals, s": agent.noting,
        "following and judging live, s": following,
    }


class SimulatedAgent:
    """Leaves what an agent and its ranks leave; the records of a layout are made once."""

    def __init__(self, directory: RunDir, plan: RunPlan) -> None:
        self.directory, self.plan = directory, plan
        self.number = {cell.id: number for number, cell in enumerate(plan.expansion.cells)}
        self.made: dict[str, dict[int, RankRecord]] = {}
        self.recording = self.noting = 0.0  # seconds

    def work(self, allocation: str, cells: Sequence[PlannedCell]) -> None:
        journal = self.directory.agent_journal(allocation, 0)
        self._note(journal, Started(pid=1), Loaded(import_s=3.0))
        for cell in cells:
            ranks = cell.config.layout.world_size
            self._note(journal, CellStarted(cell=cell.id, attempt=1, ranks=ranks))
            self._record(cell)
            self._note(journal, CellFinished(cell=cell.id, attempt=1, status="completed"))
        self._note(journal, Finished())

    def _note(self, journal: Path, *events: Event) -> None:
        begin = processor()
        for event in events:
            note(journal, event)
        self.noting += processor() - begin

    def _record(self, cell: PlannedCell) -> None:
        from tests.judge.simulator import oracle_of, records_of, result_of
        from tests.judge.written import seal

        layout = str((cell.config.layout, cell.config.data_path))
        if layout not in self.made:
            self.made[layout] = records_of(cell)
        wrong = self.number[cell.id] % (OF_A_GROUP * WRONG_EVERY) == OF_A_GROUP // 2 and cell.role == "cell"
        ranks = [_as(record, self.plan, cell, wrong=wrong) for record in self.made[layout].values()]
        attempt, begin = self.directory.attempt(cell.id), processor()
        for record in ranks:
            write_record(attempt.record(record.rank), record)
        write_json(attempt.oracle, oracle_of(cell, {0: ranks[0]}))
        write_json(attempt.result, result_of(cell))
        seal(attempt)
        self.recording += processor() - begin


def _as(record: RankRecord, plan: RunPlan, cell: PlannedCell, *, wrong: bool) -> RankRecord:
    """The record under the name of another cell, with its learning rate; `wrong`: with twice the gradient norm."""
    built = [BuiltSeen(of=of, values=values) for of, values in asked(cell.config).items()]
    changed = replace(record, cell=cell.id, run_id=plan.run_id, built=built)
    if wrong:
        changed.steps = [replace(step, grad_norm=2 * (step.grad_norm or 0.0)) for step in record.steps]
    return changed


def status(folder: Path, cells: int) -> dict[str, float]:
    """`harness status`."""
    _command("status", str(folder / "run"))
    return {}


def judge(folder: Path, cells: int) -> dict[str, float]:
    """`harness report`, in its three parts."""
    from harness.campaign.finalize import record
    from harness.campaign.judging import judge as judged
    from harness.campaign.reports import write_reports
    from harness.core.outcomes import Outcome

    run, found = _run(folder), _plan(folder)
    report = judged(run, found)
    begin = processor()
    write_reports(run, report)
    written = processor()
    if not record(run, report, folder / "history.sqlite"):
        raise SystemExit("not recorded in the history")
    wrong = -(-len(found.expansion.cells) // (OF_A_GROUP * WRONG_EVERY))
    failed = report.counts[Outcome.FAIL]
    if not 0.5 * wrong <= failed <= wrong or report.counts[Outcome.PASS] + failed != len(found.expansion.cells):
        raise SystemExit(f"expected about {wrong} failing cells: {report.counts}")
    return {"writing reports, s": written - begin, "recording in the history, s": processor() - written}


def history(folder: Path, cells: int) -> dict[str, float]:
    """`harness history cells`."""
    _command("history", "cells", "--history", str(folder / "history.sqlite"))
    return {}


STAGES: dict[str, Callable[[Path, int], dict[str, float]]] = {
    stage.__name__: stage for stage in (plan, write, run, status, judge, history)
}
