"""The record of the oracle: what it does not model, which cells share it, what the supervisor writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest
import torch
from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Coordinates, Layout
from harness.core.cell.modelled import follows_choices
from harness.core.packing.documents import DocumentsConfig
from harness.core.run.record_file import write_record
from harness.core.run.records import BuiltSeen, ChoiceSeen, OracleRecord, RankRecord, StepSeen
from harness.core.run.run_dir import AttemptDir, RunDir, text_of
from harness.core.run.tensor_records import ActivationSeen, Fingerprint
from harness.core.serialization import from_jsonable, loads
from harness.features.adapters.config import CANONICAL, PeftConfig
from harness.features.experts.config import MoeConfig
from harness.features.vision.config import TOWER, VisionConfig
from harness.oracle.choices import Choice, Choices
from harness.oracle.record import fingerprint, key_of, not_modelled, record_of
from harness.oracle.train import Oracle, Outputs, Trained
from harness.probe.hooks.fingerprints import document_fingerprints, gradient_fingerprint
from harness.probe.weights import NamedParameter, Shard
from harness.runtime import supervisor
from harness.runtime.coordination.rendezvous import NodeShare
from tests.oracle.test_choices import ROUTED
from tests.oracle.test_train import BUILT, EXPERTS, SEEING, cell, seeing

pytestmark = pytest.mark.slow


def with_values(**values: str) -> BuiltSeen:
    """The model of BUILT, with other fields too."""
    return replace(BUILT[0], values=BUILT[0].values | values)


def in_layout(config: CellConfig, **sizes: int) -> CellConfig:
    return replace(config, layout=Layout(**sizes))


def test_cells_share_a_key_if_stages_and_ranks_do_not_change_their_rows() -> None:
    config = cell("unpacked")
    assert key_of(config, BUILT) == key_of(in_layout(config, pp=2), BUILT) == key_of(in_layout(config, tp=2), BUILT)


@pytest.mark.parametrize(
    "other",
    [
        cell("reference"),
        cell("unpacked", dp=2),
        cell("unpacked", lr=1e-2),
        cell("unpacked", seed=7),
        cell("unpacked", label_smoothing=0.1),
        replace(cell("unpacked"), micro_batch_size=2),
    ],
)
def test_other_rows_or_arguments_have_another_key(other: CellConfig) -> None:
    assert key_of(other, BUILT) != key_of(cell("unpacked"), BUILT)


def test_another_model_has_another_key() -> None:
    config = cell()
    models = [config.model, replace(config.model, peft=PeftConfig())]
    models += [replace(config.model, pattern=pattern) for pattern in ("*-", "-*")]
    keys = {key_of(replace(config, model=model), BUILT) for model in models}
    assert len(keys | {key_of(config, [with_values(num_layers="3"), *BUILT[1:]])}) == 5


def test_other_replicas_with_the_same_micro_batches_have_another_key() -> None:
    one, two = cell("unpacked", global_batch=2), cell("unpacked", dp=2, global_batch=2)
    assert [plans for (plans,) in two.micro_batches(0)] == one.micro_batches(0)[0]
    assert key_of(one, BUILT) != key_of(two, BUILT)


def test_other_documents_of_an_evaluation_have_another_key() -> None:
    """Training has those of 3 and 5 tokens, the evaluation after it the others."""
    keys = set()
    for last in (7, 8):
        documents = DocumentsConfig(mode="file", lengths=(3, 5, 6, last))
        config = replace(cell(global_batch=2, eval_interval=1), documents=documents)
        config = replace(config, train=replace(config.train, steps=1))
        keys.add(key_of(config, BUILT))
    assert len(keys) == 2


def test_ranks_that_route_other_slots_have_another_key_where_a_capacity_is_theirs() -> None:
    """Two ranks of a context have other slots than two that share a sequence, which have one half each."""
    one = cell("unpacked")
    cells = [one, in_layout(one, cp=2), in_layout(one, tp=2, sp=True)]
    assert len({key_of(each, ROUTED) for each in cells}) == 1
    limited = [replace(ROUTED[0], values=ROUTED[0].values | {"moe_expert_capacity_factor": "1.0"}), *ROUTED[1:]]
    assert len({key_of(each, limited) for each in cells}) == 3


def test_other_choices_have_another_key() -> None:
    taken = torch.tensor([[True, False], [False, True]])
    chosen = taken.int().argmax(1, keepdim=True)
    choices = [
        Choice(chosen, None),
        Choice(1 - chosen, None),
        Choice(chosen, 1 - chosen),
        Choice(chosen, chosen, taken),
        Choice(chosen, chosen, ~taken),
    ]
    assert len({key_of(cell(), ROUTED, {(0, 0, 0, 1): choice}) for choice in choices}) == 5
    assert key_of(cell(), ROUTED, {(0, 0, 0, 2): choices[0]}) != key_of(cell(), ROUTED, {(0, 0, 0, 1): choices[0]})


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (
            {"dtype": "bf16", "model": replace(cell().model, moe=MoeConfig()), "saved_in": Layout(dp=2)},
            "resume after other micro-batches",
        ),
        (
            {"model": replace(cell().model, moe=MoeConfig(aux_loss="aux_loss")), "saved_in": Layout(dp=2)},
            "resume after other micro-batches",
        ),
        (
            {"model": replace(cell().model, moe=MoeConfig(capacity_factor=2)), "saved_in": Layout(tp=2)},
            "resume after other micro-batches",
        ),
        ({"trainer": "example"}, "trainer example"),
        ({"train": replace(cell().train, steps=10**9)}, "size: about "),
        ({"model": replace(cell().model, vision=VisionConfig(layers=1_024, hidden=2**14, ffn=2**16))}, "size: about "),
    ],
)
def test_what_is_not_modelled_is_said(changed: dict[str, Any], why: str) -> None:
    assert not_modelled(cell(), BUILT) == ""
    assert not_modelled(replace(cell(), **changed), BUILT).startswith(why)


def test_a_part_after_a_resume_is_modelled_if_it_has_the_micro_batches_of_the_one_before() -> None:
    balanced = replace(cell().model, moe=MoeConfig(aux_loss="aux_loss"))
    for dtype in ("fp32", "bf16"):
        for saved in (Layout(), Layout(tp=2), Layout(pp=2)):
            assert not_modelled(replace(cell(), dtype=dtype, model=balanced, saved_in=saved), BUILT) == ""


def test_other_images_have_another_key() -> None:
    keys = {key_of(seeing("unpacked", 1, images), SEEING) for images in (0, 1, 2)}
    assert len(keys) == 3


def test_routers_are_followed_only_where_the_oracle_computes_the_cell() -> None:
    routed = replace(cell(), model=replace(cell().model, moe=MoeConfig()))
    assert follows_choices(routed) and not follows_choices(cell())
    assert follows_choices(replace(cell(), model=replace(cell().model, moe=MoeConfig(capacity_factor=1.0))))
    for changed in ({"trainer": "example"}, {"train": replace(cell().train, steps=10**9)}):
        assert not follows_choices(replace(routed, **changed))


def test_fields_that_are_not_modelled_are_named_with_their_values() -> None:
    odd = [with_values(qk_l2_norm="true"), *BUILT[1:]]
    assert not_modelled(cell(), odd) == "qk_l2_norm true"
    more = [with_values(qk_l2_norm="true", fp8='"e4m3"'), *BUILT[1:]]
    assert sorted(not_modelled(cell(), more).split(", ")) == ['fp8 "e4m3"', "qk_l2_norm true"]


def written(run: Path, name: str, config: CellConfig) -> OracleRecord:
    """What the supervisor writes of a cell whose one rank has trained."""
    attempt = RunDir(run).attempt(name)
    seen = RankRecord(cell=name, rank=0, place=Layout().coordinates(0), ended="completed", built=BUILT)
    seen.steps = [StepSeen(step=0, micro_batches=1)]
    write_record(attempt.record(0), seen)
    share = NodeShare(node=0, nodes=1, world_size=1)
    supervisor._Part(AttemptDir(attempt.root), name, 1, config, share).write_oracle()
    return from_jsonable(OracleRecord, loads(text_of(attempt.oracle)), whole=True)


def test_two_cells_with_the_same_rows_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[str] = []

    def counted(name: str, *arguments: Any) -> RankRecord:
        computed.append(name)
        return record_of(name, *arguments)

    monkeypatch.setattr(supervisor, "record_of", counted)
    plain = cell("unpacked")
    first, second = written(tmp_path, "a", plain), written(tmp_path, "b", in_layout(plain, pp=2))
    assert computed == ["a"]
    assert first.record is not None and second.record is not None
    assert (second.cell, second.record) == ("b", replace(first.record, cell="b"))


@pytest.mark.parametrize(("saved_in", "steps"), [(Layout(), {0, 1}), (Layout(pp=2), {0, 1}), (Layout(dp=2), {1})])
def test_the_oracle_of_a_resumed_part_follows_the_choices_of_the_part_before_if_it_had_the_same_micro_batches(
    saved_in: Layout, steps: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Choices] = []

    def noted(name: str, config: CellConfig, built: list[BuiltSeen], choices: Choices) -> NoReturn:
        given.append(choices)
        raise KeyError(name)

    monkeypatch.setattr(supervisor, "record_of", noted)
    config = replace(cell(), model=replace(cell().model, moe=MoeConfig(experts=2, topk=1)))
    attempt, share = RunDir(tmp_path).attempt("a"), NodeShare(node=0, nodes=1, world_size=1)
    saved = supervisor._Part(AttemptDir(attempt.root), "a", 1, replace(config, resume="same"), share)
    resumed = replace(config, saved_in=saved_in)
    part = supervisor._Part(AttemptDir(attempt.root).resumed, "a", 1, resumed, share, saved)
    for one, step in ((saved, 0), (part, 1)):
        seen = RankRecord(cell="a", rank=0, place=Layout().coordinates(0), ended="completed", built=ROUTED)
        seen.steps = [StepSeen(step=step, micro_batches=1)]
        slots = one.config.micro_batches(step)[0][0].slots
        seen.choices = [ChoiceSeen(step=step, layer=1, micro_batch=0, experts=[[0]] * slots)]
        write_record(one.attempt.record(0), seen)
    part.write_oracle()
    assert {place[0] for place in given[0]} == steps


def test_an_exception_in_the_oracle_is_written_for_the_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> NoReturn:
        raise KeyError("decoder")

    monkeypatch.setattr(supervisor, "record_of", broken)
    found = written(tmp_path, "a", cell())
    assert (found.record, found.not_modelled) == (None, "")
    assert found.failed.rstrip().endswith("KeyError: 'decoder'")


BALANCED = [with_values(**EXPERTS, mtp_num_layers="1"), *BUILT[1:]]


class Recorded(NamedTuple):
    record: RankRecord
    exact: Trained
    rounded: Trained


def recorded() -> Recorded:
    """A cell with padding, experts, a prediction layer and evaluations, in float32."""
    config = cell("sft", global_batch=2, eval_interval=1)
    exact, rounded = (Oracle.of(config, BALANCED, dtype).run() for dtype in (torch.float64, torch.float32))
    return Recorded(record_of("name", config, BALANCED), exact, rounded)


def test_a_record_is_that_of_one_rank_that_has_completed() -> None:
    record, _, _ = recorded()
    assert (record.cell, record.rank, record.ended) == ("name", 0, "completed")
    assert record.place == Coordinates(tp=0, cp=0, dp=0, pp=0)


def test_steps_are_recorded_as_they_were_and_tokens_of_the_first() -> None:
    record, exact, _ = recorded()
    for number, (seen, step) in enumerate(zip(record.steps, exact.steps, strict=True)):
        assert seen == StepSeen(
            step=number,
            micro_batches=step.micro_batches,
            loss_sum=step.loss_sum,
            token_count=step.tokens,
            grad_norm=step.gradient_norm,
            rates=[0.001],
            decays=[0.0, 0.01],
            documents=step.documents,
            tokens=[] if number else exact.tokens,
        )
    assert exact.tokens and exact.steps[1].loss_sum > 0


def of_documents(outputs: Outputs) -> dict[int, dict[int, Fingerprint]]:
    """By layer, as ranks record them."""
    found: dict[int, dict[int, Fingerprint]] = {}
    for layer, documents in outputs.items():
        rows = torch.cat(list(documents.values()))
        owners = [torch.tensor([[number, at] for at in range(len(own))]) for number, own in documents.items()]
        found[layer] = document_fingerprints(rows, torch.cat(owners), length=32, seed=cell().train.seed)
    return found


def assert_printed(seen: list[ActivationSeen], outputs: Outputs) -> None:
    right = of_documents(outputs)
    assert [one.layer for one in seen] == list(right)
    for one in seen:
        assert one.documents.keys() == right[one.layer].keys()
        for number, found in one.documents.items():
            assert_same(found, right[one.layer][number])


def assert_same(found: Fingerprint, right: Fingerprint) -> None:
    assert [found.norm_sq, *found.projections] == pytest.approx(
        [right.norm_sq, *right.projections], rel=1e-9, abs=1e-15
    )


def test_activations_have_the_fingerprints_that_ranks_make() -> None:
    record, exact, _ = recorded()
    assert_printed(record.activations, exact.steps[0].outputs)
    assert len(record.activations) == 3


def test_evaluations_are_recorded_in_order() -> None:
    record, exact, _ = recorded()
    assert [seen.after for seen in record.evaluations] == [1, 2, 2]
    for number, seen in enumerate(record.evaluations):
        right = exact.evaluations[number]
        assert (seen.micro_batches, seen.loss_sum) == (right.micro_batches, right.loss_sum)
        assert (seen.token_count, seen.documents) == (right.tokens, right.documents)
        assert_printed(seen.activations, right.outputs)


def test_biases_of_experts_are_recorded_by_step_and_layer() -> None:
    record, exact, _ = recorded()
    found = [(seen.step, seen.layer, seen.values) for seen in record.expert_biases]
    assert [(step, layer) for step, layer, _ in found] == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)]
    assert all(values == exact.steps[step].biases[layer] for step, layer, values in found)


def test_prediction_layers_are_recorded_by_micro_batch() -> None:
    record, exact, _ = recorded()
    found = [(seen.depth, seen.micro_batch, seen.documents) for seen in record.mtp]
    assert found == [(seen.depth, seen.micro_batch, seen.documents) for seen in exact.predictions]
    assert {micro_batch for _, micro_batch, _ in found} == set(range(exact.steps[0].micro_batches))


def test_routers_are_recorded_with_what_tokens_and_padding_chose() -> None:
    record, exact, _ = recorded()
    assert len(record.routers) == len(exact.routers) > 0
    for seen, right in zip(record.routers, exact.routers):
        assert (seen.layer, seen.micro_batch) == (right.layer, right.micro_batch)
        assert (seen.aux_loss, seen.z_loss) == (right.balance, right.z)
        for (share,), mine in ((seen.real, right.real), (seen.padding, ~right.real)):
            slots = [slot for slot, counts in enumerate(mine) if counts]
            assert share.tokens == len(slots) > 0
            assert share.counts == [sum(bool(right.chosen[slot, expert]) for slot in slots) for expert in range(3)]
            scores = sum(right.logits[slot].exp() / right.logits[slot].exp().sum() for slot in slots)
            assert share.scores == pytest.approx(torch.as_tensor(scores).tolist())


def shards(name: str, tensor: Tensor, dim: int | None = None, count: int = 1, pieces: int = 1) -> list[Fingerprint]:
    """The fingerprints that as many ranks make of their parts."""
    held = [Shard(full=tuple(tensor.shape), dim=dim, pieces=pieces, index=rank, count=count) for rank in range(count)]
    named = [NamedParameter(name=name, parameter=torch.nn.Parameter(tensor), shard=shard) for shard in held]
    return [gradient_fingerprint(item, item.shard.take(tensor), cell().train.seed) for item in named]


def test_parameters_have_the_fingerprints_that_ranks_make() -> None:
    record, exact, _ = recorded()
    assert [seen.name for seen in record.parameters] == list(exact.parameters)
    for seen in record.parameters:
        right, update = exact.parameters[seen.name], seen.update
        assert update is not None and update.trained is not None and not seen.sharded
        for found, tensor in (
            (seen.gradient, right.gradient),
            (update.first_moment, right.first_moment),
            (update.second_moment, right.second_moment),
            (update.change, right.change),
            (update.trained, right.trained),
        ):
            assert_same(found, *shards(seen.name, tensor))
        assert_same(fingerprint(seen.name, right.gradient, cell().train.seed), seen.gradient)


ROWS, COLUMNS, STACKED, WHOLE = (0, 8), (1, 8), (0, 4, 2), None
SPLIT = {
    "embedding.word_embeddings.weight": ROWS,
    "decoder.layers.0.input_layernorm.weight": WHOLE,
    "decoder.layers.0.self_attention.linear_qkv.weight": ROWS,
    "decoder.layers.0.self_attention.linear_qkv.bias": ROWS,
    "decoder.layers.0.self_attention.linear_proj.weight": COLUMNS,
    "decoder.layers.0.self_attention.core_attention.softmax_offset": (0, 2),
    "decoder.layers.0.mlp.linear_fc1.weight": STACKED,
    "decoder.layers.0.mlp.linear_fc2.weight": (1, 4),
    "output_layer.weight": ROWS,
}
EVEN = {"num_layers": "1", "softmax_type": '"learnable"', "add_qkv_bias": "true"}


def parts_of(built: list[BuiltSeen], config: CellConfig) -> Iterator[tuple[str, list[Fingerprint], Tensor]]:
    """Of each parameter, with its gradient."""
    config = replace(config, train=replace(config.train, steps=1, global_batch=1))
    exact = Oracle.of(config, built).run()
    for seen in record_of("name", config, built).parameters:
        yield seen.name, seen.parts, exact.parameters[seen.name].gradient


def assert_split(split: dict[str, tuple[int, ...] | None], built: list[BuiltSeen], config: CellConfig) -> None:
    """`split`: dimension, parts and pieces by names' ends."""
    found = dict.fromkeys(split, 0)
    for name, parts, gradient in parts_of(built, config):
        end = next((end for end in split if name.endswith(end)), None)
        if end is None:
            continue
        found[end] += 1
        how = split[end]
        right = shards(name, gradient, *how) if how else []
        assert len(parts) == len(right), name
        for one, other in zip(parts, right):
            assert_same(one, other)
    assert all(found.values()), found


