"""Edits of Megatron that one rank makes too: no control can show them, the oracle does, on every cell."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.bisected import copied
from tests.cli.conftest import harness, only_run, write_matrix
from tests.launch.stacks.test_checkout import git

pytestmark = pytest.mark.train


class Edit(NamedTuple):
    """One wrong line in megatron.core, and the check that finds it first."""

    file: str
    right: str
    wrong: str
    check: str


EDITS = {
    "gradients": Edit(
        "distributed/finalize_model_grads.py",
        "scaling = 1.0 / safe_num_tokens",
        "scaling = 1.0 / safe_num_tokens.sqrt()",
        "parameter_gradients",
    ),
    "backward": Edit(
        "tensor_parallel/cross_entropy.py",
        "        grad_2d[arange_1d, masked_target_1d] -= softmax_update\n",
        "        grad_2d[arange_1d, masked_target_1d] -= 0.999 * softmax_update\n",
        "parameter_gradients",
    ),
    "clipping": Edit(
        "optimizer/clip_grads.py", "clip_coeff = max_norm /", "clip_coeff = 1.001 * max_norm /", "first_update"
    ),
    "decay": Edit(
        "optimizer/__init__.py", "ParamGroupOverride(wd_mult=0.0)", "ParamGroupOverride(wd_mult=1.0)", "first_update"
    ),
    "angles": Edit(
        "models/common/embeddings/rotary_pos_embedding.py",
        "freqs = torch.outer(seq, self.inv_freq)  #",
        "freqs = torch.outer(seq, self.inv_freq).bfloat16().float()  #",
        "parameter_gradients",
    ),
}
# Gradients of experts that are split over ranks.
EXPERTS = Edit(
    "distributed/distributed_data_parallel.py",
    "expert_gradient_scaling_factor = 1.0\n",
    "expert_gradient_scaling_factor = 1.001\n",
    "parameter_gradients",
)
# Routers in bf16, whose choice the oracle follows as far as rounding explains it.
ROUTER = Edit(
    "transformer/moe/moe_utils.py",
    "scores, top_indices = compute_topk(logits, topk, num_groups, group_topk)",
    "scores, top_indices = compute_topk(logits + 0.1 * logits.roll(1, -1), topk, num_groups, group_topk)",
    "router_choice",
)
BF16 = """\
name: edited
model: {layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocab: 64, moe: {ffn: 24}}
train: {steps: 2, global_batch: 4, seq_length: 64}
checks: {canaries: []}
matrix:
  tp: [1, 2]
  packing: reference
  dtype: bf16
"""
# Layers that carry a state.
RECURRENT = {
    "delta": Edit(
        "ssm/gated_delta_net/common.py", "beta = beta.sigmoid()", "beta = 0.99 * beta.sigmoid()", "activations"
    ),
    "mamba": Edit(
        "ssm/mamba_mixer.py",
        "            self.cp.get_dt_bias().float(),\n",
        "            1.01 * self.cp.get_dt_bias().float(),\n",
        "activations",
    ),
}
HYBRID = """\
name: edited
model: {layers: 4, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocab: 64, pattern: GM*-}
train: {steps: 2, global_batch: 4, seq_length: 64}
checks: {canaries: []}
matrix:
  tp: [1, 2]
  packing: reference
"""
# What upstream makes of the configuration that it is given.
EPSILON = Edit(
    "transformer/transformer_config.py",
    "        super().__post_init__()\n",
    "        super().__post_init__()\n        self.layernorm_epsilon = 0.01\n",
    "",
)
MATRIX = """\
name: edited
model: {layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocab: 64}
train: {steps: 2, global_batch: 4, seq_length: 64}
checks: {canaries: []}
args: {clip_grad: 0.5, weight_decay: 0.1}
matrix:
  layout: [{tp: 1, dp: 1, ep: 1}, {tp: 2, dp: 1, ep: 1}, {tp: 1, dp: 2, ep: 2}]
  packing: reference
  model.moe: {experts: 2, topk: 1, ffn: 24, aux_loss: aux_loss}
"""


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Stack -> its cells, the control first."""
    return _run(tmp_path_factory.mktemp("edited"), MATRIX, EDITS | {"experts": EXPERTS, "epsilon": EPSILON})


