"""matrices/models.yaml and matrices/real_faults.yaml: models pass, known faults fail at their place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import harness, only_run

pytestmark = pytest.mark.train


QUANTITIES = [
    "document_loss",
    "step_loss",
    "grad_norm",
    "activation",
    "parameter_gradient",
    "first_moment",
    "second_moment",
    "change",
]


def report_of(root: Path, folder: Path, matrix: str, *options: str) -> dict[str, Any]:
    """report.json of a run. No cell of it passes of which any quantity was compared with nothing."""
    done = harness("run", root / "matrices" / matrix, *options, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads((only_run(folder / "reports") / "report.json").read_text())
    for cell in found["cells"]:
        evidence = cell["evidence"]
        if cell["outcome"] == "PASS":
            compared = evidence["reference"], evidence["not_compared"], [*evidence["smallest_seen"]]
            assert compared == ("the oracle", "", QUANTITIES), cell["id"]
    return found


def named(report: dict[str, Any], name: str) -> dict[str, Any]:
    (cell,) = [cell for cell in report["cells"] if cell["id"].rpartition("-")[0] == name]
    found: dict[str, Any] = cell
    return found


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, root: Path) -> dict[str, Any]:
    return report_of(root, tmp_path_factory.mktemp("models"), "models.yaml")


@pytest.mark.parametrize("kind", ["kv_heads8", "kv_heads2-tiedtrue", "moe4x2", "moe4x2-aux_loss", "mtp2", "mla"])
@pytest.mark.parametrize("layout", ["tp2-pp1-cp1", "tp1-pp2-cp1", "tp1-pp1-cp2"])
def test_packed_equals_unpacked_in_every_layout_by_upstreams_packing(
    models: dict[str, Any], layout: str, kind: str
) -> None:
    cell = named(models, f"{layout}-sft-{kind}")
    known = (layout, kind) in (("tp2-pp1-cp1", "mla"), ("tp1-pp1-cp2", "mtp2"))
    assert cell["outcome"] == ("XFAIL" if known else "PASS")


def test_experts_spread_over_context_ranks_and_replicas_pass(models: dict[str, Any]) -> None:
    for name in ("tp1-pp1-cp2-ep2-reference-moe4x2", "tp1-pp1-cp1-dp2-ep2-reference-moe4x2-aux_loss"):
        assert named(models, name)["outcome"] == "PASS"


def test_all_parts_together_pass_but_for_prediction_over_context_ranks(models: dict[str, Any]) -> None:
    assert named(models, "tp1-pp1-cp2-ep2-sft-tiedtrue-moe4x2-mtp1-mla")["outcome"] == "XFAIL"
    # Its queries are not compressed.
    assert named(models, "tp1-pp2-cp1-reference-tiedtrue-moe4x2-mtp1-mla")["outcome"] == "PASS"


def test_what_upstream_cannot_do_is_rejected_by_rule(models: dict[str, Any]) -> None:
    rules = {item["rule"] for item in models["rejected"]}
    assert rules == {"moe.aux-loss-rows"}


def test_prediction_layers_that_roll_between_real_offsets_of_padded_documents_name_the_fix(
    models: dict[str, Any],
) -> None:
    cell = named(models, "tp1-pp1-cp1-reference-pad8-mtp1")
    assert cell["outcome"] == "XFAIL"
    assert cell["findings"][0]["known"].startswith("Megatron-LM commit d8144e7712, ")


def test_the_weight_of_a_masked_auxiliary_loss_is_off_by_the_number_of_ranks(models: dict[str, Any]) -> None:
    for layout, ratio in (("tp2-pp1-cp1", "x tp"), ("tp1-pp1-cp2", "x cp")):
        cell = named(models, f"{layout}-reference-moe4x2-aux_loss-masked")
        assert cell["outcome"] == "XFAIL"
        assert (cell["findings"][0]["check"], cell["findings"][0]["where"]["ratio"]) == ("aux_loss", ratio)


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory, root: Path) -> dict[str, Any]:
    only = [option for release in ("0153", "0161", "0182", "0192") for option in ("--only", f"*aux_loss-core{release}")]
    return report_of(root, tmp_path_factory.mktemp("real-faults"), "real_faults.yaml", *only)


@pytest.mark.long  # short: the router checks of models.yaml, above
@pytest.mark.parametrize(
    ("bad", "good", "ratio"),
    [
        (
            "tp1-pp1-cp2-reference-meanloss-moe4x2-aux_loss-core0153",
            "tp1-pp1-cp2-reference-meanloss-moe4x2-aux_loss-core0161",
            "x 1/cp",
        ),
        (
            "tp1-pp1-cp2-reference-moe4x2-aux_loss-core0182",
            "tp1-pp1-cp2-reference-moe4x2-aux_loss-core0192",
            "x 1/cp",
        ),
        (
            "tp1-pp1-cp1-reference-mbs2-padmax-moe4x2-seq_aux_loss-core0182",
            "tp1-pp1-cp1-reference-mbs2-padmax-moe4x2-seq_aux_loss-core0192",
            None,
        ),
        (
            "tp1-pp1-cp1-unpacked-mbs2-moe4x2-seq_aux_loss-core0182",
            "tp1-pp1-cp1-unpacked-mbs2-moe4x2-seq_aux_loss-core0192",
            None,
        ),
    ],
)
def test_a_bad_release_fails_in_the_router_and_its_repaired_one_passes(
    faults: dict[str, Any], bad: str, good: str, ratio: str | None
) -> None:
    first = named(faults, bad)["findings"][0]
    assert (named(faults, bad)["outcome"], named(faults, good)["outcome"]) == ("XFAIL", "PASS")
    assert (first["lane"], first["check"], first["where"]["layer"]) == ("numerics", "aux_loss", 1)
    assert first["where"].get("ratio") == ratio
