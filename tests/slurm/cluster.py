"""Runs `harness` on the test cluster as a user does: in another process, judged by its output and run directory."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.core.cell.config import CellConfig
from harness.core.run.events import read_lines
from harness.core.run.records import CellResult, RankRecord
from harness.core.run.report import Report, ReportCell
from harness.core.run.run_dir import RunDir, write_atomic, write_json
from harness.core.run.run_plan import sealed_text
from harness.core.serialization import from_jsonable, loads
from harness.reporting.render_json import read_report
from harness.runs.evidence_files import read_plan
from harness.runtime.recording.recorder import last_progress
from tests.cli.conftest import only_run, write_matrix
from tests.processes import HUNG_S, heed_interrupts
from tests.slurm.lab import SlurmLab
from tests.slurm.machine import SEARCH_PATH

SMALL = """\
name: small
model: {layers: 4, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocab: 64}
train: {steps: 2, global_batch: 8, seq_length: 64}
matrix:
  layout: [{tp: 2, pp: 2, cp: 1}, {tp: 2, pp: 4, cp: 2}]
  packing: sft
"""


class Cluster:
    """Runs `harness` on the lab's cluster in a separate folder."""

    def __init__(self, lab: SlurmLab, folder: Path, text: str = SMALL) -> None:
        self.lab, self.folder = lab, folder
        self.shims = folder / "shims"  # scripts that precede Slurm's programs on the launcher's PATH
        self.matrix = write_matrix(folder, text, "one.yaml")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "harness", *arguments]
        path = f"{self.shims}:{os.environ['PATH']}"
        environment = {**os.environ, **self.lab.environment, "PATH": path}
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=heed_interrupts,
        )

    def shim(self, name: str, script: str) -> None:
        """Shadow a program of Slurm with a shell script, in which `real` is the program and $here the shims' folder."""
        self.shims.mkdir(exist_ok=True)
        path = self.shims / name
        real = shutil.which(name, path=SEARCH_PATH)
        path.write_text(f'#!/bin/sh\nhere={self.shims}\nreal() {{ {real} "$@"; }}\n{script}\n')
        path.chmod(0o755)

    def run(self, *arguments: str) -> tuple[int, str]:
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=HUNG_S)
        return process.returncode, output

    @property
    def directory(self) -> Path:
        return only_run(self.folder / "reports")

    def report(self) -> Report:
        return read_report((self.directory / "report.json").read_text())

    def cells(self) -> dict[str, ReportCell]:
        """The report's cells by readable name."""
        return {cell.id.rpartition("-")[0]: cell for cell in self.report().cells}

    def records(self, cell: str) -> dict[int, RankRecord]:
        """Rank -> record, of the first attempt of a cell by readable name."""
        values = [loads(path.read_text()) for path in self.attempt(cell).glob("ranks/rank-*.json")]
        return {record.rank: record for record in (from_jsonable(RankRecord, value) for value in values)}

    def hosts(self, cell: str) -> list[str]:
        """Node names of the ranks of a cell, by readable name, in rank order."""
        return [record.environment["host"] for _, record in sorted(self.records(cell).items())]

    def result(self, cell: str) -> CellResult:
        return from_jsonable(CellResult, loads((self.attempt(cell) / "result.json").read_text()))

    def attempt(self, cell: str) -> Path:
        """The folder of the first attempt of a cell, by readable name."""
        (folder,) = (path for path in self.directory.glob("cells/*") if path.name.rpartition("-")[0] == cell)
        return folder / "attempt-1"

    def prepare(self, faults: dict[str, dict[str, Any]], *arguments: str, planned: bool = True) -> None:
        """Plan a run without submitting it, and change the configuration of cells; `resume` starts the run.

        `faults`: readable name -> changes, such as a fault and a deadline. `planned`: change the plan too, with which
        the judge requires agreement. Otherwise the test must call `as_planned` before anything is judged.
        """
        code, output = self.run("run", str(self.matrix), *arguments, "--dry-run")
        assert code == 0, output
        for cell, changes in faults.items():
            path = self.attempt(cell) / "config.json"
            write_json(path, {**loads(path.read_text()), **changes})
        if planned:
            self._plan_as_configured()

    def _plan_as_configured(self) -> None:
        run = RunDir(self.directory)
        plan = read_plan(run)
        cells = tuple(
            replace(one, config=from_jsonable(CellConfig, loads(run.attempt(one.id).config.read_text())))
            for one in plan.expansion.cells
        )
        write_atomic(run.plan, sealed_text(replace(plan, expansion=replace(plan.expansion, cells=cells))))

    def as_planned(self, cell: str) -> None:
        """Restore the planned configuration of the first attempt of a cell, by readable name."""
        run = RunDir(self.directory)
        (config,) = (one.config for one in read_plan(run).expansion.cells if one.id.rpartition("-")[0] == cell)
        write_json(self.attempt(cell) / "config.json", config)

    def jobs(self) -> dict[str, str]:
        """Allocation -> Slurm's job id."""
        submitted = [event for event in read_lines(self.directory / "events.jsonl") if event["event"] == "submitted"]
        return {name: job for event in submitted for name, job in event["allocations"].items()}

    def until_submitted(self, jobs: int) -> None:
        self.lab.wait_for(lambda: self.begun() and len(self.jobs()) == jobs, 120, f"{jobs} jobs")

    def allocation(self, cell: str) -> str:
        """The allocation that runs a cell, by readable name."""
        plan = loads(RunDir(self.directory).plan.read_text())
        (name,) = (
            one["name"]
            for one in plan["allocations"]
            if any(member.rpartition("-")[0] == cell for member in one["cells"])
        )
        return str(name)

    def until_training(self, cell: str, step: int) -> None:
        """Wait until every rank of a cell, by readable name, has reached that training step."""

        def there() -> bool:
            progress = [last_progress(path) for path in self.attempt(cell).glob("ranks/rank-*.json")]
            return bool(progress) and all(one and one.leg == "training" and one.step >= step for one in progress)

        self.lab.wait_for(there, 240, f"{cell} in step {step}")

    def until_accounted(self, job: str, end: str) -> None:
        """Wait until sacct shows the end of a job, "STATE|EXIT": it lags behind the agent and squeue."""
        ask = ("sacct", "-n", "-X", "-P", "-o", "State,ExitCode", "-j", job)
        self.lab.wait_for(lambda: self.lab.output(*ask) == end, 60, f"sacct says {end} of job {job}")

    def begun(self) -> bool:
        return any((self.folder / "reports").glob("*/plan.json"))

    def kill_agents(self) -> None:
        """Kill the agents of this run and their ranks, on all nodes at once."""
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                argv = (process / "cmdline").read_text().split("\0")
                if "harness.runtime.agent" in argv and str(self.directory) in argv:
                    os.kill(int(process.name), signal.SIGKILL)

    def until_a_cell_starts(self, ranks: int) -> str:
        """Wait until an agent has started a cell of this many ranks; returns the node list of its job."""

        def node() -> str:
            for journal in (self.directory / "agents").glob("*.0.jsonl"):
                events = read_lines(journal)
                if any(event["event"] == "cell_started" and event["ranks"] == ranks for event in events):
                    job = self.jobs()[journal.name.removesuffix(".0.jsonl")]
                    return self.lab.output("squeue", "-h", "-o", "%N", "-j", job)
            return ""

        return self.lab.wait_for(lambda: node() if self.begun() else "", 240, "a running cell")