@pytest.fixture(scope="module")
def hybrids(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """The same of a hybrid model."""
    return _run(tmp_path_factory.mktemp("hybrid"), HYBRID, RECURRENT)


@pytest.fixture(scope="module")
def rounded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """The same in bf16."""
    return _run(tmp_path_factory.mktemp("rounded"), BF16, {"router": ROUTER})


def _run(folder: Path, matrix: str, edits: Mapping[str, Edit]) -> dict[str, list[dict[str, Any]]]:
    (folder / "tree").mkdir()
    tree = copied(folder / "tree")
    for name, edit in edits.items():
        git(tree.folder, "checkout", "--quiet", "-b", name, "main")
        tree.commit(name, f"megatron/core/{edit.file}", edit.right, edit.wrong)
    names = ["main", *edits]
    stacks = "".join(
        f"  {name}: [{{checkout: {tree.folder}, ref: {name}, package: megatron-lm}}, {{python: {sys.executable}}}]\n"
        for name in names
    )
    write_matrix(folder, f"{matrix}  stack: [{', '.join(names)}]\nstacks:\n{stacks}")
    done = harness("run", str(folder / "small.yaml"), cwd=folder, env={"HARNESS_STACKS": str(folder / "kept")})
    assert done.returncode == 1, done.stdout + done.stderr
    cells = json.loads((only_run(folder / "reports") / "report.json").read_text())["cells"]
    return {name: [cell for cell in cells if cell["axes"]["stack"] == name] for name in names}


def test_the_code_as_it_is_passes_whole(reports: dict[str, list[dict[str, Any]]]) -> None:
    assert len(reports["main"]) >= 2
    for cell in reports["main"]:
        assert (cell["outcome"], cell["lanes"]["numerics"]) == ("PASS", "pass"), cell["findings"]
        assert (cell["evidence"]["reference"], cell["evidence"]["not_compared"]) == ("the oracle", "")


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_fails_on_one_rank_and_on_two(reports: dict[str, list[dict[str, Any]]], name: str) -> None:
    assert len(reports[name]) == len(reports["main"])
    for cell in reports[name]:
        assert (cell["outcome"], cell["lanes"]["metadata"], cell["lanes"]["numerics"]) == ("FAIL", "pass", "fail")
        assert EDITS[name].check in {finding["check"] for finding in cell["findings"]}, cell["findings"]


def test_an_edit_of_a_recurrent_layer_fails_at_that_layer(hybrids: dict[str, list[dict[str, Any]]]) -> None:
    assert len(hybrids["main"]) == 3
    assert {(cell["outcome"], cell["evidence"]["reference"]) for cell in hybrids["main"]} == {("PASS", "the oracle")}
    for layer, name in enumerate(RECURRENT, start=1):
        for cell in hybrids[name]:
            first = cell["findings"][0]
            assert (cell["outcome"], first["check"], first["where"]["layer"]) == ("FAIL", RECURRENT[name].check, layer)


def test_a_router_that_chooses_against_its_scores_fails_in_bf16(rounded: dict[str, list[dict[str, Any]]]) -> None:
    assert len(rounded["main"]) == len(rounded["router"]) == 3
    assert {(cell["outcome"], cell["evidence"]["reference"]) for cell in rounded["main"]} == {("PASS", "the oracle")}
    for cell in rounded["router"]:
        assert (cell["outcome"], cell["evidence"]["reference"]) == ("FAIL", "the oracle")
        assert ROUTER.check in {finding["check"] for finding in cell["findings"]}, cell["findings"]


def test_a_wrong_factor_of_experts_fails_where_ranks_share_them(reports: dict[str, list[dict[str, Any]]]) -> None:
    outcomes = {cell["layout"]["ep"]: cell["outcome"] for cell in reports["experts"]}
    assert outcomes == {1: "PASS", 2: "FAIL"}
    (cell,) = (cell for cell in reports["experts"] if cell["layout"]["ep"] == 2)
    (first,) = (finding for finding in cell["findings"] if finding["check"] == EXPERTS.check)
    assert ".experts." in first["message"]


def test_a_model_that_upstream_builds_otherwise_than_asked_gives_no_verdict(
    reports: dict[str, list[dict[str, Any]]],
) -> None:
    assert len(reports["epsilon"]) == len(reports["main"])
    for cell in reports["epsilon"]:
        assert cell["outcome"] == "ERROR"
        assert cell["reason"] == "the model is not the matrix's: layernorm_epsilon 0.01, asked 1e-05"
