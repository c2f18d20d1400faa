"""matrices/releases.yaml: wheels fail where they are known to, and only there. Builds an environment for each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import harness, only_run
from tests.processes import HUNG_S

pytestmark = pytest.mark.train
RELEASES = ("core0140", "core0161", "core0171", "core0182", "core0192")
LIMIT_S = 1800  # environments are made and Transformer Engine is compiled when this machine has none


@dataclass(frozen=True)
class Ran:
    run: Path
    report: dict[str, Any]

    @property
    def entries(self) -> dict[str, dict[str, Any]]:
        """The xfail entries, by the names of their cells."""
        cells = json.loads((self.run / "plan.json").read_text())["expansion"]["cells"]
        return {cell["id"].rpartition("-")[0]: cell["xfail"] for cell in cells if cell["xfail"]}

    def cell(self, name: str) -> dict[str, Any]:
        (cell,) = [cell for cell in self.report["cells"] if cell["id"].rpartition("-")[0] == name]
        found: dict[str, Any] = cell
        return found


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Ran:
    folder = tmp_path_factory.mktemp("releases")
    done = harness("run", root / "matrices" / "releases.yaml", cwd=folder, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    run = only_run(folder / "reports")
    return Ran(run, json.loads((run / "report.json").read_text()))


def places(cell: dict[str, Any], check: str, field: str | None = None) -> list[tuple[list[int], list[int]]]:
    """(stages, ranks) of each finding of a check."""
    found = [item["where"] for item in cell["findings"] if item["check"] == check]
    return [(where["stages"], where["ranks"]) for where in found if field is None or where.get("field") == field]


def lanes(cell: dict[str, Any]) -> tuple[str, str]:
    return cell["lanes"]["metadata"], cell["lanes"]["numerics"]


@pytest.mark.parametrize("release", RELEASES)
def test_the_controls_pass_on_every_release(ran: Ran, release: str) -> None:
    for control in ("tp1-pp1-cp1-unpacked", "tp2-pp1-cp2-unpacked", "tp2-pp2-cp2-reference"):
        assert ran.cell(f"{control}-{release}")["outcome"] == "PASS"


def test_just_the_known_bugs_fail_and_all_else_passes(ran: Ran) -> None:
    assert ran.entries.keys() >= {
        "tp2-pp4-cp1-sft-core0171",
        "tp2-pp1-cp1-sft-mbs2-core0171",
        "tp2-pp1-cp1-sft-mbs2-core0182",
        "tp1-pp1-cp2-skyrl-skyrl010",
        "tp1-pp4-cp1-bridge_offline-bridge042",
    }
    assert all(entry["strict"] and entry["lanes"] and entry["message_contains"] for entry in ran.entries.values())
    outcomes = {cell["id"].rpartition("-")[0]: cell["outcome"] for cell in ran.report["cells"]}
    assert outcomes == {name: "XFAIL" if name in ran.entries else "PASS" for name in outcomes}


@pytest.mark.parametrize(
    "name",
    [
        "tp2-pp4-cp1-sft-core0182",
        "tp2-pp4-cp1-sft-core0192",
        "tp2-pp1-cp1-sft-mbs2-core0192",
        "tp1-pp4-cp1-bridge_offline-bridge050",
        "tp1-pp4-cp1-bridge_offline-bridge062",
        "tp1-pp1-cp2-skyrl-skyrl020",
        "tp2-pp1-cp2-skyrl-skyrl040",
        "tp1-pp4-cp1-bridge_in_batch-mbs2-bridge062",
        "tp2-pp1-cp2-bridge_long-bridge062",
    ],
)
def test_releases_that_repaired_a_bug_pass(ran: Ran, name: str) -> None:
    assert ran.cell(name)["outcome"] == "PASS"


KNOWN = {
    "tp2-pp4-cp1-sft-core0171": "Megatron-LM issue 4092, fixed in megatron-core 0.18.0",
    "tp2-pp1-cp1-sft-mbs2-core0171": "Megatron-LM pull requests 5454 and 5635, fixed in megatron-core 0.19.0",
    "tp2-pp1-cp1-sft-mbs2-core0182": "Megatron-LM pull requests 5454 and 5635, fixed in megatron-core 0.19.0",
    "tp1-pp1-cp2-skyrl-skyrl010": "SkyRL pull request 1407, fixed in skyrl 0.2.0",
    "tp1-pp4-cp1-bridge_offline-bridge042": "Megatron-Bridge issue 2952, fixed in megatron-bridge 0.5.0",
}


@pytest.mark.parametrize("name", KNOWN)
def test_each_names_the_release_that_fixed_it(ran: Ran, name: str) -> None:
    named = [finding["known"].partition(" (")[0] for finding in ran.cell(name)["findings"]]
    assert set(named) - {""} == {KNOWN[name]}


def test_0_17_leaves_tp_ranks_of_middle_and_last_stages_without_metadata(ran: Ran) -> None:
    cell = ran.cell("tp2-pp4-cp1-sft-core0171")
    assert lanes(cell) == ("fail", "fail")
    assert places(cell, "params_present") == [([3], [7])]
    assert places(cell, "params_agree_plan", "cu_seqlens_q") == [([1, 2], [3, 5])]
    assert places(cell, "params_agree_plan", "max_seqlen_q") == [([1, 2], [3, 5])]


@pytest.mark.parametrize("release", ["core0171", "core0182"])
def test_two_rows_per_micro_batch_end_before_a_batch_is_there(ran: Ran, release: str) -> None:
    cell = ran.cell(f"tp2-pp1-cp1-sft-mbs2-{release}")
    assert lanes(cell)[0] == "fail"
    assert any("metadata leg, step 0, micro-batch 0, fetch" in item["message"] for item in cell["findings"])


def test_bridge_0_4_gives_middle_stages_nothing_and_documents_leak(ran: Ran) -> None:
    cell = ran.cell("tp1-pp4-cp1-bridge_offline-bridge042")
    assert lanes(cell) == ("fail", "fail")
    assert places(cell, "params_present") == [([1, 2], [1, 2])]
    assert [item["check"] for item in cell["findings"] if item["lane"] == "numerics"]


def test_skyrl_0_1_crashes_on_documents_shorter_than_the_alignment(ran: Ran) -> None:
    cell = ran.cell("tp1-pp1-cp2-skyrl-skyrl010")
    assert lanes(cell)[0] == "fail"
    assert any("The expanded size of the tensor" in item["message"] for item in cell["findings"])


def test_wheels_that_do_not_hold_sft_are_rejected(ran: Ran) -> None:
    rejected = {cell["id"].rpartition("-")[0]: cell["reason"] for cell in ran.report["rejected"]}
    expected = [f"tp2-pp{pp}-cp1-sft{rows}-{old}" for old in RELEASES[:2] for pp, rows in ((4, ""), (1, "-mbs2"))]
    assert sorted(name for name in rejected if "-sft-" in name) == sorted(expected)
    for name in expected:
        assert "has no megatron.training.datasets.sft_dataset" in rejected[name]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (
            "tp1-pp1-cp2-skyrl-mbs2-nopack-skyrl040",
            "SkyRL splits documents over context parallel ranks only if it packs them",
        ),
        ("tp1-pp1-cp2-bridge_in_batch-mbs2-bridge050", "only its vision-language models split it in their forward"),
    ],
)
def test_what_a_release_cannot_do_is_rejected_with_the_reason(ran: Ran, name: str, reason: str) -> None:
    (cell,) = [cell for cell in ran.report["rejected"] if cell["id"].rpartition("-")[0] == name]
    assert reason in cell["reason"]


def judged_again(ran: Ran, folder: Path, name: str, entry: dict[str, Any]) -> dict[str, Any]:
    """Judge the run's records with another xfail entry for a cell, which must give exit code 1; returns the cell."""
    copy = folder / ran.run.name
    shutil.copytree(ran.run, copy)
    plan = json.loads((copy / "plan.json").read_text())
    (cell,) = [cell for cell in plan["expansion"]["cells"] if cell["id"].rpartition("-")[0] == name]
    cell["xfail"] = entry
    (copy / "plan.json").write_text(json.dumps(plan))
    done = harness("report", copy, cwd=folder)
    assert done.returncode == 1, done.stdout + done.stderr
    return Ran(copy, json.loads((copy / "report.json").read_text())).cell(name)