def test_parts_of_parameters_are_the_shards_of_tensor_parallel_ranks() -> None:
    assert_split(SPLIT, [with_values(**EVEN), *BUILT[1:]], cell())


def test_what_no_ranks_could_split_evenly_has_no_parts() -> None:
    odd = [with_values(ffn_hidden_size="9", num_layers="1"), *BUILT[1:]]
    assert_split({"linear_fc1.weight": WHOLE, "linear_fc2.weight": WHOLE, "linear_proj.weight": COLUMNS}, odd, cell())


def test_factors_of_adapters_are_split_like_the_sides_of_their_layers_that_they_are_at() -> None:
    """Of the layers that are split by columns the input, of the others the output; factors of 8 by their rank."""
    config = cell()
    plain = replace(config, model=replace(config.model, peft=PeftConfig(rank=8)))
    split = {
        "linear_qkv.adapter.linear_in.weight": ROWS,
        "linear_fc1.adapter.linear_in.weight": ROWS,
        "linear_fc1.adapter.linear_out.weight": STACKED,
    }
    assert_split(split, BUILT, plain)
    canonical = replace(config, model=replace(config.model, peft=PeftConfig(method=CANONICAL, rank=8)))
    assert_split({"linear_fc1.adapter.adapter_up.linear_out.weight": (0, 4)}, BUILT, canonical)


