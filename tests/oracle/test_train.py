"""Training of a cell, without Megatron: what is kept, and what it does not depend on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from harness.core.cell.arguments import Argument, Arguments
from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Layout
from harness.core.packing.documents import mix
from harness.core.peft import PeftConfig, is_adapter
from harness.core.run.records import BuiltSeen
from harness.core.vision import IMAGE, PATCH, TEMPORAL_PATCH, TOWER, VisionConfig
from harness.oracle.fields import Model, Optimizer
from harness.oracle.train import Oracle, Trained

MODEL = {
    "num_layers": "2",
    "hidden_size": "8",
    "num_attention_heads": "2",
    "num_query_groups": "1",
    "ffn_hidden_size": "12",
    "normalization": '"RMSNorm"',
    "gated_linear_unit": "true",
    "activation_func": "silu",
    "add_bias_linear": "false",
    "hidden_dropout": "0.0",
    "attention_dropout": "0.0",
    "calculate_per_token_loss": "true",
}
EXPERTS = {
    "num_moe_experts": "3",
    "moe_ffn_hidden_size": "4",
    "moe_router_score_function": '"sigmoid"',
    "moe_router_enable_expert_bias": "true",
    "moe_router_bias_update_rate": "0.25",
    "moe_router_load_balancing_type": '"aux_loss"',
    "moe_aux_loss_coeff": "0.1",
    "moe_z_loss_coeff": "0.01",
}


BUILT = [
    BuiltSeen(of="model", values=MODEL),
    BuiltSeen(of="constructor", values={"vocab_size": "128", "position_embedding_type": '"rope"'}),
    BuiltSeen(of="optimizer", values={"lr": "0.001", "clip_grad": "0.0"}),
]


def cell(data_path: str = "reference", dp: int = 1, **more) -> CellConfig:
    plain = CellConfig(layout=Layout(dp=dp), data_path=data_path, documents=mix("adversarial", 32, 1))
    settings = replace(plain.train, **{"steps": 2, "global_batch": 8, "seq_length": 32} | more)
    return replace(plain, train=settings)


def trained(config: CellConfig, dtype: torch.dtype = torch.float64, clip: str = "0.0", **more: str) -> Trained:
    built = [
        BuiltSeen(of="model", values=MODEL | more),
        BuiltSeen(of="constructor", values={"vocab_size": "128", "position_embedding_type": '"rope"'}),
        BuiltSeen(of="optimizer", values={"lr": "0.001", "clip_grad": clip}),
    ]
    return Oracle.of(config, built, dtype).run()


def furthest(one: Trained, other: Trained, kind: str) -> float:
    pairs = [(getattr(one.parameters[name], kind), getattr(other.parameters[name], kind)) for name in one.parameters]
    return max(float((a - b).norm() / (b.norm() or 1.0)) for a, b in pairs)


@pytest.mark.parametrize(("data_path", "dp"), [("unpacked", 1), ("sft", 1), ("reference", 2)])
def test_a_dense_model_does_not_depend_on_rows_or_replicas(data_path: str, dp: int) -> None:
    one, other = trained(cell()), trained(cell(data_path, dp))
    for kind in ("gradient", "first_moment", "second_moment", "change", "trained"):
        assert furthest(other, one, kind) < 1e-9, kind
    for a, b in zip(one.steps, other.steps):
        assert a.gradient_norm == pytest.approx(b.gradient_norm, rel=1e-12)
        assert (a.tokens, a.divided_by) == (b.tokens, b.divided_by)
        for document, seen in a.documents.items():
            assert b.documents[document].loss_sum == pytest.approx(seen.loss_sum, rel=1e-12)
            assert b.documents[document].tokens == seen.tokens


def test_a_mean_of_means_depends_on_rows_and_is_divided_by_micro_batches() -> None:
    means = {"calculate_per_token_loss": "false"}
    one, other = trained(cell(), **means), trained(cell("unpacked"), **means)
    assert furthest(other, one, "gradient") > 1e-3
    assert other.steps[0].divided_by == 8
    assert furthest(trained(cell("unpacked", 2), **means), other, "gradient") < 1e-9  # of replicas the mean, too


def test_moments_are_of_clipped_gradients() -> None:
    free, clipped = trained(cell()), trained(cell(), clip="0.01")
    step = clipped.steps[0]
    assert step.gradient_norm == pytest.approx(free.steps[0].gradient_norm, rel=1e-12)
    assert step.clip == pytest.approx(0.01 / step.gradient_norm, rel=1e-4) != free.steps[0].clip
    for seen in clipped.parameters.values():
        torch.testing.assert_close(seen.first_moment, 0.1 * step.clip * seen.gradient)
        torch.testing.assert_close(seen.second_moment, 0.001 * (step.clip * seen.gradient).square())


def test_rates_and_decays_follow_the_arguments_of_the_trainer_from_the_first_step() -> None:
    """Upstream's schedule has counted no step before the first, whose rate is that where a warm-up begins."""
    given = {"lr_warmup_iters": "2", "lr_decay_iters": "4", "lr_decay_style": "linear", "lr_warmup_init": "0.0005"}
    words = tuple(Argument(name=name, words=(value,)) for name, value in given.items())
    seen = trained(replace(cell(), args=Arguments(words)))
    assert [step.learning_rate for step in seen.steps] == pytest.approx([0.0005, 0.00075])
    assert [step.weight_decay for step in seen.steps] == [0.01, 0.01]
    plain = trained(cell())
    assert [step.learning_rate for step in plain.steps] == [0.001, 0.001]
    for name, one in seen.parameters.items():
        torch.testing.assert_close(one.change, plain.parameters[name].change / 2)


