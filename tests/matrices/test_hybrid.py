"""matrices/hybrid.yaml: hybrid models train as the oracle does, packed and unpacked, in every layout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.inputs.matrix_file import read_matrix
from harness.matrix.expansion.expand import expand
from tests.matrices.test_models import named, report_of

pytestmark = pytest.mark.train
DOCUMENTS_MEET = "document boundary, the first token of the document"
# The cells of the released wheel that the harness runs in, a few for each layer; their controls come with them.
COVERING = (
    "tp2-pp1-cp1-nosp-reference-hybrid-afaf",
    "tp1-pp2-cp1-reference-hybrid-afa_f",
    "tp2-pp1-cp2-reference-hybrid-aeae-moe4x2-aux_loss",
    "tp2-pp1-cp2-sft-hybrid-gfaf",
    "tp1-pp1-cp2-unpacked-hybrid-gfaf",
    "tp2-pp1-cp2-sft-hybrid-mfaf",
    "tp1-pp2-cp1-dp2-vpp2-reference-hybrid-gf_aem_fa_e-layers8-moe4x2",
)
MASKED = "tp2-pp1-cp1-reference-meanloss-hybrid-aeae-moe4x2-aux_loss-masked"
MASKED_GPT = MASKED.replace("hybrid-aeae-", "")
KNOWN = "tp2-pp1-cp1-nosp-reference-hybrid-gfaf"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, root: Path) -> dict[str, Any]:
    only = [option for name in (*COVERING, KNOWN, MASKED, MASKED_GPT) for option in ("--only", name)]
    return report_of(root, tmp_path_factory.mktemp("hybrid"), "hybrid.yaml", *only)


def test_packed_equals_unpacked_for_every_kind_of_layer(report: dict[str, Any]) -> None:
    assert {name: named(report, name)["outcome"] for name in COVERING} == dict.fromkeys(COVERING, "PASS")


def test_the_norm_of_gated_delta_net_without_sequence_parallelism_is_named(report: dict[str, Any]) -> None:
    cell = named(report, KNOWN)
    first = cell["findings"][0]
    assert (cell["outcome"], first["check"], first["where"]["rank"]) == ("XFAIL", "replica_gradients", 1)
    assert first["where"]["parameter"] == "decoder.layers.0.self_attention.out_norm.weight"
    assert "issue 7452, finding 11" in first["known"]


def test_the_mask_of_routers_is_split_by_gpt_model_alone(report: dict[str, Any]) -> None:
    assert named(report, MASKED_GPT)["outcome"] == "PASS"
    cell = named(report, MASKED)
    assert (cell["outcome"], cell["findings"][0]["check"]) == ("XFAIL", "ended")


def test_what_upstream_cannot_do_is_rejected_by_rule(root: Path) -> None:
    rejected = expand(read_matrix(root / "matrices" / "hybrid.yaml")).rejected
    rules = {rejection.rule for cell in rejected for rejection in cell.rejections}
    assert rules == {"hybrid.interleaving-needs-cuts", "hybrid.heads-by-ranks"}


def test_a_state_that_crosses_documents_fails_where_they_meet_and_the_fixed_release_passes(
    tmp_path: Path, root: Path
) -> None:
    found = report_of(root, tmp_path, "hybrid.yaml", "--only", "tp1-pp1-cp2-skyrl-*")
    bad = named(found, "tp1-pp1-cp2-skyrl-hybrid-mfaf-skyrl020")
    first = bad["findings"][0]
    assert (bad["outcome"], first["check"], first["where"]["layer"]) == ("XFAIL", "activations", 1)
    assert (first["where"]["document"], first["where"]["token"]) == (1, 0)
    assert DOCUMENTS_MEET in first["message"]
    assert "SkyRL pull request 2056" in first["known"]
    assert named(found, "tp1-pp1-cp2-skyrl-hybrid-mfaf-skyrl040")["outcome"] == "PASS"


def test_a_reproducer_shows_the_mask_that_is_not_split(root: Path) -> None:
    script = root / "docs" / "reproducers" / "hybrid_padding_mask.py"
    done = subprocess.run([sys.executable, "-W", "ignore", str(script)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "the decoder gets 4 tokens and a padding mask of 8\n"), done.stderr