def test_blocks_of_an_image_tower_have_no_gate() -> None:
    at = f"{TOWER}decoder.layers.0.mlp"
    split = {f"{at}.linear_fc1.weight": (0, 4), f"{at}.linear_fc2.weight": (1, 4)}
    assert_split({**split, "deepstack_merger_list.0.linear_fc2.weight": COLUMNS}, SEEING, seeing("unpacked", 1))


def test_the_second_training_is_that_in_the_dtype_of_the_cell() -> None:
    record, exact, rounded = recorded()
    (leg,), right = record.legs, rounded
    assert (leg.leg, leg.loss_sum, leg.token_count) == ("noise-dtype", right.steps[0].loss_sum, right.steps[0].tokens)
    assert leg.loss_sum != exact.steps[0].loss_sum
    assert leg.documents == right.steps[0].documents
    assert_printed(leg.activations, right.steps[0].outputs)
    assert [seen.name for seen in leg.parameters] == list(right.parameters)
    for seen in leg.parameters:
        assert (seen.parts, seen.update) == ([], None)
        assert_same(seen.gradient, *shards(seen.name, right.parameters[seen.name].gradient))


def test_later_steps_and_evaluations_of_the_second_training_are_recorded_too() -> None:
    record, _, rounded = recorded()
    (leg,), right = record.legs, rounded
    assert leg.training is not None
    (later,) = leg.training.steps
    assert (later.after, later.loss_sum, later.grad_norm) == (1, right.steps[1].loss_sum, right.steps[1].gradient_norm)
    assert (later.documents, later.activations) == (right.steps[1].documents, [])
    assert [seen.after for seen in leg.training.evaluations] == [1, 2, 2]
    for number, seen in enumerate(leg.training.evaluations):
        one = right.evaluations[number]
        assert (seen.loss_sum, seen.documents, seen.grad_norm) == (one.loss_sum, one.documents, None)
        assert_printed(seen.activations, one.outputs)
    assert [seen.values for seen in leg.training.expert_biases][:3] == list(right.steps[0].biases.values())
    assert leg.training.apart.keys() == right.parameters.keys()