def test_float32_differs_by_rounding() -> None:
    one, other = trained(cell()), trained(cell(), torch.float32)
    assert 1e-9 < furthest(other, one, "gradient") < 1e-5


BF16 = {"params_dtype": "torch.bfloat16"}


def test_bf16_differs_by_its_rounding_from_the_same_rounded_weights() -> None:
    exact = trained(cell(), **BF16)
    assert 1e-3 < furthest(trained(cell(), torch.bfloat16, **BF16), exact, "gradient") < 3e-2
    assert furthest(trained(cell()), exact, "gradient") > 1e-4


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_bf16_model_gets_rounded_copies_of_weights_that_train_in_full(dtype: torch.dtype) -> None:
    """Updates are less than bf16 can add to a weight near 1."""
    model = Model.read([BuiltSeen(of="model", values=MODEL | BF16), *BUILT[1:]])
    oracle = Oracle(cell(), model, Optimizer(lr=1e-3), dtype)
    name = "decoder.final_layernorm.weight"
    seen = oracle.run().parameters[name]
    assert seen.change.abs().max() == pytest.approx(1e-3, rel=0.05)
    for given, whole in zip(oracle.weights[name].detach(), oracle.trained[name]):
        assert float(given) == float(whole.bfloat16()) != float(whole)


def test_outputs_of_layers_are_kept_by_document_without_padding() -> None:
    config = cell("sft")
    seen = trained(config)
    assert sorted(seen.steps[0].outputs) == [0, 1, 2]
    lengths = {document.index: document.length for document in config.documents_of(0)}
    assert {document: len(output) for document, output in seen.steps[0].outputs[2].items()} == lengths


def test_evaluations_come_after_their_steps_and_change_nothing() -> None:
    plain, seen = trained(cell()), trained(cell(eval_interval=1))
    assert sorted(seen.evaluations) == [0, 1, 2]
    assert seen.evaluations[1].loss_sum != seen.evaluations[0].loss_sum
    assert furthest(seen, plain, "trained") == 0.0


def test_biases_of_experts_move_after_each_step_and_change_the_choice() -> None:
    seen = trained(cell(), **EXPERTS)
    taken = {layer: torch.zeros(3, dtype=torch.float64) for layer in (1, 2)}
    for router in seen.routers:
        taken[router.layer] += torch.tensor(router.taken, dtype=torch.float64)
    for layer, counts in taken.items():
        assert seen.steps[0].biases[layer] == (0.25 * (counts.mean() - counts).sign()).tolist()
    assert seen.steps[1].biases != seen.steps[0].biases
    still = trained(cell(), **EXPERTS | {"moe_router_bias_update_rate": "0.0"})
    assert still.steps[0].loss_sum == seen.steps[0].loss_sum
    assert still.steps[1].loss_sum != seen.steps[1].loss_sum


