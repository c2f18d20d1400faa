"""Slurm accepts docs/examples/scrontab.example, which starts nightly.sh every night."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.slurm.lab import SlurmLab
from tests.slurm.machine import SEARCH_PATH


@pytest.mark.slurm
@pytest.mark.skipif(
    not shutil.which("scrontab", path=SEARCH_PATH), reason="Debian's packages of Slurm have no scrontab"
)
def test_slurm_accepts_the_example_of_a_scrontab(lab: SlurmLab, tmp_path: Path, root: Path) -> None:
    text = (root / "docs" / "examples" / "scrontab.example").read_text()
    for example, here in (("--partition=cpu", "--partition=main"), ("--mem=8G", "--mem=2G")):
        assert text.count(example) == 2
        text = text.replace(example, here)
    (tmp_path / "table").write_text(text)
    try:
        lab.output("scrontab", str(tmp_path / "table"))
        jobs = [line.split("|") for line in lab.output("squeue", "-h", "-o", "%j|%T|%l|%S").splitlines()]
        assert sorted(job[:3] for job in jobs) == [
            ["packing-nightly", "PENDING", "10:00:00"],
            ["packing-weekly", "PENDING", "1-00:00:00"],
        ]
        assert all(job[3].endswith("T01:30:00") for job in jobs)
    finally:
        lab.run("scrontab", "-r")
