"""Training of a cell, without Megatron: what is kept, and what it does not depend on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Layout
from harness.core.packing.documents import DocumentsConfig, mix
from harness.core.run.records import BuiltSeen
from harness.features.adapters.config import PeftConfig, is_adapter
from harness.features.vision.config import IMAGE, PATCH, TEMPORAL_PATCH, TOWER, VisionConfig
from harness.oracle import train
from harness.oracle.choices import Choice
from harness.oracle.fields import Model, Optimizer
from harness.oracle.model import forward
from harness.oracle.rows import stream_of
from harness.oracle.train import Oracle, Step, Trained
from harness.oracle.weights import initial_weights

pytestmark = pytest.mark.slow
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
        assert a.tokens == b.tokens
        for document, seen in a.documents.items():
            assert b.documents[document].loss_sum == pytest.approx(seen.loss_sum, rel=1e-12)
            assert b.documents[document].tokens == seen.tokens


def test_a_mean_of_means_depends_on_rows() -> None:
    means = {"calculate_per_token_loss": "false"}
    one, other = trained(cell(), **means), trained(cell("unpacked"), **means)
    assert furthest(other, one, "gradient") > 1e-3
    assert furthest(trained(cell("unpacked", 2), **means), other, "gradient") < 1e-9  # of replicas the mean, too


def test_moments_are_of_clipped_gradients() -> None:
    free, clipped = trained(cell()), trained(cell(), clip="0.01")
    step = clipped.steps[0]
    assert step.gradient_norm == pytest.approx(free.steps[0].gradient_norm, rel=1e-12)
    assert step.clip == pytest.approx(0.01 / step.gradient_norm, rel=1e-4) != free.steps[0].clip
    for seen in clipped.parameters.values():
        torch.testing.assert_close(seen.first_moment, 0.1 * step.clip * seen.gradient)
        torch.testing.assert_close(seen.second_moment, 0.001 * (step.clip * seen.gradient).square())


def test_rates_and_decays_follow_the_schedule_from_the_first_step() -> None:
    """Upstream's schedule has counted no step before the first, whose rate is that where a warm-up begins."""
    warm = {"lr_warmup_iters": 2, "lr_decay_iters": 4, "lr_decay_style": "linear", "lr_warmup_init": 0.0005}
    seen = trained(cell(**warm))
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
    oracle = Oracle(cell(), model, Optimizer(), dtype)
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


@pytest.mark.parametrize("data_path", ["reference", "unpacked"])
def test_biases_of_experts_move_after_each_step_and_change_the_choice(data_path: str) -> None:
    seen = trained(cell(data_path), **EXPERTS)
    taken = {layer: torch.zeros(3, dtype=torch.float64) for layer in (1, 2)}
    for router in seen.routers:
        taken[router.layer] += torch.tensor(router.taken, dtype=torch.float64)
    for layer, counts in taken.items():
        assert seen.steps[0].biases[layer] == (0.25 * (counts.mean() - counts).sign()).tolist()
    assert seen.steps[1].biases != seen.steps[0].biases
    still = trained(cell(data_path), **EXPERTS | {"moe_router_bias_update_rate": "0.0"})
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
    oracle = Oracle.of(config, BUILT)
    before = {name: weight.detach().clone() for name, weight in oracle.weights.items()}
    seen = oracle.run()
    moved = {name for name, weight in oracle.weights.items() if not torch.equal(weight, before[name])}
    assert moved == {name for name in before if is_adapter(name)} == seen.parameters.keys()
    assert len(moved) == 2 * 4 * 2  # factors, linear maps and layers
    everything = trained(cell())
    assert 0 < seen.steps[0].gradient_norm < everything.steps[0].gradient_norm