BRIDGE, SFT = "tp1-pp4-cp1-bridge_offline-bridge042", "tp2-pp4-cp1-sft-core0171"


@pytest.mark.parametrize(
    ("name", "other", "reason"),
    [
        (BRIDGE, {"lanes": ["metadata"]}, "metadata and numerics failed, not metadata"),
        (
            SFT,
            {"message_contains": ["no packed params at stage 1"]},
            "no finding contains 'no packed params at stage 1'",
        ),
    ],
)
def test_the_matrix_is_red_when_a_known_bug_shows_elsewhere(
    ran: Ran, tmp_path: Path, name: str, other: dict[str, Any], reason: str
) -> None:
    cell = judged_again(ran, tmp_path, name, ran.entries[name] | other)
    assert cell["outcome"] == "FAIL"
    assert reason in cell["reason"]


def test_the_matrix_is_red_when_a_known_bug_is_gone(ran: Ran, tmp_path: Path) -> None:
    """The records of the fixed release are judged with the entry of the broken one."""
    cell = judged_again(ran, tmp_path, "tp2-pp4-cp1-sft-core0182", ran.entries[SFT])
    assert cell["outcome"] == "FAIL"
    assert "passed, though the matrix expects a failure" in cell["reason"]


def engine(ran: Ran, root: Path, what: str) -> list[dict[str, Any]]:
    """The lines that tests/matrices/engine.py prints in an environment with Transformer Engine."""
    python = ran.report["provenance"]["stacks"]["bridge062"]["interpreter"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NVTE_")}
    done = subprocess.run(
        [python, "-W", "ignore", root / "tests/matrices/engine.py", what],
        capture_output=True,
        text=True,
        env=clean,
        timeout=HUNG_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line[8:]) for line in done.stdout.splitlines() if line.startswith("engine: ")]


def test_the_rules_of_attention_refuse_just_what_transformer_engine_has_no_back_end_for(ran: Ran, root: Path) -> None:
    cells = engine(ran, root, "choice")
    assert {item["theirs"] for item in cells} == {True, False}
    assert [item for item in cells if item["theirs"] == bool(item["ours"])] == []


def test_transformer_engine_is_called_with_the_metadata_of_the_reference_path(ran: Ran, root: Path) -> None:
    plain, padded, unpacked = engine(ran, root, "call")
    assert all(item["layers"] == [1, 2, 3, 4] and item["kv_heads"] == 4 for item in (plain, padded, unpacked))
    real, slots = padded["offsets"]
    assert [len(real), real == slots, padded["pad_between_seqs"]] == [len(slots), False, True]
    assert all(offset % 16 == 0 for offset in slots)
    # Transformer Engine takes its fast path only when both offsets are the same object.
    assert (plain["one_object"], plain["pad_between_seqs"], plain["offsets"][0]) == (True, None, plain["offsets"][1])
    assert [plain["mask"], unpacked["mask"], unpacked["offsets"]] == ["padding_causal", "causal", [None, None]]
