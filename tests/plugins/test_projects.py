"""A third party's project: its checkouts are tested, gated and bisected as Megatron-LM's are."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import only_run
from tests.launch.stacks.test_checkout import git
from tests.plugins.conftest import plugged

RIGHT, WRONG = "mask.sum()\n", "mask.sum() + 1\n"


@pytest.fixture
def clone(root: Path, tmp_path: Path) -> Path:
    """A repository of the framework with four commits; the third, tagged `broken`, counts a token too many."""
    place = tmp_path / "fork"
    shutil.copytree(root / "tests" / "plugins" / "framework", place)
    losses = place / "src" / "example_framework" / "losses.py"
    git(place, "init", "--quiet")
    for number, (old, new) in enumerate([("", ""), ("", ""), (RIGHT, WRONG), ("", "")]):
        losses.write_text(losses.read_text().replace(old, new) if old else f"{losses.read_text()}# {number}\n")
        git(place, "add", ".")
        git(place, "commit", "--quiet", "-m", f"change {number}")
        git(place, "tag", "broken" if old else f"c{number}")
    return place


def report_of(folder: Path) -> Any:
    return json.loads((only_run(folder / "reports") / "report.json").read_text())


def cells(report: Any) -> list[Any]:
    return [cell for cell in report["cells"] if cell["role"] == "cell"]


@pytest.mark.train
def test_its_gate_runs_in_a_checkout_and_sees_the_commit_that_broke_its_loss(clone: Path, site: Path) -> None:
    git(clone, "checkout", "--quiet", "c1")
    done = plugged("run", "gate", "--run-dir", clone.parent / "reports", cwd=clone / "src", site=site)
    assert done.returncode == 0, done.stdout + done.stderr
    (checkout,) = report_of(clone.parent)["provenance"]["stacks"]["fork"]["checkouts"]
    assert (checkout["project"], checkout["commit"]) == ("example-framework", git(clone, "rev-parse", "c1"))
    shutil.rmtree(clone.parent / "reports")
    git(clone, "checkout", "--quiet", "c3")
    done = plugged("run", "gate", "--run-dir", clone.parent / "reports", cwd=clone, site=site)
    assert done.returncode == 1, done.stdout + done.stderr
    (cell,) = cells(report_of(clone.parent))
    assert "token_count" in {finding["check"] for finding in cell["findings"]}


@pytest.mark.train
def test_init_writes_a_matrix_that_tests_it(clone: Path, site: Path) -> None:
    git(clone, "checkout", "--quiet", "c1")
    assert plugged("init", "tests", cwd=clone, site=site).returncode == 0
    options = ["--run-dir", clone.parent / "reports", "-k", "tp1 and cp1"]
    done = plugged("run", "tests/matrix.yaml", *options, cwd=clone, site=site)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {cell["axes"]["packing"] for cell in cells(report_of(clone.parent))} == {"reference", "framework"}


@pytest.mark.train
def test_the_first_bad_commit_of_its_repository_is_found_from_anywhere(clone: Path, site: Path, tmp_path: Path) -> None:
    ends = ["--good", "c0", "--bad", "c3", "--no-shrink"]
    done = plugged("bisect", "gate", "--repo", clone, *ends, cwd=tmp_path, site=site)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"first bad commit of example-framework: {git(clone, 'rev-parse', 'broken')[:12]}" in done.stdout


@pytest.mark.train
def test_a_commit_of_it_is_reverted_in_a_stack(clone: Path, site: Path, tmp_path: Path) -> None:
    text = (site / "packing_example" / "gate.yaml").read_text()
    layer = (
        f"[{{checkout: {clone}, ref: c3, revert: [broken], package: example-framework}}, {{python: {sys.executable}}}]"
    )
    (tmp_path / "reverted.yaml").write_text(text.replace("fork: working-tree", f"fork: {layer}"))
    done = plugged("run", "reverted.yaml", cwd=tmp_path, site=site)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_is_listed_and_its_name_is_a_value(site: Path, tmp_path: Path) -> None:
    listed = plugged("list", "projects", cwd=tmp_path, site=site).stdout.splitlines()
    (line,) = [line for line in listed if line.startswith("example-framework")]
    assert "src/example_framework" in line and "packing framework; gate gate" in line
    assert '"example-framework"' in plugged("schema", cwd=tmp_path, site=site).stdout