@pytest.mark.parametrize(("data_path", "dp", "smoothing"), [("reference", 1, 0.0), ("unpacked", 2, 0.1)])
def test_steps_and_evaluations_are_those_of_torch(data_path: str, dp: int, smoothing: float) -> None:
    """Its gradients of the mean over all labels of a step, and its AdamW, with another smoothing (test_loss.py)."""
    config = cell(data_path, dp, eval_interval=1, label_smoothing=smoothing)
    seen, model = trained(config), Model.read(BUILT)
    weights = initial_weights(model, config.train.seed, torch.float64)
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    groups = [
        {"params": [weight for weight in weights.values() if weight.dim() == 1], "weight_decay": 0.0},
        {"params": [weight for weight in weights.values() if weight.dim() > 1], "weight_decay": 0.01},
    ]
    adam, given = torch.optim.AdamW(groups, lr=1e-3), smoothing * 128 / 127

    def losses(step: int) -> dict[int, Tensor]:
        """Of each document."""
        found = {}
        for plan in (plan for replica in config.micro_batches(step) for plan in replica):
            stream = stream_of(config, step, plan)
            logits = forward(weights, model, stream, {}).logits
            each = F.cross_entropy(logits, stream.labels, reduction="none", label_smoothing=given) * stream.mask
            found |= {number: each[stream.documents == number].sum() for number in stream.indices}
        return found

    def assert_same(found: Step, step: int, right: dict[int, Tensor]) -> None:
        assert found.micro_batches == sum(map(len, config.micro_batches(step)))
        counts = {document.index: document.loss_tokens for document in config.documents_of(step)}
        assert {number: loss.tokens for number, loss in found.documents.items()} == counts
        assert found.tokens == sum(counts.values())
        for number, loss in found.documents.items():
            assert loss.loss_sum == pytest.approx(float(right[number].detach()), rel=1e-12, abs=1e-12)

    for step in range(2):
        adam.zero_grad()
        right = losses(step)
        torch.stack(list(right.values())).sum().div(seen.steps[step].tokens).backward()
        assert_same(seen.steps[step], step, right)
        if step == 0:
            for name, weight in weights.items():
                torch.testing.assert_close(seen.parameters[name].gradient, weight.grad, rtol=1e-11, atol=1e-16)
        adam.step()
        for number, after in enumerate(config.evaluated):
            if after == step + 1:
                assert_same(seen.evaluations[number], 2 + number, losses(2 + number))
    for name, weight in weights.items():
        one = seen.parameters[name]
        torch.testing.assert_close(one.trained, weight.detach() - before[name], rtol=1e-9, atol=1e-15)
        assert not one.trained.requires_grad


def test_an_oracle_is_of_what_was_built_and_of_the_cells_own_pattern_and_rate() -> None:
    config = cell(lr=0.25)
    config = replace(config, model=replace(config.model, pattern="*-"))
    seen = Oracle.of(config, [*BUILT[:2], BuiltSeen(of="optimizer", values={})]).run()
    assert seen.model == Model.read(BUILT, pattern="*-")
    assert [step.learning_rate for step in seen.steps] == [0.25, 0.25]


def test_weights_are_in_the_dtype_of_the_cell_after_every_step() -> None:
    oracle = Oracle.of(cell(), BUILT, torch.bfloat16)
    for _ in oracle.updates():
        assert {weight.dtype for weight in oracle.weights.values()} == {torch.bfloat16}
        assert {weight.dtype for weight in oracle.trained.values()} == {torch.float32}


def test_a_mean_over_the_step_is_over_labels_also_where_the_loss_returns_all_tokens() -> None:
    config = cell("verl")
    step, by_labels = (trained(each, calculate_per_token_loss="true").steps[0] for each in (config, cell()))
    assert step.tokens == by_labels.tokens == sum(document.loss_tokens for document in config.documents_of(0))
    assert step.gradient_norm == pytest.approx(by_labels.gradient_norm, rel=1e-9)


def test_a_loss_that_is_a_mean_over_the_step_is_one_without_per_token_loss_too() -> None:
    one, other = trained(cell("verl")), trained(cell("verl"), calculate_per_token_loss="false")
    assert furthest(other, one, "gradient") < 1e-9


def test_losses_of_tokens_are_of_labels_that_count() -> None:
    config = cell("unpacked")
    seen = trained(config)
    sums = dict.fromkeys(seen.steps[0].documents, 0.0)
    places = []
    for token in seen.tokens:
        sums[token.document] += token.loss
        places.append((token.document, token.position))
    assert sums == pytest.approx({number: loss.loss_sum for number, loss in seen.steps[0].documents.items()})
    assert sorted(places) == [
        (document.index, position)
        for document in config.documents_of(0)
        for position, counts in enumerate(document.loss_mask)
        if counts
    ]


