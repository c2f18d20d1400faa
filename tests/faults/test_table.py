"""The injections: one for every entry of the catalogue, each of which changes its cell's batches as described."""

from __future__ import annotations

import pytest
import torch
from megatron.core.packed_seq_params import PackedSeqParams

from harness.core.packing.fields import BATCH
from harness.faults.catalogue import FAULTS as CATALOGUE
from harness.faults.node_fault import Fault, local_field
from harness.faults.node_metadata import GARBAGE, changed
from harness.faults.node_table import FAULTS, fault_named
from harness.runtime.device.placement import Device
from harness.upstreams.node_base import Batch, RankContext

SPECS = {spec.name: spec for spec in CATALOGUE}


def context_of(name: str, rank: int = 0) -> RankContext:
    config = SPECS[name].faulty
    return RankContext(config=config, place=config.layout.coordinates(rank), device=Device(kind="cpu", backend="gloo"))


def right_batch(context: RankContext, micro_batch: int = 0) -> Batch:
    """A batch with every field that any stage may need, as a correct data path would deliver it."""
    truth = Fault().truths(context)[micro_batch]
    plan = truth.plan.params()
    assert plan is not None
    real = torch.tensor(plan.cu_seqlens_q, dtype=torch.int32)
    padded = real if plan.cu_seqlens_q_padded is None else torch.tensor(plan.cu_seqlens_q_padded, dtype=torch.int32)
    optional = None if plan.cu_seqlens_q_padded is None else padded
    batch = Batch(
        params=PackedSeqParams(
            qkv_format="thd",
            cu_seqlens_q=real,
            cu_seqlens_kv=real,
            cu_seqlens_q_padded=optional,
            cu_seqlens_kv_padded=optional,
            max_seqlen_q=plan.max_seqlen_q,
            max_seqlen_kv=plan.max_seqlen_kv,
        ),
        **{name: getattr(truth, name)[None] for name in BATCH},
    )
    for name in BATCH:
        setattr(batch, name, local_field(batch, name, truth, context))
    return batch


def injected(name: str, rank: int = 0, chunk: int = 0, micro_batch: int = 0) -> tuple[Batch, Batch]:
    """(the right batch, the batch that the fault returns)."""
    context = context_of(name, rank)
    right = right_batch(context, micro_batch)
    return right, fault_named(name).on_batch(right, context, chunk, micro_batch)


def differing(right: Batch, wrong: Batch) -> set[str]:
    return {name for name in BATCH if not torch.equal(getattr(right, name), getattr(wrong, name))}


def test_catalogue_and_injections_have_the_same_names() -> None:
    assert set(FAULTS) == set(SPECS)
    assert len(set(FAULTS.values())) == len(FAULTS)


def test_no_fault_is_the_clean_run() -> None:
    context = context_of("attention-ignores-documents")
    batch, clean = right_batch(context), fault_named(None)
    assert type(clean) is Fault
    assert clean.on_batch(batch, context, 0, 0) is batch
    assert clean.micro_batches(3, context, 0) == 3
    loss, tokens = torch.tensor(2.0), torch.tensor(3)
    assert clean.on_loss(loss, tokens, context) == (loss, tokens)


def test_an_unknown_fault_is_an_error() -> None:
    with pytest.raises(KeyError, match="no-such-fault"):
        fault_named("no-such-fault")


def test_every_injection_overrides_a_hook() -> None:
    hooks = [name for name in vars(Fault) if name.startswith("on_") or name == "micro_batches"]
    for name, make in FAULTS.items():
        kind = type(make())
        assert any(getattr(kind, hook) is not getattr(Fault, hook) for hook in hooks), name


@pytest.mark.parametrize(("rank", "lost"), [(0, False), (1, True), (2, False)])
def test_only_the_middle_stage_loses_its_metadata(rank: int, lost: bool) -> None:
    _, wrong = injected("middle-stages-without-metadata", rank)
    assert (wrong.params is None) is lost


def test_only_tp_ranks_above_zero_of_the_middle_stage_get_garbage() -> None:
    hit = []
    for rank in range(6):
        _, wrong = injected("middle-stage-tp-ranks-with-garbage", rank)
        if wrong.params.max_seqlen_q == GARBAGE:
            hit.append(rank)
            assert wrong.params.cu_seqlens_q is None
    assert hit == [3]


def test_changed_leaves_the_original_alone() -> None:
    right = right_batch(context_of("cu-seqlens-int64")).params
    other = changed(right, max_seqlen_q=1)
    assert (other.max_seqlen_q, other.cu_seqlens_q) == (1, right.cu_seqlens_q)
    assert right.max_seqlen_q != 1


@pytest.mark.parametrize("name", ["cp-chunks-contiguous", "cp-zigzag-over-the-whole-row"])
def test_a_wrong_cp_split_still_contains_every_slot_once(name: str) -> None:
    batches = [injected(name, rank)[1] for rank in range(2)]
    assert batches[0].tokens is not None and batches[1].tokens is not None
    dealt = torch.cat([batches[0].tokens, batches[1].tokens], dim=1).flatten().sort().values
    truth = Fault().truths(context_of(name))[0]
    assert torch.equal(dealt, truth.tokens.sort().values)
    assert "tokens" in differing(*injected(name))


def test_the_truncation_fault_changes_only_the_micro_batch_of_the_long_document() -> None:
    for micro_batch, changes in ((0, set()), (2, {"tokens", "labels"})):
        assert differing(*injected("truncation-keeps-the-tail", micro_batch=micro_batch)) == changes


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("position-ids-not-reset", {"position_ids"}),
        ("labels-not-shifted", {"labels"}),
        ("loss-mask-drops-a-token-id", {"loss_mask"}),
        ("loss-mask-counts-padding", {"loss_mask"}),
        ("labels-rolled-after-the-cp-split", {"labels"}),
    ],
)
def test_a_content_fault_changes_its_field_only(name: str, changes: set[str]) -> None:
    right, wrong = injected(name)
    assert differing(right, wrong) == changes
    assert wrong.params is right.params


def test_the_reused_loss_mask_is_right_in_the_first_step() -> None:
    name = "loss-mask-of-the-first-step-reused"
    context, fault = context_of(name), fault_named(name)
    first = right_batch(context)
    assert fault.on_batch(first, context, 0, 0).loss_mask is first.loss_mask
    second = right_batch(context)
    assert fault.on_batch(second, context, 0, 0).loss_mask is first.loss_mask


def test_loss_faults_change_only_the_sum_or_count_that_they_name() -> None:
    loss, tokens, none = torch.tensor(6.0), torch.tensor(3, dtype=torch.int), torch.tensor(0, dtype=torch.int)
    average = fault_named("loss-averaged-per-micro-batch").on_loss(loss, tokens, context_of("gradients-times-cp"))
    assert [float(value) for value in average] == [2.0, 1.0]
    lost = fault_named("token-count-of-one-cp-rank-lost")
    assert [int(lost.on_loss(loss, tokens, context_of("gradients-times-cp", rank))[1]) for rank in range(2)] == [3, 0]
    masked = fault_named("nan-on-a-fully-masked-shard")
    here = context_of("nan-on-a-fully-masked-shard")
    assert float(masked.on_loss(loss, tokens, here)[0]) == 6.0
    assert masked.on_loss(torch.tensor(0.0), none, here)[0].isnan()
