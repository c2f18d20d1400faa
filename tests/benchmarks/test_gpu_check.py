"""The GPU check on a machine without a GPU: every part says what became of it; and what its summary makes of files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TINY = "model: {layers: 1}\ntrain: {steps: 1}\nchecks: {canaries: none}\n"
PARTS = ("environment", "facts", "tests", "matrix", "throughput")
CELL = {"id": "c-1", "outcome": "PASS", "reason": "", "findings": [], "throughput": {"rounds_s": {}, "ratios": []}}


def check(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the script with this Python and no GPU; its files go to `folder`/out."""
    env = {**os.environ, "HARNESS_PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": "", "OUT": str(folder / "out")}
    command = [ROOT / "benchmarks" / "gpu_check.sh", *arguments]
    return subprocess.run(command, env=env | variables, capture_output=True, text=True)


def test_the_script_is_sound_bash() -> None:
    script = ROOT / "benchmarks" / "gpu_check.sh"
    assert os.access(script, os.X_OK)
    shellcheck = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([shellcheck, "--enable", "all", "--exclude", "SC2310,SC2312,SC2250", script], text=True)
    assert done.returncode == 0


@pytest.mark.parametrize("arguments", [["--gpu"], ["--matrix"], ["--minutes", "0"], ["--minutes", "soon"]])
def test_wrong_usage_is_refused_with_the_line_of_usage(arguments: list[str], tmp_path: Path) -> None:
    done = check(tmp_path, *arguments)
    assert done.returncode == 2
    assert "benchmarks/gpu_check.sh [--cpu]" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_a_python_with_torch_it_says_so_and_is_undecided(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    done = check(tmp_path, HARNESS_PYTHON=str(bare / "bin" / "python"))
    assert done.returncode == 3
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["verdict"] == "undecided"
    assert "without torch" in summary["parts"][0]["why"]
    assert "HARNESS_PYTHON=" in summary["parts"][0]["why"]


@pytest.mark.train
def test_on_the_cpu_it_runs_what_it_is_given_and_leaves_everything(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text("name: small\nmatrix: {packing: reference, attention: [auto, reference]}\n" + TINY)
    (tmp_path / "t.yaml").write_text("name: speed\nmatrix: {packing: reference}\n" + TINY)
    files = ["--matrix", str(tmp_path / "m.yaml"), "--throughput", str(tmp_path / "t.yaml")]
    done = check(tmp_path, "--cpu", *files)
    assert done.returncode == 3, done.stdout + done.stderr  # no GPU tests, no figures
    out = tmp_path / "out"
    assert {path.name for path in out.iterdir()} == {
        *("summary.md", "summary.json", "report.json", "report.html", "throughput.json", "throughput.html", "log.txt")
    }
    summary = json.loads((out / "summary.json").read_text())
    assert {part["name"]: part["verdict"] for part in summary["parts"]} == {
        "environment": "pass",
        "facts": "pass",
        "tests": "undecided",
        "matrix": "pass",
        "throughput": "pass",
    }
    assert summary["outcomes"]["throughput"] == {"PASS": 2}
    assert summary["facts"]["cuda"] is False
    assert (out / "summary.md").read_text() in done.stdout
    assert "tests: no CUDA device" in summary["skipped"]


@pytest.fixture(scope="module")
def summaries() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        import gpu_summary

        yield gpu_summary


def parts(work: Path, *rows: str) -> None:
    names = {row.split("\t")[0] for row in rows}
    rest = [
        f"{one}\t0\t1\t9\t" for one in ("environment", "facts", "tests", "matrix", "throughput") if one not in names
    ]
    (work / "parts.tsv").write_text("".join(f"{row}\n" for row in (*rest, *rows)))


def report(folder: Path, name: str, **changes: Any) -> None:
    made = {"verdict": "pass", "counts": {"PASS": 1, "FAIL": 0}, "cells": [CELL], "rejected": []}
    (folder / f"{name}.json").write_text(json.dumps(made | changes))


def measured(**changes: Any) -> dict[str, Any]:
    return {**CELL, "throughput": {**CELL["throughput"], **changes}}  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("row", "code", "why"),
    [
        ("tests\t1\t5\t9\t", 1, "exit code 1, see log.txt"),
        ("tests\t5\t5\t9\t", 3, "exit code 5, see log.txt"),  # pytest found no tests
        ("matrix\t124\t9\t9\tran out of its 9 s", 3, "ran out of its 9 s"),
        ("throughput\tskipped\t0\t0\tno time left", 3, "no time left"),
        ("facts\t1\t9\t9\t", 3, "exit code 1, see log.txt"),
        ("matrix\t3\t9\t9\t", 3, "exit code 3, see log.txt"),
    ],
)
def test_each_part_counts_into_the_exit_code(
    summaries: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: str, code: int, why: str
) -> None:
    monkeypatch.setattr(summaries, "figures_of", lambda _: [])
    parts(tmp_path)
    assert summaries.main(tmp_path, tmp_path) == 0
    parts(tmp_path, row)
    assert summaries.main(tmp_path, tmp_path) == code
    assert why in (tmp_path / "summary.md").read_text()


def test_a_cell_that_failed_in_a_part_that_ran_out_of_time_is_a_failure(summaries: Any, tmp_path: Path) -> None:
    parts(tmp_path, "matrix\t124\t9\t9\tran out of its 9 s")
    failed = {**CELL, "outcome": "FAIL", "findings": [{"message": "loss differs\nby far"}]}
    rejected = [{"rule": "device.no-gpu", "reason": "no GPU"}] * 2
    report(tmp_path, "report", verdict="fail", cells=[failed], counts={"FAIL": 1}, rejected=rejected)
    assert summaries.main(tmp_path, tmp_path) == 1
    text = (tmp_path / "summary.md").read_text()
    assert "- FAIL c-1: loss differs\n" in text
    assert "- matrix: 2 cells rejected by device.no-gpu: no GPU\n" in text


def test_tests_are_counted_with_the_reasons_of_skips(summaries: Any, tmp_path: Path) -> None:
    (tmp_path / "tests.xml").write_text(
        '<testsuites><testsuite><testcase classname="a" name="b"/><testcase classname="a" name="c"><failure message="x '
        'is 1&#10;more"/></testcase><testcase name="d"><skipped message="no TE"/></testcase></testsuite></testsuites>'
    )
    counts, failures, skips = summaries.read_junit(tmp_path / "tests.xml")
    assert counts == {"passed": 1, "failure": 1, "skipped": 1}
    assert failures == ["test a::c: x is 1"]
    assert skips == ["1 tests: no TE"]
    (tmp_path / "tests.xml").write_text("<testsuites>")  # cut off
    assert summaries.read_junit(tmp_path / "tests.xml") == ({}, [], [])


def test_fused_and_unfused_rotary_functions_are_told_apart(summaries: Any) -> None:
    rounds = {"rotary, 4 documents": [1.0, 1.1, 9.0], "rotary, 1024 documents": [3.3, 3.4, 3.2]}
    other = {"rotary_other, 4 documents": [1.0], "rotary_other, 1024 documents": [1.1], "step, 4 documents": [1.0]}
    (figure,) = [
        one
        for one in summaries.figures_of({"cells": [CELL, measured(rounds_s=rounds | other)]})
        if one.name.startswith("rotary")
    ]
    assert (figure.measured, figure.verdict) == ("3 times, the other way 1.1: factor 2.73", "pass")
    alike = {name: [1.0] for name in rounds | other}
    figures = summaries.figures_of({"cells": [measured(rounds_s=alike)]})
    assert "fail" in {one.verdict for one in figures if one.name.startswith("rotary")}


def test_figures_that_nothing_measured_are_undecided(summaries: Any) -> None:
    assert {one.verdict for one in summaries.figures_of(None)} == {"undecided"}
    assert {one.verdict for one in summaries.figures_of({"cells": [CELL]})} == {"undecided"}