@pytest.mark.parametrize(("most", "kept"), [(0, []), (1, [0]), (2, [0, 1])])
def test_losses_of_tokens_are_kept_until_there_are_enough(
    most: int, kept: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first document has one label, the second three."""
    monkeypatch.setattr(train, "MAX_TOKEN_LOSSES", most)
    documents = DocumentsConfig(mode="file", lengths=(1, 3))
    config = replace(cell("unpacked", global_batch=2), documents=documents)
    assert sorted({token.document for token in trained(config).tokens}) == kept


def test_routers_and_prediction_layers_are_kept_by_micro_batch_of_each_replica() -> None:
    config = cell("unpacked", dp=2, global_batch=4)
    seen = trained(config, **EXPERTS, mtp_num_layers="2")
    turns = [(replica, number) for number in range(2) for replica in range(2)]
    assert [(one.layer, one.replica, one.micro_batch) for one in seen.routers] == [
        (layer, *turn) for turn in turns for layer in (1, 2, 3, 4)
    ]
    assert [(one.depth, one.replica, one.micro_batch) for one in seen.predictions] == [
        (depth, *turn) for turn in turns for depth in (1, 2)
    ]
    for one in seen.routers:
        plan = config.micro_batches(0)[one.replica][one.micro_batch]
        assert one.real.nonzero().flatten().tolist() == list(range(plan.placed[0].document.length))
        assert one.chosen.shape == one.logits.shape == (32, 3)
        assert one.chosen.sum(0).tolist() == one.taken


def test_prediction_layers_keep_documents_with_a_label_so_far_ahead() -> None:
    """Of 4 and 2 labels the second layer has two and none; its losses are those of a model's own run."""
    documents = DocumentsConfig(mode="file", lengths=(4, 2))
    config = replace(cell("reference", global_batch=2), documents=documents)
    seen = trained(config, mtp_num_layers="2")
    (plan,) = config.micro_batches(0)[0]
    stream, model = stream_of(config, 0, plan), seen.model
    passed = forward(initial_weights(model, config.train.seed, torch.float64), model, stream, {})
    for one in seen.predictions:
        labels = stream.labels.roll(-one.depth)
        each = F.cross_entropy(passed.predictions[one.depth - 1], labels, reduction="none")
        assert {number: loss.tokens for number, loss in one.documents.items()} == ({0: 3, 1: 1}, {0: 2})[one.depth - 1]
        for number, loss in one.documents.items():
            mine = each[stream.documents == number][: loss.tokens]
            assert loss.loss_sum == pytest.approx(float(mine.sum().detach()))


@pytest.mark.parametrize("dp", [1, 2])
def test_a_balance_over_all_replicas_counts_the_micro_batches_before_it(dp: int) -> None:
    kind = {"moe_router_load_balancing_type": '"global_aux_loss"', "moe_router_score_function": '"softmax"'}
    config = cell("unpacked", dp, global_batch=4)
    routers = [one for one in trained(config, **EXPERTS | kind).routers if one.layer == 2]
    before: list[Tensor] = []
    for number in range(4 // dp):
        turn = [one for one in routers if one.micro_batch == number]
        before.append(torch.stack([one.chosen.double() for one in turn]).sum((0, 1)))
        counts = torch.stack(before).mean(0)
        for one in turn:
            scores = one.logits.softmax(-1).sum(0)
            right = 0.1 * 3 / (2 * (32 * dp) ** 2) * float((counts * scores).sum())
            assert one.balance == pytest.approx(right, rel=1e-12)


def test_choices_are_followed_where_they_are_given_and_what_was_ranked_is_kept() -> None:
    config = cell("unpacked", dp=2, global_batch=4, eval_interval=2)
    steps = range(2 + len(config.evaluated))
    given = {
        (step, replica, number, 2): Choice(torch.full((32, 1), (step + replica + number) % 3), None, taken=None)
        for step in steps
        for replica, plans in enumerate(config.micro_batches(step))
        for number in range(len(plans))
    }
    values = MODEL | EXPERTS | {"moe_router_topk": "1", "moe_expert_capacity_factor": "1.0"}
    oracle = Oracle.of(config, [replace(BUILT[0], values=values), *BUILT[1:]], choices=given)
    seen = oracle.run()
    assert seen.ranked.keys() == given.keys()
    for place, ranked in seen.ranked.items():
        step, replica, number, _ = place
        stream = stream_of(config, step, config.micro_batches(step)[replica][number])
        assert ranked.choice is given[place]
        assert ranked.scores.shape == (32, 3) and ranked.order is not None
        assert torch.equal(ranked.documents, stream.documents) and torch.equal(ranked.positions, stream.positions)
        assert [share.tolist() for share in ranked.shares] == [share.tolist() for share in stream.shares]
    for one in seen.routers:
        if one.layer == 2:
            assert one.chosen.nonzero()[:, 1].unique().tolist() == [(one.replica + one.micro_batch) % 3]


def test_biases_of_a_bf16_model_move_by_counts_that_are_rounded() -> None:
    """To 256 are both 257 and 256, so that neither expert has more."""
    documents = DocumentsConfig(mode="file", lengths=(513,))
    config = replace(cell(global_batch=1, seq_length=600), documents=documents)
    config = replace(config, train=replace(config.train, steps=1))
    values = MODEL | EXPERTS | {"num_moe_experts": "2", "moe_router_topk": "1", "num_layers": "1"}
    chosen = (torch.arange(513) % 2)[:, None]
    for dtype, bias in ((torch.float64, [-0.25, 0.25]), (torch.bfloat16, [0.0, 0.0])):
        oracle = Oracle.of(
            config, [replace(BUILT[0], values=values), *BUILT[1:]], dtype, {(0, 0, 0, 1): Choice(chosen, None)}
        )
        assert oracle.run().steps[0].biases == {1: bias}
