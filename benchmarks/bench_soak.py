"""Runs a matrix again and again, with faults while it runs, and checks that nothing is left over or judged wrongly.

    python benchmarks/bench_soak.py [--minutes 60 | --runs 30] [--on slurm] [--faults 60] [--matrix M.yaml] [--seed 1]

With --faults a random fault (soak_faults.py) strikes every so many seconds: signals to ranks, supervisors, agents and
the launcher; on a cluster also lost jobs, nodes and daemons. A launcher that was ended is resumed, and cells that
ended as ERROR are run again, until every cell is judged. Then must hold:

- every cell of the plan is in the report once, as PASS or as the matrix expects, and was never FAIL before;
- no cell was ERROR, or FLAKY after another attempt, that no fault can have struck;
- no attempt was journalled as finished twice;
- no process is left, and no temporary file.

Figures are the peak memory of the launcher, of the largest agent and of its ranks, the files of a run and the growth of
the history, in the last third of the runs over the first. The exit code is 1 when something does not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from figures import ROOT, SMALLEST, Figure, finished, parser
from slurm_figures import started_lab
from soak_faults import Struck, Target, processes, strike

from harness.core.run.events import read_lines
from tests.processes import heed_interrupts
from tests.slurm.lab import SlurmLab
from tests.slurm.machine import processes_of

GOOD = ("PASS", "XFAIL", "REJECTED")
RETRIED = "FLAKY"  # an ERROR that a fault caused, and PASS in the next attempt
KINDS = ("launcher", "agent", "supervisor", "rank")  # of processes
UNDO_S = 10.0  # how long a node or daemon is away
POLL_S = 0.5
LEFT_S = 60.0  # for processes of a launcher that was killed to end
GROWTH = 1.1  # of the last third of the runs over the first; above it, something accumulates
MAX_RESUMES = 40


@dataclass(kw_only=True)
class Soak:
    """What one soak does and has found."""

    work: Path
    matrix: str
    options: Sequence[str]
    lab: SlurmLab | None
    every_s: float | None  # between faults
    draw: random.Random
    next_s: float = 0.0  # when the next fault is due, by the monotonic clock
    struck: list[str] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    peaks: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @property
    def history(self) -> Path:
        return self.work / "history.sqlite"

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "harness", *arguments, "--history", str(self.history)]
        return subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=heed_interrupts
        )


def run_once(soak: Soak, number: int) -> None:
    """One run to the verdict on every cell, and the checks of it."""
    parent = soak.work / f"run-{number:03d}"
    launcher = soak.start("run", soak.matrix, *soak.options, "--run-dir", str(parent))
    peaks: dict[str, int] = defaultdict(int)
    hit: set[str] = set()
    for resumes in itertools.count():
        code = follow(soak, launcher, parent, peaks, hit)
        folders = [path.parent for path in parent.glob("*/plan.json")]
        if not folders:  # the launcher was ended before it had planned
            launcher = soak.start("run", soak.matrix, *soak.options, "--run-dir", str(parent))
            continue
        report = reported(soak, number, folders[0], hit)
        if code in (0, 1) and report and all(cell["outcome"] in (*GOOD, RETRIED) for cell in report["cells"]):
            break
        if resumes == MAX_RESUMES:
            soak.bad.append(f"run {number}: exit code {code} after {resumes} resumes")
            break
        launcher = soak.start("resume", str(folders[0]), "--run-dir", str(parent), "--errors")
    check(soak, number, folders[0])
    for name, value in peaks.items():
        soak.peaks[name].append(float(value))
    soak.peaks["files of a run"].append(float(sum(1 for _ in folders[0].rglob("*"))))
    soak.peaks["history"].append(float(soak.history.stat().st_size))
    print(f"run {number}: {resumes} resumes, {len(hit)} cells that faults may have struck", flush=True)
    shutil.rmtree(parent)


def follow(soak: Soak, launcher: subprocess.Popen[bytes], parent: Path, peaks: dict[str, int], hit: set[str]) -> int:
    """Wait for a launcher, with faults when they are due; its exit code."""
    undo: list[tuple[float, Struck]] = []
    while launcher.poll() is None:
        time.sleep(POLL_S)
        peaks["launcher"] = max(peaks["launcher"], peak_memory_kib(launcher.pid))
        for folder in (path.parent for path in parent.glob("*/plan.json")):
            for kind, pids in processes(folder).items():
                peaks[kind] = max(peaks[kind], *map(peak_memory_kib, pids)) if pids else peaks[kind]
            if soak.every_s is not None and time.monotonic() > soak.next_s:
                target = Target(folder=folder, launcher=launcher, lab=soak.lab)
                if struck := strike(target, soak.draw):
                    hit |= struck.cells
                    soak.struck.append(struck.what)
                    print(f"  {time.strftime('%H:%M:%S')} {struck.what}", flush=True)
                    soak.next_s = time.monotonic() + soak.every_s
                    undo += [(time.monotonic() + UNDO_S, struck)] if struck.undo else []
        undo = [one for one in undo if not ended(one)]
    for _, struck in undo:
        ended((0.0, struck))
    return launcher.returncode


def ended(away: tuple[float, Struck]) -> bool:
    """End a fault when it has lasted long enough; whether it was ended."""
    when, struck = away
    if time.monotonic() < when or struck.undo is None:
        return False
    struck.undo()
    return True


def peak_memory_kib(pid: int) -> int:
    """VmHWM of a process; 0 once it has ended."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)
    return 0


