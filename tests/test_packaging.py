"""The wheel, in a separate environment without torch, outside the checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from harness.launch.stacks.build import uv_environment
from tests.goldens import assert_golden

GOLDEN = Path(__file__).parent / "golden" / "first_hour.txt"
ONE_CELL = """
name: one
model: {{layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocab: 64}}
train: {{steps: 1, global_batch: 4, seq_length: 64}}
matrix: {{packing: reference, stack: ready}}
stacks: {{ready: {{python: "{python}"}}}}
"""


def uv(*arguments: str | Path, cwd: Path) -> None:
    command = [Path(sys.executable).with_name("uv"), *arguments]
    done = subprocess.run(command, cwd=cwd, env=uv_environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as users build it: the source distribution first, and the wheel from that."""
    folder = tmp_path_factory.mktemp("dist")
    uv("build", "--quiet", "--build-constraints", "constraints.txt", "--out-dir", folder, cwd=root)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `harness` of a fresh environment that holds only the launcher's packages."""
    place = tmp_path_factory.mktemp("environment") / "venv"
    uv("venv", "--quiet", "--python", sys.executable, place, cwd=root)
    python = place / "bin" / "python"
    uv("pip", "install", "--quiet", "--python", python, "--constraints", "constraints.txt", wheel, cwd=root)
    return place / "bin" / "harness"


def run(harness: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([harness, *arguments], cwd=cwd, env=uv_environment(), capture_output=True, text=True)


def test_the_wheel_has_every_file_that_is_no_module_once(wheel: Path, root: Path) -> None:
    with ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith(".py") and ".dist-info/" not in name]
    folders = ("matrices", "sbatch_templates")
    shipped = [file.relative_to(root) for folder in folders for file in (root / folder).rglob("*") if file.is_file()]
    pages = [*(root / "docs").glob("*.md"), *(root / "docs" / "generated").glob("*.md")]  # for `harness explain`
    shipped += [file.relative_to(root) for file in pages]
    listed = subprocess.run(["git", "check-ignore", *map(str, shipped)], cwd=root, capture_output=True, text=True)
    kept = {f"harness/shipped/{file}" for file in shipped if str(file) not in listed.stdout.splitlines()}
    templates = {str(file.relative_to(root)) for file in root.glob("harness/**/templates/*")}
    assert {"harness/shipped/matrices/smoke.yaml", "harness/shipped/matrices/clusters/slurm-lab.yaml"} <= kept
    assert sorted(names) == sorted({"harness/py.typed", *kept, *templates})


def test_an_installed_harness_plans_as_the_checkout_does(installed: Path, root: Path, tmp_path: Path) -> None:
    for arguments in (("--version",), ("schema",)):
        checkout = run(Path(sys.executable).with_name("harness"), *arguments, cwd=root)
        assert run(installed, *arguments, cwd=tmp_path).stdout == checkout.stdout != ""
    checkout = run(Path(sys.executable).with_name("harness"), "plan", "matrices/smoke.yaml", cwd=root)
    assert run(installed, "plan", "smoke", cwd=tmp_path).stdout == checkout.stdout != ""


