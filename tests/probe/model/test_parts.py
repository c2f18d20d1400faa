"""Names of experts, what the recorder of routers records, and models that a release cannot run."""

from __future__ import annotations

from dataclasses import fields, make_dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import megatron.core
import pytest
import torch
from megatron.core import process_groups_config
from megatron.core.models.hybrid import hybrid_model
from megatron.core.transformer import multi_token_prediction

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Layout
from harness.core.cell.model import ModelConfig
from harness.core.outcomes import Missing, Rejection
from harness.features.experts.config import MoeConfig
from harness.features.prediction.config import MtpConfig
from harness.probe.model import parts
from harness.probe.weights import named_parameters
from tests.runtime.conftest import config


class _Chunk(torch.nn.Module):
    """Has the names and shapes of megatron-core's GPTModel with two local experts."""

    def __init__(self) -> None:
        super().__init__()
        layer: Any = torch.nn.Module()
        layer.layer_number = 3
        layer.mlp = torch.nn.Module()
        layer.mlp.experts = torch.nn.Module()
        layer.mlp.experts.local_experts = torch.nn.ModuleList(torch.nn.Linear(2, 2, bias=False) for _ in range(2))
        self.decoder = torch.nn.Module()
        self.decoder.layers = torch.nn.ModuleList([layer])
        self.mtp = torch.nn.Module()
        self.mtp.layers = torch.nn.ModuleList([torch.nn.Linear(2, 2, bias=False)])


@pytest.mark.parametrize(("ep_rank", "experts"), [(0, [0, 1]), (1, [2, 3])])
def test_experts_and_layers_are_numbered_over_the_whole_model_and_prediction_layers_are_not_touched(
    ep_rank: int, experts: list[int]
) -> None:
    names = [item.name for item in named_parameters(_Chunk(), tp_rank=0, tp_size=1, ep_rank=ep_rank)]
    assert names == [
        *(f"decoder.layers.2.mlp.experts.{number}.weight" for number in experts),
        "mtp.layers.0.weight",
    ]


def watch(monkeypatch: pytest.MonkeyPatch, *, rows: int, real: list[int], logits: torch.Tensor) -> Any:
    from harness.features.experts.node_routers import RouterRecorder
    from harness.probe.hooks.layers import PassState

    slots = len(real) // rows
    owners = torch.tensor([[document, 0] for document in real]).view(1, len(real), 2)
    numbers = torch.arange(len(real))[None]
    state = PassState(owners=owners, rows=torch.arange(rows).repeat_interleave(slots)[None], slots=numbers)
    routed = replace(config("reference"), model=ModelConfig(moe=MoeConfig()), micro_batch_size=rows)
    chosen: list[torch.Tensor] = []
    recorder: Any = SimpleNamespace(
        record=SimpleNamespace(routers=[]), choice=lambda seen, experts, preferred, taken: chosen.append(experts)
    )
    best = logits.flatten(0, 1).topk(2).indices
    made = torch.ones(len(real), 4), torch.zeros(len(real), 4, dtype=torch.uint8).scatter(1, best, 1)
    router = SimpleNamespace(routing=lambda logits: made, attach_and_log_load_balancing_loss=None, apply_z_loss=None)
    context: Any = SimpleNamespace(config=routed)
    RouterRecorder({1: router}, context, state, recorder)
    assert router.routing(logits) is made
    own = LOGITS.topk(2).indices  # in the order of the slots, whatever upstream's layout
    assert torch.equal(chosen[0].sort().values, own.sort().values)
    return recorder.record.routers[0]


LOGITS = torch.tensor([[9.0, 8, 0, 0], [0, 9, 8, 0], [0, 0, 9, 8], [9, 0, 0, 8]])


def test_real_and_padding_tokens_are_counted_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watch(monkeypatch, rows=1, real=[0, 0, 1, -1], logits=LOGITS[:, None])
    assert [(part.tokens, part.counts) for part in seen.real] == [(3, [1, 2, 2, 1])]
    assert [(part.tokens, part.counts) for part in seen.padding] == [(1, [1, 0, 0, 1])]
    assert sum(seen.real[0].scores) == pytest.approx(3.0)


@pytest.mark.parametrize("side_by_side", [False, True])
def test_rows_are_separated_in_each_of_upstreams_layouts(monkeypatch: pytest.MonkeyPatch, side_by_side: bool) -> None:
    logits = LOGITS.view(2, 2, 4).transpose(0, 1) if side_by_side else LOGITS[:, None]
    seen = watch(monkeypatch, rows=2, real=[0, 0, 1, 1], logits=logits)
    assert [part.counts for part in seen.real] == [[1, 2, 1, 0], [1, 0, 1, 2]]


