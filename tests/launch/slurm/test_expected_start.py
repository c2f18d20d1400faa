from __future__ import annotations

from pathlib import Path

import pytest

from harness.launch.slurm.client import SlurmClient

# As Slurm 22.05 prints it.
SAYS = "sbatch: Job 17 to start at 2027-01-31T12:00:05 using 8 processors on nodes n1 in partition main"


def sbatch(folder: Path, monkeypatch: pytest.MonkeyPatch, said: str, code: int) -> None:
    program = folder / "sbatch"
    program.write_text(f"#!/bin/sh\n[ \"$*\" = '--test-only a b.sbatch' ] || exit 9\necho '{said}' >&2\nexit {code}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.chdir(folder)
    Path("a b.sbatch").write_text("#!/bin/bash\n")


def test_the_expected_start_is_the_one_that_slurm_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sbatch(tmp_path, monkeypatch, SAYS, 0)
    assert SlurmClient().expected_start(Path("a b.sbatch")) == "2027-01-31T12:00:05"


@pytest.mark.parametrize(("said", "code"), [("allocation failure: Invalid partition", 1), (SAYS, 1), ("", 0)])
def test_a_refusal_is_no_start(said: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sbatch(tmp_path, monkeypatch, said, code)
    assert SlurmClient().expected_start(Path("a b.sbatch")) is None


def test_without_slurm_there_is_no_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sbatch(tmp_path, monkeypatch, SAYS, 0)
    (tmp_path / "sbatch").unlink()
    assert SlurmClient().expected_start(Path("a b.sbatch")) is None