def reported(soak: Soak, number: int, folder: Path, hit: set[str]) -> dict[str, Any] | None:
    """The report so far; notes false alarms in it: FAIL, or ERROR of a cell that no fault can have struck."""
    file = folder / "report.json"
    if not file.exists():
        return None
    report: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    for cell in report["cells"]:
        outcome = cell["outcome"]
        if outcome in (*GOOD, "NOT_RUN"):
            continue
        if outcome in ("ERROR", RETRIED) and {cell["id"], cell["control"]} & hit:
            continue
        soak.bad.append(f"run {number}: {outcome} {cell['id']}: {cell['reason']} {cell['findings'][:2]}")
        kept = soak.work.parent / f"{soak.work.name}-bad-{number}"
        if not kept.exists():
            shutil.copytree(folder, kept)
            print(f"kept {kept}", flush=True)
    return report


def check(soak: Soak, number: int, folder: Path) -> None:
    """Every cell is judged once, no attempt ended twice, and nothing of the run is left on the machine."""
    planned = [cell["id"] for cell in json.loads((folder / "plan.json").read_text())["expansion"]["cells"]]
    judged = [cell["id"] for cell in json.loads((folder / "report.json").read_text())["cells"]]
    if missing := Counter(planned) - Counter(judged):
        soak.bad.append(f"run {number}: planned but not judged: {', '.join(missing)}")
    twice = [cell for cell, count in Counter(judged).items() if count > 1]
    ends = Counter(
        (event["cell"], event["attempt"])
        for event in read_lines(folder / "events.jsonl")
        if event["event"] == "cell_finished"
    )
    twice += [f"{cell} attempt {attempt}" for (cell, attempt), count in ends.items() if count > 1]
    if twice:
        soak.bad.append(f"run {number}: twice: {', '.join(twice)}")
    end = time.monotonic() + LEFT_S
    while (left := processes_of(folder)) and time.monotonic() < end:
        time.sleep(POLL_S)
    while soak.lab and (jobs := soak.lab.output("squeue", "-h", "-o", "%A %T")):
        if time.monotonic() > end:
            soak.bad.append(f"run {number}: jobs are left: {jobs}")
            soak.lab.output("scancel", "--user=root")
        time.sleep(POLL_S)
    for pid, command in left.items():
        soak.bad.append(f"run {number}: process {pid} is left: {command[:200]}")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for path in Path(tempfile.gettempdir()).iterdir():
        soak.bad.append(f"run {number}: temporary file left: {path}")
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def figures_of(soak: Soak, seconds: list[float]) -> list[Figure]:
    found = [Figure(name="a run", values=seconds)]
    sizes = soak.peaks.pop("history")
    soak.peaks["bytes of the history for a run"] = [after - before for before, after in itertools.pairwise([0, *sizes])]
    for name, values in soak.peaks.items():
        if third := len(values) // 3:
            ratio = statistics.median(values[-third:]) / max(statistics.median(values[:third]), 1.0)
            what = f"peak memory of the largest process: {name}" if name in KINDS else name
            found.append(Figure(name=f"{what}, last third over first", values=[ratio], unit="times", limit=GROWTH))
    found.append(Figure(name="faults", values=[len(soak.struck)], unit=""))
    return [*found, Figure(name="leaks, false alarms, cells not judged once", values=[len(soak.bad)], unit="", limit=0)]


@contextlib.contextmanager
def place(options: argparse.Namespace, work: Path) -> Iterator[SlurmLab | None]:
    """The cluster that runs happen on, if any. All temporary files are made in the soak's own folder."""
    with contextlib.ExitStack() as stack:
        lab = stack.enter_context(started_lab()) if options.on == "slurm" else None
        (work / "tmp").mkdir()
        os.environ["TMPDIR"] = tempfile.tempdir = str(work / "tmp")
        stack.callback(setattr, tempfile, "tempdir", None)
        stack.callback(os.environ.pop, "TMPDIR")
        yield lab


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--runs", type=int, default=30, metavar="N", help="number of runs (30)")
    options.add_argument("--minutes", type=float, metavar="M", help="start runs for so long, instead of --runs")
    options.add_argument(
        "--on", choices=("local", "slurm"), default="local", help="this machine, or the tests' cluster"
    )
    options.add_argument("--faults", type=float, metavar="SECONDS", help="between faults; without it there are none")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--matrix", default=str(ROOT / "matrices" / "smoke.yaml"), metavar="MATRIX")
    arguments = options.parse_args()
    matrix, runs = (str(SMALLEST), 1) if arguments.smallest else (arguments.matrix, arguments.runs)
    words = ["--set", "launch.deadline_s=60", *(("--cluster", "slurm-lab") if arguments.on == "slurm" else ())]
    seconds: list[float] = []
    with tempfile.TemporaryDirectory(prefix="harness-soak-") as folder, place(arguments, Path(folder)) as lab:
        draw = random.Random(arguments.seed)
        soak = Soak(work=Path(folder), matrix=matrix, options=words, lab=lab, every_s=arguments.faults, draw=draw)
        begun = time.monotonic()
        soak.next_s = begun + (arguments.faults or 0.0)
        for number in itertools.count(1):
            begin = time.monotonic()
            run_once(soak, number)
            seconds.append(time.monotonic() - begin)
            over = time.monotonic() - begun > 60 * arguments.minutes if arguments.minutes else number >= runs
            if over:
                break
        for what, count in sorted(Counter(soak.struck).items()):
            print(f"{count:>5}  {what}")
        print("\n".join(soak.bad) or f"every cell of {number} runs was judged once, and nothing is left")
        return max(finished(figures_of(soak, seconds), arguments), int(bool(soak.bad)))


if __name__ == "__main__":
    raise SystemExit(main())