def dropping(probs: torch.Tensor, routing_map: torch.Tensor, **_: Any) -> Any:
    """As from core_v0.14 on: expert 0 drops the first token."""
    kept = routing_map.clone()
    kept[0, 0] = False
    return probs * kept, kept


def with_capacity(logits: torch.Tensor, topk: int, capacity_factor: float | None = None) -> Any:
    """As before core_v0.14: one function chooses and drops."""
    chosen = torch.zeros_like(logits).scatter(1, logits.topk(topk).indices, 1.0)
    kept = dropping(chosen, chosen.bool()) if capacity_factor is not None else (chosen, chosen.bool())
    return *kept, chosen.sum(0)


@pytest.mark.parametrize("newer", [True, False])
def test_what_experts_drop_is_recorded_beside_the_choice(monkeypatch: pytest.MonkeyPatch, newer: bool) -> None:
    from harness.features.experts import node_routers
    from harness.probe.hooks.layers import PassState

    upstream = node_routers.upstream_router
    monkeypatch.setattr(upstream, "apply_router_token_dropping", dropping)
    if not newer:
        monkeypatch.delattr(upstream, "apply_router_token_dropping")
        monkeypatch.setattr(upstream, "topk_softmax_with_capacity", with_capacity, raising=False)

    def routing(logits: torch.Tensor) -> Any:
        flat = logits.flatten(0, 1)
        if not newer:
            return upstream.topk_softmax_with_capacity(flat, 2, capacity_factor=1.0)[:2]
        probs, chosen, _ = with_capacity(flat, 2)
        return upstream.apply_router_token_dropping(probs, chosen, router_topk=2)

    made: list[Any] = []
    limited = replace(config("reference"), model=ModelConfig(moe=MoeConfig(capacity_factor=1.0)))
    router = SimpleNamespace(routing=routing, attach_and_log_load_balancing_loss=None, apply_z_loss=None)
    recorder: Any = SimpleNamespace(record=SimpleNamespace(routers=[]), choice=lambda *seen: made.append(seen))
    owners = torch.zeros(1, 4, 2, dtype=torch.int64)
    state = PassState(owners=owners, rows=torch.zeros(1, 4), slots=torch.tensor([[3, 0, 1, 2]]))
    context: Any = SimpleNamespace(config=limited)
    node_routers.RouterRecorder({1: router}, context, state, recorder)
    router.routing(LOGITS[:, None])
    ((_, chosen, preferred, taken),) = made
    assert chosen.sort().values.tolist() == [[1, 2], [2, 3], [0, 3], [0, 1]] and preferred is None
    assert taken[3].tolist() == [False, True, False, False] and taken.sum() == 7
    (seen,) = recorder.record.routers
    assert seen.kept == [1, 2, 2, 2]


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_scores_of_a_token_add_up_to_1(score: str) -> None:
    from harness.features.experts.node_routers import routing_scores

    scores = routing_scores(MoeConfig(score_function=score), LOGITS)
    torch.testing.assert_close(scores.sum(-1), torch.ones(len(LOGITS)))
    assert (scores.argmax(-1) == LOGITS.argmax(-1)).all()


PADDING_MASK = CellConfig(layout=Layout(), data_path="reference", model=ModelConfig(moe=MoeConfig(padding_mask=True)))
PREDICTION = CellConfig(layout=Layout(), data_path="reference", model=ModelConfig(mtp=MtpConfig()))
GROUPS = CellConfig(layout=Layout(tp=2, dp=2), data_path="reference", groups="explicit")


