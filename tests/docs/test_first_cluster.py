"""The first run on a new cluster, in docs/clusters.md: checks that need no cluster; tests/slurm has the others."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cli.conftest import harness
from tests.docs.first_cluster import PAGE, profile, shown


def test_the_plan_is_the_one_that_the_page_shows(root: Path, tmp_path: Path) -> None:
    (tmp_path / "my-cluster.yaml").write_text(profile())
    done = harness("plan", root / "matrices" / "first_cluster.yaml", "--cluster", "./my-cluster.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = shown("7 cells to run")
    planned = lines[: lines.index("Nothing is submitted. Job files:")]
    assert len(planned) == 7
    assert [line for line in planned if line not in done.stdout.splitlines()] == []


def test_profiles_and_cell_patterns_of_the_page_exist(root: Path, tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    names = re.findall(r"`([\w-]+\.yaml)` \|", page)
    assert len(names) == 3
    assert [name for name in names if not (root / "matrices" / "clusters" / name).is_file()] == []
    patterns = re.findall(r"first_cluster\.yaml --cluster my-cluster --only '([^']+)'", page)
    assert len(patterns) >= 2
    for pattern in patterns:
        done = harness("run", root / "matrices" / "first_cluster.yaml", "--only", pattern, "--dry-run", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
