"""A named pipe in place of a file of a run directory: no command waits for a writer."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from harness.campaign.finalize import judge_and_report
from harness.campaign.options import RunOptions
from harness.cli.cli import main
from harness.core.outcomes import EXIT_INPUT, EXIT_PASS, EXIT_UNDECIDED
from harness.core.run.run_dir import NotRegularError, RunDir, opened, write_json
from harness.runs.evidence_files import read_plan
from tests.cli.runs import simulated_run

LIMIT_S = 60  # only a command that hangs takes this long
COMMANDS = ("report", "status", "logs", "resume")


@pytest.fixture(autouse=True)
def _ended_when_it_hangs() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise AssertionError("the command waits for a pipe")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def judged_run(parent: Path) -> RunDir:
    """A run with every file that the commands read."""
    run = simulated_run(parent)
    plan = read_plan(run)
    for cell in plan.expansion.cells:
        log = run.attempt(cell.id).root / "log"
        log.mkdir()
        (log / "rank-00000.log").write_text("said\n")
    write_json(run.root / "launch.json", {"parallel_ranks": 4})
    (run.root / "launcher.lock").touch()
    assert judge_and_report(run, plan, RunOptions(record=False)).code == EXIT_PASS
    return run


def piped(run: RunDir, name: Path) -> None:
    (run.root / name).unlink()
    os.mkfifo(run.root / name)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return judged_run(tmp_path_factory.mktemp("whole"))


def test_no_command_waits_for_a_pipe_in_place_of_any_file(
    whole: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [path.relative_to(whole.root) for path in sorted(whole.root.rglob("*")) if path.is_file()]
    kinds = {re.sub(r"\d{5}|cells/[^/]+", "", str(name)): name for name in names}  # one of each
    assert len(kinds) >= 12
    for name in kinds.values():
        run = RunDir(tmp_path / whole.root.name)
        shutil.copytree(whole.root, run.root)
        piped(run, name)
        for command in COMMANDS:
            code = main([command, str(run.root), *(["--no-history"] if command in ("report", "resume") else [])])
            said = capsys.readouterr()
            assert code in (EXIT_PASS, EXIT_INPUT, EXIT_UNDECIDED), (command, name, said)
            assert "Traceback" not in said.out + said.err
            signal.alarm(LIMIT_S)
        shutil.rmtree(run.root)


@pytest.mark.parametrize("what", ["plan.json", "result.json", "ranks/rank-00001.json"])
def test_evidence_that_is_a_pipe_is_refused_with_a_sentence(
    whole: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    run = RunDir(tmp_path / whole.root.name)
    shutil.copytree(whole.root, run.root)
    cell = read_plan(run).expansion.cells[1].id
    piped(run, Path(what) if what == "plan.json" else Path("cells") / cell / "attempt-1" / what)
    code = main(["report", str(run.root), "--no-history"])
    said = capsys.readouterr()
    assert code == (EXIT_INPUT if what == "plan.json" else EXIT_UNDECIDED)
    assert ("no run '" if what == "plan.json" else "not a regular file") in said.out + said.err


def test_a_device_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(NotRegularError, match="not a regular file"):
        opened(Path("/dev/zero"))
    with pytest.raises(IsADirectoryError):
        opened(tmp_path)
