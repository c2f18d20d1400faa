"""matrices/releases.yaml: wheels fail where they are known to, and only there. Makes an environment for each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.app.conftest import harness, only_run

pytestmark = pytest.mark.train
RELEASES = ("core0140", "core0161", "core0171", "core0182", "core0192")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, root: Path) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("releases")
    only = [option for release in RELEASES for option in ("--only", f"*-{release}")]
    done = harness("run", root / "matrices" / "releases.yaml", *only, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads((only_run(folder / "reports") / "report.json").read_text())
    return found


def named(report: dict[str, Any], name: str) -> dict[str, Any]:
    (cell,) = [cell for cell in report["cells"] if cell["id"].rpartition("-")[0] == name]
    found: dict[str, Any] = cell
    return found


def places(cell: dict[str, Any], check: str, field: str | None = None) -> list[tuple[list[int], list[int]]]:
    """(stages, ranks) of each finding of a check."""
    found = [item["where"] for item in cell["findings"] if item["check"] == check]
    return [(where["stages"], where["ranks"]) for where in found if field is None or where.get("field") == field]


@pytest.mark.parametrize("release", RELEASES)
def test_the_controls_pass_on_every_release(report: dict[str, Any], release: str) -> None:
    for control in ("tp1-pp1-cp1-unpacked", "tp2-pp1-cp2-unpacked", "tp2-pp2-cp2-reference"):
        assert named(report, f"{control}-{release}")["outcome"] == "PASS"


def test_0_17_leaves_tp_ranks_of_middle_and_last_stages_without_metadata(report: dict[str, Any]) -> None:
    cell = named(report, "tp2-pp4-cp1-sft-core0171")
    assert (cell["outcome"], cell["lanes"]["metadata"]) == ("XFAIL", "fail")
    assert places(cell, "params_present") == [([3], [7])]
    assert places(cell, "params_agree_plan", "cu_seqlens_q") == [([1, 2], [3, 5])]
    assert places(cell, "params_agree_plan", "max_seqlen_q") == [([1, 2], [3, 5])]


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("tp2-pp4-cp1-sft-core0182", "PASS"),
        ("tp2-pp4-cp1-sft-core0192", "PASS"),
        ("tp2-pp1-cp1-sft-mbs2-core0171", "XFAIL"),
        ("tp2-pp1-cp1-sft-mbs2-core0182", "XFAIL"),
        ("tp2-pp1-cp1-sft-mbs2-core0192", "PASS"),
    ],
)
def test_later_releases_pass_and_two_rows_per_micro_batch_only_from_0_19(
    report: dict[str, Any], name: str, outcome: str
) -> None:
    assert named(report, name)["outcome"] == outcome


def test_wheels_that_do_not_hold_sft_are_rejected(report: dict[str, Any]) -> None:
    rejected = {cell["id"].rpartition("-")[0]: cell["reason"] for cell in report["rejected"]}
    expected = [f"tp2-pp{pp}-cp1-sft{rows}-{old}" for old in RELEASES[:2] for pp, rows in ((4, ""), (1, "-mbs2"))]
    assert sorted(rejected) == sorted(expected)
    assert all("no importable megatron.training.datasets.sft_dataset" in reason for reason in rejected.values())
