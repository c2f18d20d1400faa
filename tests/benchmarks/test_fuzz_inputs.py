"""A fixed small part of the fuzzing of inputs; `python benchmarks/fuzz_inputs.py` runs as much of it as wanted."""

from __future__ import annotations

import importlib
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def fuzz() -> Iterator[ModuleType]:
    names = ("fuzz_inputs", "fuzz_corpus", "fuzz_mutations", "fuzz_runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        path = list(sys.path)
        yield importlib.import_module("fuzz_inputs")
        sys.path[:] = path
        for name in names:
            sys.modules.pop(name, None)


@pytest.mark.train
def test_no_mutated_input_breaks_a_rule() -> None:
    command = [sys.executable, "benchmarks/fuzz_inputs.py", "--count", "150", "--seed", "14"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "150 inputs of seed 14: 0 broke a rule" in done.stdout


@pytest.fixture
def corpus(fuzz: ModuleType, tmp_path: Path) -> Any:
    run = tmp_path / "run"
    run.mkdir()
    (run / "plan.json").write_text("{}")
    return fuzz.corpus_of(run, None)


def test_the_same_seed_and_number_give_the_same_input(fuzz: ModuleType, corpus: Any, tmp_path: Path) -> None:
    found = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        for number in range(30):
            folder = tmp_path / name / str(number)
            folder.mkdir()
            what, words = fuzz.prepare(corpus, number, 3, folder)
            files = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
            found.append((number, what, [word.replace(str(folder), "") for word in words], files))
    assert found[:30] == found[30:]
    assert len({what.split()[0] for _, what, _, _ in found}) >= 4


@pytest.mark.parametrize(
    ("content", "is_json"), [(b"a: 1\nb: [x, y]\n", False), (b'{"a": [1, {"b": null}], "c": "x"}', True), (b"", False)]
)
def test_most_mutations_change_something(fuzz: ModuleType, content: bytes, is_json: bool) -> None:
    made = [
        importlib.import_module("fuzz_mutations").mutate(content, [content], random.Random(n), is_json=is_json)
        for n in range(200)
    ]
    assert sum(one != content for one in made) > 150
    assert len(set(made)) > 50


def _internal_error(words: list[str]) -> int:
    print("harness: internal error: KeyError: 'x'; please report it with /f", file=sys.stderr)
    return 3


def _raises(words: list[str]) -> int:
    raise KeyError("x")


def _leaks(words: list[str]) -> int:
    print(os.environ.get("FUZZ_PASSWORD") or "correct-horse-battery-staple")
    return 0


def _commands(words: list[str]) -> int:
    os.environ["GITHUB_ACTIONS"] = "true"
    print("text\n  ::stop-commands::x")
    return 0


def _endless(words: list[str]) -> int:
    while True:
        pass


def _dies(words: list[str]) -> int:
    os._exit(7)


def _large(words: list[str]) -> int:
    return len(b"x" * (600 * 2**20)) and 0


@pytest.mark.parametrize(
    ("command_line", "expected"),
    [
        (_internal_error, "internal error: harness: internal error: KeyError"),
        (_raises, "KeyError left the command line"),
        (_leaks, "a secret is printed"),
        (_commands, "a command of a CI system is printed: '  ::stop-commands::x"),
        (_endless, "s of processor time"),
        (_dies, "the process ended with status"),
        (_large, "MB of memory"),
        (lambda words: 2, "exit code 2 without a message"),
        (lambda words: 130, "exit code 130"),
    ],
)
def test_what_breaks_a_rule_is_seen(
    fuzz: ModuleType, corpus: Any, monkeypatch: pytest.MonkeyPatch, command_line: Any, expected: str
) -> None:
    if command_line is _endless:
        monkeypatch.setattr(fuzz, "SECONDS", 0.1)
    monkeypatch.setattr("harness.cli.cli.main", command_line)
    found = fuzz.batch(corpus, range(2), 1)
    assert [result.number for result in found] == [0, 1]
    assert all(expected in result.broken for result in found)
