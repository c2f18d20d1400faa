"""matrices/issue_7452.yaml: each fault fails in its place, and the cells beside it pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.matrices.test_models import named, report_of

pytestmark = pytest.mark.train
# Finding -> name of the cell, check and text of its first finding.
SHOWN = {
    1: ("tp2-pp1-cp1-reference-label_smoothing0.1", "document_loss", "all layers are right"),
    2: ("tp2-pp1-cp1-reference-gathered_logitstrue", "document_loss", "off by 0.14 "),
    3: ("tp1-pp1-cp2-unpacked-mtp1", "parameter_gradients", "25 of 25 parameters differ"),
    4: (
        "tp2-pp1-cp1-dp2-nosp-reference-padmax-mtp1-recompute-full-split-groups-explicit",
        "parameter_gradients",
        "24 of 25 parameters differ",  # all but the output layer's
    ),
    5: (
        "tp2-pp1-cp1-dp2-reference-meanloss-moe4x2-aux_loss-masked-groups-explicit",
        "aux_loss",
        "aux_loss of layer 1, micro-batch 0",
    ),
    8: ("tp2-pp1-cp1-reference-softmaxlearnable", "norm_members", "softmax_offset on tp rank 1"),
    9: (
        "tp1-pp1-cp2-reference-lift-loss.per-token-with-cp-meanloss",
        "parameter_gradients",
        "15 of 15 parameters differ",
    ),
    10: ("tp2-pp1-cp1-reference-moe4x2-aux_loss-masked", "aux_loss", "the ratio is x tp"),
    11: ("tp2-pp1-cp1-nosp-reference-hybrid-gf", "replica_gradients", "self_attention.out_norm.weight on rank 1"),
}
BESIDE = (
    "tp2-pp1-cp1-reference",
    "tp1-pp2-cp1-reference-label_smoothing0.1",
    "tp1-pp1-cp1-dp2-unpacked-mtp1",
    "tp2-pp1-cp1-dp2-nosp-reference-padmax-mtp1-recompute-full-split",
    "tp2-pp1-cp1-dp2-nosp-reference-padmax-mtp1-recompute-full-groups-explicit",
    "tp2-pp1-cp1-dp2-reference-meanloss-moe4x2-aux_loss-masked",
    "tp1-pp1-cp2-reference-softmaxlearnable",
    "tp2-pp1-cp1-reference-softmaxoffbyone",
    "tp1-pp1-cp1-dp2-reference-meanloss",
    "tp2-pp1-cp1-reference-hybrid-gf",
)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, root: Path) -> dict[str, Any]:
    return report_of(root, tmp_path_factory.mktemp("issue-7452"), "issue_7452.yaml")


@pytest.mark.long  # short: the cells of sinks, below, and those of models.yaml
@pytest.mark.parametrize("number", SHOWN)
def test_a_finding_is_shown_in_its_place(report: dict[str, Any], number: int) -> None:
    name, check, text = SHOWN[number]
    cell = named(report, name)
    first = cell["findings"][0]
    assert (cell["outcome"], first["lane"], first["check"]) == ("XFAIL", "numerics", check)
    assert text in first["message"]


@pytest.mark.long
def test_the_cells_beside_them_pass(report: dict[str, Any]) -> None:
    assert {name: named(report, name)["outcome"] for name in BESIDE} == dict.fromkeys(BESIDE, "PASS")


def test_a_norm_that_is_not_reduced_over_tp_is_named(tmp_path: Path, root: Path) -> None:
    found = report_of(root, tmp_path, "issue_7452.yaml", "--only", "*-hybrid-gf")
    outcomes = {cell["id"].rpartition("-")[0]: cell["outcome"] for cell in found["cells"]}
    assert outcomes == {
        "tp1-pp1-cp1-unpacked-hybrid-gf": "PASS",
        "tp2-pp1-cp1-reference-hybrid-gf": "PASS",
        "tp2-pp1-cp1-nosp-reference-hybrid-gf": "XFAIL",
    }


def test_sinks_that_the_gradient_norm_leaves_out_are_named(tmp_path: Path, root: Path) -> None:
    found = report_of(root, tmp_path, "issue_7452.yaml", "--only", "*-softmaxlearnable")
    outcomes = {cell["id"].rpartition("-")[0]: cell["outcome"] for cell in found["cells"]}
    assert outcomes == {
        "tp1-pp1-cp1-unpacked-softmaxlearnable": "PASS",
        "tp2-pp1-cp1-reference-softmaxlearnable": "XFAIL",
        "tp1-pp1-cp2-reference-softmaxlearnable": "PASS",
    }
