"""matrices/experts.yaml, a part that covers it: experts pass, known faults fail at their place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.matrices.test_models import named, report_of

pytestmark = pytest.mark.train
PASS = [
    "tp2-pp1-cp1-ep2-etp1-sft-moe4x2",
    "tp1-pp1-cp1-dp4-ep2-etp2-reference-moe4x2",
    "tp2-pp1-cp1-reference-moe4x2-shared32-gate",
    "tp1-pp1-cp2-ep2-reference-moe4x2-sigmoid-bias",
    "tp2-pp1-cp1-dp2-sft-moe4x2-sigmoid-bias",
    "tp1-pp2-cp1-reference-moe4x2-cap1",
    "tp1-pp1-cp1-dp2-reference-moe4x2-aux_loss-cap1-padded",
    "tp1-pp1-cp2-sft-moe4x2-global_aux_loss",
    "tp2-pp1-cp2-reference-moe4x2-z0.1",
    "tp1-pp1-cp1-dp2-ep2-reference-padmax-moe4x2-shared32-allgather",
    "tp2-pp1-cp1-dp2-ep2-sft-moe4x2-layers01",
    "tp2-pp2-cp1-ep2-etp1-sft-moe4x2-shared32-grouped",
    "tp1-pp1-cp1-dp2-reference-mbs3-global_batch24-moe4x2",
]
# Cell -> the check of its first finding, and words of the message.
FAIL = {
    "tp1-pp1-cp2-sft-mbs5-global_batch40-moe4x2": ("ended", "mat1 and mat2 shapes cannot be multiplied"),
    "tp2-pp1-cp1-sft-mbs5-global_batch40-moe4x2": ("ended", "mat1 and mat2 shapes cannot be multiplied"),
    "tp1-pp1-cp1-unpacked-moe4x2-masked-sigmoid-bias": ("ended", "The size of tensor a (4) must match"),
    "tp1-pp1-cp1-reference-moe4x2-cap0.5-position": ("router_choice", "slots before one that the expert takes"),
    "tp1-pp1-cp1-dp2-reference-padmax-moe4x2-global_aux_loss": ("aux_loss", "the ratio is x 1/dp"),
    "tp1-pp1-cp1-dp2-reference-moe4x2-global_aux_loss": ("aux_loss", "global_aux_loss of layer 1, micro-batch 0"),
    "tp1-pp1-cp2-reference-moe4x2-masked-z0.1": ("z_loss", "z_loss of layer 1, micro-batch 0"),
}


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory, root: Path) -> dict[str, Any]:
    only = [option for name in (*PASS, *FAIL) for option in ("--only", name)]
    return report_of(root, tmp_path_factory.mktemp("experts"), "experts.yaml", *only)


@pytest.mark.parametrize("name", PASS)
def test_a_feature_passes(experts: dict[str, Any], name: str) -> None:
    assert named(experts, name)["outcome"] == "PASS"


@pytest.mark.parametrize("name", FAIL)
def test_a_known_fault_fails_at_its_place(experts: dict[str, Any], name: str) -> None:
    cell = named(experts, name)
    check, words = FAIL[name]
    assert (cell["outcome"], cell["findings"][0]["check"]) == ("XFAIL", check)
    assert words in cell["findings"][0]["message"]


@pytest.mark.long  # short: the same checks on one release, above
def test_a_bad_release_fails_where_it_is_known_to_and_the_fixed_one_passes(tmp_path: Path, root: Path) -> None:
    report = report_of(root, tmp_path, "real_faults.yaml", "--only", "*z0.1-core*", "--only", "*etp1*")
    for name, check in (
        ("tp2-pp1-cp1-reference-moe4x2-z0.1-core{}", "z_loss"),
        ("tp2-pp1-cp1-etp1-reference-moe4x2-core{}", "replica_gradients"),
    ):
        bad, good = named(report, name.format("0182")), named(report, name.format("0192"))
        assert (bad["outcome"], bad["findings"][0]["check"], good["outcome"]) == ("XFAIL", check, "PASS")
