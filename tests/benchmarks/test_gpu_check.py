"""The GPU check on a machine without a GPU: every part says what became of it; and what its summary makes of files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TINY = "model: {layers: 1}\ntrain: {steps: 1}\nchecks: {canaries: none}\n"
PARTS = ("environment", "facts", "tests", "matrix", "overhead", "throughput")
CELL = {"id": "c-1", "outcome": "PASS", "reason": "", "findings": [], "throughput": {"ratios": []}}
KEPT = "probe over bare: 1.0012 times (0.9990 to 1.0040 in 21 rounds)\n"


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


def test_the_page_shows_options_that_exist_and_the_limits_of_the_parts() -> None:
    page = (ROOT / "docs" / "throughput.md").read_text().partition("\n## The GPU check\n")[2]
    script = (ROOT / "benchmarks" / "gpu_check.sh").read_text()
    options = set(re.findall(r"--[a-z]+", page))
    known = set(re.findall(r"--[a-z]+", script + (ROOT / "scripts" / "gpu_wheels.py").read_text()))
    assert {"--cpu", "--minutes", "--python", "--machine"} <= options
    assert options - known == set()
    rows = dict(re.findall(r"^\| (\w+) \| (\d+) \|", page, re.MULTILINE))
    limits = dict(re.findall(r"^ *(?:part|cells) (\w+) (\d+) ", script, re.MULTILINE))
    limits["environment"] = re.findall(r"limit_s=\$\(\((\d+)", script)[0]
    assert rows == limits


@pytest.mark.slow
def test_the_command_that_runs_the_gpu_tests_collects_them(tmp_path: Path) -> None:
    """Without a GPU the check skips its tests, so that only this test sees whether pytest takes the command."""
    script = (ROOT / "benchmarks" / "gpu_check.sh").read_text()
    branch = re.findall(r"^if grep .*\n((?:  .*\n)+)elif ", script, re.MULTILINE)[0]
    bash = ["bash", "-uc", f'part() {{ shift 2; "$@" --collect-only; }}\n{branch}']
    env = {**os.environ, "python": sys.executable, "tests": "tests/gpu", "out": str(tmp_path)}
    done = subprocess.run(bash, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    files = {path.name for path in (ROOT / "tests" / "gpu").glob("test_*.py")}
    assert set(re.findall(r"^tests/gpu/(\w+\.py)::", done.stdout, re.MULTILINE)) == files


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
    (tmp_path / "m.yaml").write_text("name: small\nmatrix: {packing: reference}\n" + TINY)
    (tmp_path / "t.yaml").write_text("name: speed\nmatrix: {packing: reference}\n" + TINY)
    files = ["--matrix", str(tmp_path / "m.yaml"), "--throughput", str(tmp_path / "t.yaml")]
    done = check(tmp_path, "--cpu", "--minutes", "90", *files)  # a busy machine must not decide
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
        "overhead": "undecided",
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
    """Parts that passed, but for these."""
    told = {row.split("\t")[0] for row in rows}
    rest = [f"{one}\t0\t1\t9\t" for one in PARTS if one not in told]
    (work / "parts.tsv").write_text("".join(f"{row}\n" for row in (*rest, *rows)))


def report(folder: Path, name: str, **changes: Any) -> None:
    made = {"verdict": "pass", "counts": {"PASS": 1, "FAIL": 0}, "cells": [CELL], "rejected": []}
    (folder / f"{name}.json").write_text(json.dumps(made | changes))


@pytest.mark.parametrize(
    ("row", "code", "why"),
    [
        ("tests\t1\t5\t9\t", 1, "exit code 1, see log.txt"),
        ("tests\t5\t5\t9\t", 3, "exit code 5, see log.txt"),  # pytest found no tests
        ("matrix\t124\t9\t9\texceeded its limit of 9 s", 3, "exceeded its limit of 9 s"),
        ("throughput\tskipped\t0\t0\tno time left", 3, "no time left"),
        ("facts\t1\t9\t9\t", 3, "exit code 1, see log.txt"),
        ("matrix\t3\t9\t9\t", 3, "exit code 3, see log.txt"),
    ],
)
def test_each_part_counts_into_the_exit_code(
    summaries: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: str, code: int, why: str
) -> None:
    monkeypatch.setattr(summaries, "figures_of", lambda *_: [])
    parts(tmp_path)
    assert summaries.main(tmp_path, tmp_path) == 0
    parts(tmp_path, row)
    assert summaries.main(tmp_path, tmp_path) == code
    assert why in (tmp_path / "summary.md").read_text()


def test_a_cell_that_failed_in_a_part_that_ran_out_of_time_is_a_failure(summaries: Any, tmp_path: Path) -> None:
    parts(tmp_path, "matrix\t124\t9\t9\texceeded its limit of 9 s")
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


def ratio(what: str, median: float, verdict: str = "no difference") -> dict[str, Any]:
    return {
        "what": what,
        "median": median,
        "low": 0.98 * median,
        "high": 1.02 * median,
        "rounds": 7,
        "verdict": verdict,
    }


def figures(summaries: Any, *ratios: dict[str, Any], overhead: str = KEPT) -> dict[str, tuple[str, str]]:
    """Name -> measured and verdict, of a report whose only cell has these ratios."""
    report = {"cells": [{**CELL, "throughput": {"ratios": list(ratios)}}]}
    return {one.name: (one.measured, one.verdict) for one in summaries.figures_of(report, overhead)}


FULL, FUSED = "packed tokens/s over slots/s of full rows", "rotary function, unfused over fused"


@pytest.mark.parametrize(("median", "verdict"), [(1.05, "pass"), (1.12, "undecided"), (1.3, "fail")])
def test_tokens_of_packed_rows_are_held_to_nine_tenths_of_full_rows(
    summaries: Any, median: float, verdict: str
) -> None:
    assert figures(summaries, ratio("packed per real token over full rows per slot", median))[FULL][1] == verdict


def test_fused_and_unfused_rotary_functions_must_be_told_apart_with_most_documents(summaries: Any) -> None:
    few = ratio("rotary function, unfused over fused, 4 documents", 1.0)
    many = ratio("rotary function, unfused over fused, 1024 documents", 20.0, "slower")
    said = "20 times (19.6 to 20.4 in 7 rounds), 1024 documents"
    assert figures(summaries, few, many)[FUSED] == (said, "pass")
    assert figures(summaries, few)[FUSED][1] == "fail"


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        (KEPT, "pass"),
        ("probe over bare: 1.0150 times (0.9990 to 1.0400 in 21 rounds)", "undecided"),
        ("probe over bare: 1.0500 times (1.0200 to 1.0600 in 21 rounds)", "fail"),
        ("Traceback", "undecided"),
    ],
)
def test_the_overhead_of_a_timed_step_is_held_to_one_hundredth(summaries: Any, said: str, verdict: str) -> None:
    assert figures(summaries, overhead=said)["timed step over a bare Megatron loop"][1] == verdict


def test_rates_are_shown_and_figures_that_nothing_measured_are_undecided(summaries: Any) -> None:
    assert {one.verdict for one in summaries.figures_of(None, "")} == {"undecided"}
    load = {
        "load": "packed",
        "documents": 0,
        "real_tokens_per_s": 50123.4,
        "slots_per_s": 55000.0,
        "tflops_per_s": 401.0,
    }
    cell = {**CELL, "throughput": {"ratios": [], "loads": [{**load, "mfu": 0.405}, {**load, "mfu": None}]}}
    rates = [one for one in summaries.figures_of({"cells": [cell]}, "") if one.name == "rate"]
    assert rates[0].measured == "packed: 50,123 real tokens/s in 55,000 slots/s, 401 TFLOP/s, MFU 40.5 %"
    assert rates[1].measured.endswith("401 TFLOP/s")
    assert {one.verdict for one in rates} == {"shown"}
