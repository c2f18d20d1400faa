"""Links in a run directory from elsewhere: no command shows what they lead to, nor changes it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from harness.cli.cli import main
from harness.core.outcomes import EXIT_INPUT, EXIT_PASS, EXIT_UNDECIDED
from harness.core.run.run_dir import RunDir, write_atomic, write_json
from harness.runs.evidence_files import read_plan
from tests.cli.test_pipes import judged_run

CANARY = "canary-7f3a"
COMMANDS = (
    "report RUN --no-history",
    "status RUN",
    "logs RUN",
    "logs RUN CELL",
    "logs RUN CELL --rank 0",
    "logs RUN -f",
    "explain CELL --run RUN",
    "compare RUN/report.json RUN",
    "compare RUN --baseline RUN/report.json",
    "shrink RUN CELL",
    "history import RUN",
    "index RUNS",
    "list",
    "cancel RUN",
    "resume RUN --no-history",
)
# What commands may write that the run has not yet.
WRITTEN = ("compare.md", "compare.html", "cancelled.json", "previous.json", "noise.json", "internal-error.txt")
WRITTEN_FOLDERS = ("report-pages", "shrink", "operations", "node-code")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    run = judged_run(tmp_path_factory.mktemp("whole"))
    write_atomic(run.submission("here", ".log"), "said\n")
    write_json(run.root / "agents" / "here.0.jsonl", {})
    return run


def _kinds(run: RunDir) -> list[Path]:
    """One of each kind of file and folder of the run."""
    names = [path.relative_to(run.root) for path in sorted(run.root.rglob("*"))]
    return list({re.sub(r"\d{5}|cells/[^/]+", "", str(name)): name for name in names}.values())


def _link(place: Path, outside: Path) -> Path:
    """Move what is there out of the run, with the canary in every text, and leave a link; returns where it leads."""
    target = outside / place.name
    if place.exists():
        shutil.move(place, target)
    elif place.name in WRITTEN:
        target.write_text("")
    else:
        target.mkdir()
        (target / "001.html").write_text("")
    for file in [target] if target.is_file() else [path for path in target.rglob("*") if path.is_file()]:
        text = file.read_text()
        if file.suffix == ".json" and text:  # stays JSON, so that a command that reads it goes on
            text = text.replace('"run_id": "', f'"run_id": "{CANARY}', 1)
        file.write_text(text + ("" if file.suffix == ".json" else f"{CANARY}\n"))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)
    return target


def _content(folder: Path) -> Mapping[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    }


def _words(command: str, run: RunDir, cell: str) -> list[str]:
    named = {"RUNS": str(run.root.parent), "CELL": cell}
    words = [named.get(word, word.replace("RUN", str(run.root))) for word in command.split()]
    return [*words, "--run-dir", str(run.root.parent)] if words[0] not in ("history", "index") else words


def _tried(run: RunDir, cell: str, capsys: pytest.CaptureFixture[str]) -> Iterator[tuple[str, int, str]]:
    more = ("explain RUN CELL --operations --layer 1",) if (run.root / "operations").exists() else ()  # else it trains
    for command in (*COMMANDS, *more):
        code = main(_words(command, run, cell))
        said = capsys.readouterr()
        yield command, code, said.out + said.err


@pytest.mark.slow
def test_no_command_follows_a_link_in_place_of_any_file_or_folder(
    whole: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_HISTORY", str(tmp_path / "history.sqlite"))
    cell = read_plan(whole).expansion.cells[1].id
    places = [*_kinds(whole), *map(Path, (*WRITTEN, *WRITTEN_FOLDERS))]
    assert len(places) >= 30
    refused = set()
    for number, place in enumerate(places):
        run, outside = RunDir(tmp_path / str(number) / whole.root.name), tmp_path / str(number) / "outside"
        shutil.copytree(whole.root, run.root)
        outside.mkdir()
        target = _link(run.root / place, outside)
        before = _content(outside)
        for command, code, said in _tried(run, cell, capsys):
            assert CANARY not in said, (command, place, said)
            assert _content(outside) == before, (command, place)
            if f"{run.root / place}: is a symbolic link, to {target}" in said:
                left_out = place.name == "previous.json"  # a note for readers, without which the verdict stands
                assert left_out or code in (EXIT_INPUT, EXIT_UNDECIDED), (command, place, said)
                refused.add(place)
        written = [path for path in run.root.rglob("*") if not path.is_symlink() and path.is_file()]
        assert [path for path in written if CANARY in path.read_text(errors="replace")] == [], place
        shutil.rmtree(tmp_path / str(number))
    assert {Path("plan.json"), Path("report.json"), Path("cells")} <= refused


@pytest.mark.parametrize("name", ["data", "checkpoint", "ranks"])
def test_an_attempt_that_has_not_begun_may_hold_no_link(
    whole: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """The code under test would write through it."""
    run = RunDir(tmp_path / whole.root.name)
    shutil.copytree(whole.root, run.root)
    attempt = run.attempt(read_plan(run).expansion.cells[1].id)
    for path in attempt.root.iterdir():
        if path != attempt.config:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    (tmp_path / "outside").mkdir()
    (attempt.root / name).symlink_to(tmp_path / "outside")
    assert main(["resume", str(run.root), "--no-history"]) == EXIT_INPUT
    assert f"{attempt.root / name}: is a symbolic link, to {tmp_path / 'outside'}" in capsys.readouterr().err
    assert list((tmp_path / "outside").iterdir()) == []


def test_the_run_directory_may_itself_be_a_link(
    whole: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The user names it, e.g. on a file system that is large enough."""
    shutil.copytree(whole.root, tmp_path / "scratch" / whole.root.name)
    (tmp_path / "reports").symlink_to(tmp_path / "scratch")
    (tmp_path / "run").symlink_to(tmp_path / "reports" / whole.root.name)
    for words in (["status", "latest", "--run-dir", str(tmp_path / "reports")], ["report", str(tmp_path / "run")]):
        assert main([*words, *(["--no-history"] if words[0] == "report" else [])]) == EXIT_PASS, capsys.readouterr()


def test_a_temporary_name_cannot_be_prepared(whole: RunDir, tmp_path: Path) -> None:
    """One that is known before, such as that with the number of the process, could be a link."""
    (tmp_path / "canary").write_text(CANARY)
    run = RunDir(tmp_path / whole.root.name)
    shutil.copytree(whole.root, run.root)
    for name in (path.name for path in whole.root.iterdir()):
        for temporary in (f".{name}.{os.getpid()}.tmp", f".{name}.tmp", f"{name}.tmp", f"{name}~"):
            (run.root / temporary).symlink_to(tmp_path / "canary")
    assert main(["report", str(run.root), "--no-history"]) == EXIT_PASS
    assert (tmp_path / "canary").read_text() == CANARY