def test_losses_of_routers_are_in_gradients_and_not_in_losses_of_documents() -> None:
    seen = trained(cell(), **EXPERTS)
    none = trained(cell(), **EXPERTS | {"moe_aux_loss_coeff": "0.0", "moe_z_loss_coeff": "null"})
    assert none.steps[0].loss_sum == seen.steps[0].loss_sum
    assert furthest(none, seen, "gradient") > 0.1
    assert all(router.balance > 0 and router.z > 0 for router in seen.routers)
    assert all(router.balance == router.z == 0 for router in none.routers)


def test_experts_that_no_slot_chooses_have_no_gradient() -> None:
    config = replace(cell(), train=replace(cell().train, global_batch=1))
    seen = trained(config, **EXPERTS | {"num_moe_experts": "64", "moe_router_topk": "1"})
    idle = [one for name, one in seen.parameters.items() if ".experts." in name and not one.gradient.any()]
    assert idle
    assert all(torch.equal(one.first_moment, torch.zeros_like(one.gradient)) for one in idle)


SEEING = [
    BuiltSeen(of="model", values=MODEL | {"mrope_section": "[1, 1, 0]", "image_token_id": str(IMAGE)}),
    BuiltSeen(of="constructor", values={"vocab_size": "128", "position_embedding_type": '"mrope"'}),
    BuiltSeen(
        of="tower",
        values={
            "num_layers": "1",
            "hidden_size": "8",
            "num_attention_heads": "2",
            "ffn_hidden_size": "12",
            "patch_size": str(PATCH),
            "temporal_patch_size": str(TEMPORAL_PATCH),
            "num_position_embeddings": "16",
            "out_hidden_size": "8",
            "deepstack_visual_indexes": "[0]",
            "activation_func": "gelu",
        },
    ),
    BUILT[2],
]


def seeing(data_path: str, documents: int, images: int = 2) -> CellConfig:
    """The model of `SEEING`, and as many documents in a row."""
    config = cell(data_path)
    model = replace(config.model, vision=VisionConfig(layers=1, hidden=8, heads=2, ffn=12))
    given = replace(mix("images", 32, 1), images=images)
    return replace(config, model=model, documents=given, micro_batch_size=documents)


def test_a_model_with_images_does_not_depend_on_rows_and_its_tower_trains() -> None:
    one, other = (
        Oracle.of(config, SEEING, torch.float64).run()
        for config in (seeing("unpacked", 1), seeing("bridge_in_batch", 2))
    )
    for kind in ("gradient", "trained"):
        assert furthest(other, one, kind) < 1e-9, kind
    tower = {name: seen for name, seen in one.parameters.items() if name.startswith(TOWER)}
    assert tower and all(seen.gradient.any() for seen in tower.values())


def test_without_images_the_tower_has_no_gradient() -> None:
    seen = Oracle.of(seeing("unpacked", 1, images=0), SEEING, torch.float64).run()
    assert not any(one.gradient.any() for name, one in seen.parameters.items() if name.startswith(TOWER))


def test_with_adapters_nothing_else_trains() -> None:
    config = cell()
    config = replace(config, model=replace(config.model, peft=PeftConfig()))
    oracle = Oracle(config, Model.read(BUILT, config.model.peft), Optimizer.read(BUILT, 1e-3), torch.float64)
    before = {name: weight.detach().clone() for name, weight in oracle.weights.items()}
    seen = oracle.run()
    moved = {name for name, weight in oracle.weights.items() if not torch.equal(weight, before[name])}
    assert moved == {name for name in before if is_adapter(name)} == seen.parameters.keys()
    assert len(moved) == 2 * 4 * 2  # factors, linear maps and layers
    everything = trained(cell())
    assert 0 < seen.steps[0].gradient_norm < everything.steps[0].gradient_norm
