"""The wheel, in a separate environment without torch, outside the checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from harness.infra.stacks.build import uv_environment

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
    shipped += [file.relative_to(root) for file in (root / "docs").glob("*.md")]  # for `harness explain`
    listed = subprocess.run(["git", "check-ignore", *map(str, shipped)], cwd=root, capture_output=True, text=True)
    kept = {f"harness/shipped/{file}" for file in shipped if str(file) not in listed.stdout.splitlines()}
    templates = {str(file.relative_to(root)) for file in root.glob("harness/infra/*/templates/*")}
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
    assert "FAIL  torch" in doctor.stdout


@pytest.mark.train
def test_cells_of_a_stack_run_and_are_judged_without_torch_beside_the_launcher(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(ONE_CELL.format(python=sys.executable))
    done = run(installed, "run", "one.yaml", "--run-dir", "runs", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (page,) = (tmp_path / "runs").glob("*/report.html")
    assert "<svg" in page.read_text()
