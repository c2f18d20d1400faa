"""Runs `harness` against a lab's cluster, as a user does: another process, its output, its run directory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from harness.edge.journal import read_events
from harness.judge.render_json import read_report
from harness.judge.report_model import Report
from tests.app.conftest import only_run, write_matrix
from tests.slurm.lab import SlurmLab

SMALL = """\
name: small
model: {layers: 4, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocab: 64}
train: {steps: 2, global_batch: 8, seq_length: 64}
matrix:
  layout: [{tp: 2, pp: 2, cp: 1}, {tp: 2, pp: 4, cp: 2}]
  packing: sft
"""


class Cluster:
    """Runs `harness` against the lab in a folder of its own."""

    def __init__(self, lab: SlurmLab, folder: Path, text: str = SMALL) -> None:
        self.lab, self.folder = lab, folder
        self.matrix = write_matrix(folder, text, "one.yaml")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "harness", *arguments]
        environment = {**os.environ, **self.lab.environment}
        return subprocess.Popen(
            command, cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def run(self, *arguments: str) -> tuple[int, str]:
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=600)
        return process.returncode, output

    @property
    def directory(self) -> Path:
        return only_run(self.folder / "reports")

    def report(self) -> Report:
        return read_report((self.directory / "report.json").read_text())

    def jobs(self) -> dict[str, str]:
        """Slurm's job id by allocation."""
        submitted = [event for event in read_events(self.directory / "events.jsonl") if event["event"] == "submitted"]
        return {name: job for event in submitted for name, job in event["allocations"].items()}

    def until_submitted(self, jobs: int) -> None:
        self.lab.wait_for(lambda: self.begun() and len(self.jobs()) == jobs, 120, f"{jobs} jobs")

    def begun(self) -> bool:
        return any((self.folder / "reports").glob("*/plan.json"))

    def kill_agents(self) -> None:
        """Kill the agents of this run and their ranks, on all nodes at once."""
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                argv = (process / "cmdline").read_text().split("\0")
                if "harness.node.agent" in argv and str(self.directory) in argv:
                    os.kill(int(process.name), signal.SIGKILL)

    def until_a_cell_starts(self, ranks: int) -> str:
        """Wait until the agent of the job with so many ranks per cell has started one; the job's node list."""

        def node() -> str:
            for journal in (self.directory / "agents").glob("*.0.jsonl"):
                events = read_events(journal)
                if any(event["event"] == "cell_started" and event["ranks"] == ranks for event in events):
                    job = self.jobs()[journal.name.removesuffix(".0.jsonl")]
                    return self.lab.output("squeue", "-h", "-o", "%N", "-j", job)
            return ""

        return self.lab.wait_for(lambda: node() if self.begun() else "", 240, "a running cell")