def test_an_installed_harness_writes_job_files(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(ONE_CELL.format(python=sys.executable))
    done = run(installed, "run", "one.yaml", "--cluster", "slurm-lab", "--dry-run", "--run-dir", "runs", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    job, *_ = (tmp_path / "runs").rglob("*.sbatch")
    assert "#SBATCH" in job.read_text()


def test_cells_without_a_stack_need_torch_beside_the_launcher(installed: Path, tmp_path: Path) -> None:
    for arguments in (("run", "smoke"), ("selftest",)):
        done = run(installed, *arguments, cwd=tmp_path)
        assert done.returncode == 2, done.stdout
        (line,) = done.stderr.splitlines()
        assert "no torch" in line
        assert "packing-harness[node]" in line
    assert list(tmp_path.iterdir()) == []
    doctor = run(installed, "doctor", cwd=tmp_path)
    assert "warn  torch" in doctor.stdout


# What differs between two runs of the same commands: progress, times, ids, packages without a pin, unwritten memory.
_PROGRESS = re.compile(
    r"(?m)^(\[ *\d+/\d+\]|building |importing |imported in |about |judging |writing |round \d+: \d+ cells).*\n"
)
_CHANGING = (
    (r"first-\d{8}T\d{6}Z-[0-9a-f]{4}", "RUN"),
    (r"\d{4}-\d\d-\d\dT[\d:]+(Z|\+00:00)?", "DATE"),
    (r"(?<=max_seqlen_q is )-?\d+", "WHATEVER"),  # before hashes: it can have eight digits
    (r"(?<=-)[0-9a-f]{8}\b", "HASH"),
    (r"\b\d+(\.\d+)? (ms|s|min|h)( \d+ (s|min))?\b", "TIME"),
    (r"(?m)^(DATE  .* )[\d.]+$", r"\1TIME"),
    (r"(?m)(?<=  core-0.17.1 -> core-0.19.2: ).*(megatron-core [^;\n]*).*", r"\1"),
    (r" {2,}(?=\S)", "  "),
    (r"(?m) +$", ""),
)
_OUTSIDE = ("CI", "GITHUB_", "GITLAB_", "HARNESS_HISTORY")  # variables of a CI system or of the user
_SFT_ON_FOUR_RANKS, _LAST_STAGE = "tp2-pp2-cp1-sft-*", "last-stage-tp-ranks-without-metadata"
_MIDDLE_STAGES = "tp2-pp4-cp1-sft-*"
_HOUR = (
    ("init",),
    ("run", "matrix.yaml"),
    # A cell of the matrix, broken on purpose; the history does not record this run.
    ("run", "matrix.yaml", "--only", _SFT_ON_FOUR_RANKS, "--set", "train.steps=0", "-q", "--fault", _LAST_STAGE),
    # The layout that the file suggests, on a release with a known bug; without steps, a run only compares batches.
    (
        "run",
        "matrix.yaml",
        "--only",
        _MIDDLE_STAGES,
        "--set",
        "train.steps=0",
        "--set",
        "matrix.stack=core-0.17.1",
        "-q",
    ),
    ("explain", _MIDDLE_STAGES),
    ("explain", "params_present"),
    ("shrink", "latest", _MIDDLE_STAGES, "--issue", "--rounds", "1"),
    ("run", "matrix.yaml", "--only", _MIDDLE_STAGES, "--set", "train.steps=0", "-q"),
    ("compare", "BROKEN", "latest"),
    ("history",),
)


def _said(harness: Path, arguments: tuple[str, ...], cwd: Path) -> str:
    """A command with what it prints, and its exit code, without what changes from run to run."""
    runs = sorted(path.name for path in (cwd / "reports").glob("first-*"))
    given = [runs[2] if word == "BROKEN" else word for word in arguments]
    env = {name: value for name, value in uv_environment().items() if not name.startswith(_OUTSIDE)}
    two_cores = sorted(os.sched_getaffinity(0))[:2]
    done = subprocess.run(
        ["taskset", "--cpu-list", ",".join(map(str, two_cores)), harness, *given],
        cwd=cwd,
        env={**env, "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
    return f"$ harness {' '.join(arguments)}\n{_steady(done.stdout + done.stderr)}exit code {done.returncode}\n\n"


def _steady(text: str) -> str:
    text = _PROGRESS.sub("", text)
    for pattern, word in _CHANGING:
        text = re.sub(pattern, word, text)
    return text


@pytest.mark.train
def test_the_first_hour(installed: Path, tmp_path: Path) -> None:
    """From an empty folder: a green run, one broken on purpose, a red one, why, a reproducer, the fix, the history."""
    transcript = ""
    for number, arguments in enumerate(_HOUR):
        transcript += _said(installed, arguments, tmp_path)
        if number == 2:
            matrix = tmp_path / "matrix.yaml"
            matrix.write_text(matrix.read_text().replace("# - {tp: 2, pp: 4, cp: 1}", "- {tp: 2, pp: 4, cp: 1}"))
        if number == 3:
            (report,) = [
                one for one in tmp_path.glob("reports/first-*/report.md") if one.read_text().startswith("# FAIL:")
            ]
            transcript += f"$ cat report.md\n{_steady(report.read_text())}\n"
    assert any("<svg" in page.read_text() for page in tmp_path.glob("reports/first-*/report.html"))
    assert_golden(GOLDEN, transcript)