@pytest.mark.parametrize(
    ("cell", "name", "expected"),
    [
        (PADDING_MASK, "forward", "has no GPTModel.forward(padding_mask): "),
        (GROUPS, "__init__", "has no GPTModel.__init__(pg_collection): "),
        (PREDICTION, "roll_tensor", "has no roll_tensor(packed_seq_params): "),
    ],
)
def test_what_no_argument_asks_for_is_rejected_and_in_a_checkout_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cell: CellConfig, name: str, expected: str
) -> None:
    from harness.probe.model import groups

    def older(self: Any, input_ids: Any) -> None: ...

    older.__qualname__ = f"GPTModel.{name}"
    assert parts.unsupported_parts(cell) is None
    owner = multi_token_prediction if name == "roll_tensor" else parts.GPTModel
    monkeypatch.setattr(owner, name, older)
    monkeypatch.setattr(groups, "_TAKERS", (older,))
    refused = parts.unsupported_parts(cell)
    assert isinstance(refused, Rejection)
    assert refused.rule == "stack.model"
    assert expected in refused.reason
    monkeypatch.setattr(megatron.core, "__file__", str(tmp_path / "megatron" / "core" / "__init__.py"))
    missing = parts.unsupported_parts(cell)
    assert isinstance(missing, Missing)
    assert f"{refused.reason} (rule stack.model), looked for in the checkout {tmp_path}" in missing.reason
    assert parts.unsupported_parts(CellConfig(layout=Layout(), data_path="reference")) is None


HYBRID = CellConfig(layout=Layout(), data_path="reference", model=ModelConfig(pattern="*-*-"))


@pytest.mark.parametrize(
    ("cell", "module", "name", "without", "expected"),
    [
        (HYBRID, hybrid_model, "HybridModel", None, "megatron.core.models.hybrid.hybrid_model.HybridModel"),
        (
            GROUPS,
            process_groups_config,
            "ProcessGroupCollection",
            None,
            "megatron.core.process_groups_config.ProcessGroupCollection",
        ),
    ],
)
def test_a_renamed_name_of_a_checkout_is_missing_before_the_cell_runs(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    cell: CellConfig,
    module: Any,
    name: str,
    without: Any,
    expected: str,
) -> None:
    assert parts.unsupported_parts(cell) is None
    if without is None:
        monkeypatch.delattr(module, name)
    else:
        monkeypatch.setattr(module, name, without)
    monkeypatch.setattr(megatron.core, "__file__", str(tmp_path / "megatron" / "core" / "__init__.py"))
    missing = parts.unsupported_parts(cell)
    assert isinstance(missing, Missing)
    assert f"has no {expected} (rule stack." in missing.reason
    assert f"looked for in the checkout {tmp_path}" in missing.reason


def test_upstream_accepts_one_expert_per_token() -> None:
    """It refuses topk 1 with softmax over the chosen experts, whose only score would be 1."""
    from harness.probe.model.gpt import transformer_config

    cell = CellConfig(layout=Layout(), data_path="reference", model=ModelConfig(moe=MoeConfig(topk=1)))
    assert transformer_config(cell).moe_router_pre_softmax
    assert not transformer_config(replace(cell, model=ModelConfig(moe=MoeConfig(topk=2)))).moe_router_pre_softmax


def test_a_wrapper_that_passes_on_what_it_is_given_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    upstream = parts.GPTModel.forward
    monkeypatch.setattr(parts.GPTModel, "forward", lambda *args, **kwargs: upstream(*args, **kwargs))
    assert parts.unsupported_parts(PADDING_MASK) is None


def test_a_field_that_the_release_does_not_have_rejects_the_cell_that_asks_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from harness.probe.model import gpt as model

    plain = CellConfig(layout=Layout(), data_path="reference")
    moe = replace(plain, model=ModelConfig(moe=MoeConfig()))
    assert (model.unsupported_fields(plain), model.unsupported_fields(moe)) == (None, None)

    kept = [
        item
        for item in fields(parts.TransformerConfig)
        if item.name not in {"moe_router_topk", "bf16", "embedding_init_method"}
    ]
    older: Any = make_dataclass("Older", [item.name for item in kept])
    monkeypatch.setattr(parts, "TransformerConfig", older)
    assert model.unsupported_fields(plain) is None  # bf16 is off; embeddings take init_method
    refused = model.unsupported_fields(moe)
    assert isinstance(refused, Rejection)
    assert refused.rule == "stack.field"
    assert refused.reason.endswith("Older has no field moe_router_topk (model.moe.topk)")
    missing = model.unsupported_fields(replace(plain, dtype="bf16"))
    assert isinstance(missing, Missing)  # a field that only the probe needs: an ERROR, not a rejection
    assert "has no field bf16" in missing.reason
    monkeypatch.setattr(megatron.core, "__file__", str(tmp_path / "megatron" / "core" / "__init__.py"))
    renamed = model.unsupported_fields(moe)
    assert isinstance(renamed, Missing)
    assert f"{refused.reason} (rule stack.field), looked for in the checkout {tmp_path}" in renamed.reason