def test_a_cell_whose_labels_are_all_masked_has_no_loss() -> None:
    documents = DocumentsConfig(mode="file", lengths=(5,), masked=(0,))
    record = record_of("name", replace(cell(global_batch=1), documents=documents), BUILT)
    (leg,) = record.legs
    assert leg.training is not None
    assert [step.loss_sum for step in record.steps] == [0.0, 0.0]
    assert (leg.loss_sum, leg.token_count, leg.training.steps[0].loss_sum) == (0.0, 0, 0.0)


def test_both_trainings_follow_choices_and_only_those_of_its_part_are_judged() -> None:
    config = cell(global_batch=1, eval_interval=1)
    steps = range(config.train.steps + len(config.evaluated))
    choices = {
        (step, 0, number, layer): Choice(torch.zeros(plan.slots, 1, dtype=torch.int64), None)
        for step in steps
        for number, plan in enumerate(config.micro_batches(step)[0])
        for layer in (1, 2)
    }
    resumed = replace(config, saved_in=config.layout)
    whole, later = (record_of("name", one, ROUTED, choices) for one in (config, resumed))
    for dtype, seen in ((torch.float64, whole.steps[0]), (torch.float32, whole.legs[0])):
        assert seen.loss_sum == Oracle.of(config, ROUTED, dtype, choices).run().steps[0].loss_sum
        assert seen.loss_sum != Oracle.of(config, ROUTED, dtype).run().steps[0].loss_sum
    assert sorted({seen.step for seen in whole.followed}) == [0, 1, 2, 3, 4]
    assert sorted({seen.step for seen in later.followed}) == [1, 3, 4]
    assert key_of(config, ROUTED, choices) != key_of(resumed, ROUTED, choices)
    assert key_of(config, ROUTED) == key_of(resumed, ROUTED)
