from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.cell.config import CellConfig, TrainConfig
from harness.core.cell.layout import Layout
from harness.core.packing.documents import DocumentsConfig, adversarial_mix
from harness.core.packing.options import PackingOptions
from harness.matrix.rules.packing import PACKING_RULES
from harness.matrix.rules.table import rejections
from harness.upstreams.table import DATA_PATHS

PATHS = [*DATA_PATHS]


def cell(data_path: str, layout: Layout, seq_length: int = 64, **options: int | bool) -> CellConfig:
    return CellConfig(
        layout=layout,
        data_path=data_path,
        train=TrainConfig(seq_length=seq_length),
        documents=adversarial_mix(seq_length, layout.cp),
        options=PackingOptions(**options),  # type: ignore[arg-type]
    )


def reasons(config: CellConfig) -> dict[str, str]:
    return {item.rule: item.reason for item in rejections(config)}


@pytest.mark.parametrize("data_path", ["unpacked", "reference", "sft"])
def test_seq_length_splits_into_two_chunks_per_cp_rank(data_path: str) -> None:
    found = reasons(cell(data_path, Layout(cp=3)))
    assert found["cp.seq-length"] == "train.seq_length 64 is not divisible by 2 * cp = 2 * 3 = 6: 64 = 10 * 6 + 4"
    assert reasons(cell(data_path, Layout(cp=4))) == {}


def test_skyrl_derives_its_padding_and_takes_no_other() -> None:
    layout = Layout(tp=2, cp=2, sp=True)
    assert reasons(cell("skyrl", layout)) == {}
    assert reasons(cell("skyrl", layout, 60)) == {
        "packing.row-holds-alignment": "train.seq_length 60 is not divisible by the alignment 2 * cp * tp = 2 * 2 * 2 "
        "= 8: 60 = 7 * 8 + 4; a document of 60 tokens is padded to 64 and does not fit in its row"
    }
    for option in ({"pad_seq_to_mult": 8}, {"pad_to_max_length": True}):
        assert next(iter(option)) in reasons(cell("skyrl", layout, **option))["packing.skyrl-alignment"]


def test_skyrl_splits_over_context_ranks_only_what_it_packs() -> None:
    assert reasons(cell("skyrl", Layout(tp=2, sp=True), remove_microbatch_padding=False)) == {}
    found = reasons(cell("skyrl", Layout(cp=2), remove_microbatch_padding=False))
    assert list(found) == ["packing.skyrl-cp"]
    assert "cp 2 and remove_microbatch_padding is false" in found["packing.skyrl-cp"]


def test_only_skyrl_has_the_switch_not_to_pack() -> None:
    assert reasons(cell("reference", Layout(), remove_microbatch_padding=False)) == {
        "packing.skyrl-switch": "remove_microbatch_padding is false, and packing is reference: only skyrl has this "
        "switch"
    }


def test_each_limit_of_a_data_path_is_a_rule_for_cells_of_that_path_only() -> None:
    padded = cell("unpacked", Layout(cp=3), pad_to_max_length=True, remove_microbatch_padding=False)
    merged = replace(cell("unpacked", Layout(cp=3), balance_batch=True), micro_batch_size=2)
    rules = {rule.id: rule for rule in PACKING_RULES}
    for owner in DATA_PATHS.values():
        for limit in owner.limits:
            rule = rules[limit.rule]
            assert rule.source == limit.source
            for config in (replace(broken, data_path=path) for broken in (padded, merged) for path in DATA_PATHS):
                expected = limit.reason(config) if config.path is owner else None
                assert rule.predicate(config) == expected, (limit.rule, config.data_path)
            trained = [replace(padded, data_path=owner.name, trainer=trainer) for trainer in owner.trainers]
            assert any(map(limit.reason, (padded, merged, *trained))), limit.rule


def test_in_batch_packing_merges_rows_and_derives_its_padding() -> None:
    layout = Layout(tp=2, cp=2, sp=True)
    merged = replace(cell("bridge_in_batch", layout), micro_batch_size=2)
    assert reasons(merged) == {}
    assert list(reasons(cell("bridge_in_batch", layout))) == ["packing.in-batch-micro-batch"]
    for option in ({"pad_seq_to_mult": 8}, {"pad_to_max_length": True}):
        found = reasons(replace(cell("bridge_in_batch", layout, **option), micro_batch_size=2))
        assert next(iter(option)) in found["packing.in-batch-alignment"]
    found = reasons(replace(cell("bridge_in_batch", layout), micro_batch_size=3))
    assert list(found) == ["batch.rows-by-replicas"]


def test_a_row_of_fixed_length_is_split_over_cp_then_tp() -> None:
    layout = Layout(tp=4, cp=2, sp=True)
    for data_path in ("unpacked", "sft"):
        found = reasons(cell(data_path, layout, 60))
        assert found["sp.seq-length"] == (
            "train.seq_length 60 is not divisible by tp 4 x cp 2 = 8 (sp is on): 60 = 7 * 8 + 4"
        )
    assert "sp.seq-length" not in reasons(cell("reference", layout, 60))
    assert "sp.seq-length" in reasons(cell("reference", layout, 60, pad_to_max_length=True))
    assert "sp.seq-length" not in reasons(cell("sft", Layout(tp=4, cp=2), 60))


def test_a_row_must_hold_its_longest_document_once_padded() -> None:
    found = reasons(cell("reference", Layout(tp=4, sp=True), 62))
    assert found["packing.row-holds-alignment"] == (
        "train.seq_length 62 is not divisible by the alignment lcm(1, cp * tp = 4) = 4: 62 = 15 * 4 + 2; "
        "a document of 62 tokens is padded to 64 and does not fit in its row"
    )
    assert "packing.row-holds-alignment" in reasons(cell("sft", Layout(), 64, pad_seq_to_mult=24))
    assert reasons(cell("sft", Layout(), 64, pad_seq_to_mult=16)) == {}


def test_documents_padded_to_too_small_a_multiple_are_rejected_with_the_first_offender() -> None:
    found = reasons(cell("sft", Layout(cp=2), pad_seq_to_mult=2))
    assert found == {
        "packing.documents-aligned": "documents are padded to a multiple of pad_seq_to_mult = 2, but the layout needs "
        "2 * cp = 2 * 2 = 4: a document of 1 token takes 2, and 2 % 4 = 2"
    }
    assert reasons(cell("sft", Layout(cp=2), pad_seq_to_mult=8)) == {}


def test_documents_that_happen_to_fit_are_rejected_for_their_multiple() -> None:
    """Only the documents of the first step are looked at, and those of later steps need not fit."""
    documents = DocumentsConfig(mode="file", lengths=(3, 4))
    assert reasons(replace(cell("sft", Layout(cp=2), pad_seq_to_mult=2), documents=documents)) == {
        "packing.documents-aligned": "documents are padded to a multiple of pad_seq_to_mult = 2, but the layout needs "
        "2 * cp = 2 * 2 = 4: 2 % 4 = 2"
    }


@pytest.mark.parametrize("data_path", ["skyrl", "bridge_in_batch"])
def test_a_path_that_derives_its_padding_needs_only_zigzag_chunks_of_another(data_path: str) -> None:
    """A separate rule rejects other padding."""
    tp_only = cell(data_path, Layout(tp=4, sp=True), pad_seq_to_mult=1)
    assert "packing.documents-aligned" not in reasons(tp_only)
    found = reasons(cell(data_path, Layout(tp=4, cp=2, sp=True), pad_seq_to_mult=2))
    assert "but the layout needs 2 * cp = 2 * 2 = 4: " in found["packing.documents-aligned"]


def test_the_reference_path_also_splits_documents_over_tp() -> None:
    layout = Layout(tp=4, cp=2, sp=True)
    found = reasons(cell("reference", layout, pad_seq_to_mult=4))
    assert "lcm(2 * cp = 4, cp * tp = 8) = 8" in found["packing.documents-aligned"]
    # sft rows have a fixed length that is split over tp, so its documents need only 2 * cp.
    assert reasons(cell("sft", layout, pad_seq_to_mult=4)) == {}
    assert reasons(cell("reference", layout, pad_seq_to_mult=8)) == {}


def test_the_scheduler_makes_its_own_rows_one_per_micro_batch() -> None:
    assert reasons(cell("scheduler", Layout(dp=2))) == {}
    assert reasons(cell("scheduler", Layout(), pad_to_max_length=True)).keys() == {"packing.scheduler-rows"}
    two = replace(cell("scheduler", Layout()), micro_batch_size=2)
    assert reasons(two).keys() == {"packing.scheduler-micro-batch"}


def test_padded_cu_seqlens_need_fixed_rows_and_metadata_and_a_data_path_that_pads() -> None:
    rules = {"packing.pad-cu-seqlens-max-length", "packing.pad-cu-seqlens-metadata", "packing.pad-cu-seqlens-path"}
    assert reasons(cell("reference", Layout(), pad_cu_seqlens=True)).keys() == rules
    complete = cell("reference", Layout(), pad_cu_seqlens=True, pad_to_max_length=True, metadata=True)
    assert reasons(complete) == {
        "packing.pad-cu-seqlens-path": "packing reference does not pad cu_seqlens; only bridge_offline does"
    }
    assert reasons(replace(complete, data_path="bridge_offline")) == {}
    assert reasons(cell("reference", Layout(), pad_to_max_length=True, metadata=True)) == {}


@given(
    tp=st.sampled_from([1, 2, 4]),
    cp=st.integers(1, 4),
    sp=st.booleans(),
    seq_length=st.integers(8, 128),
    data_path=st.sampled_from(["unpacked", "reference", "sft", "scheduler"]),
    multiple=st.none() | st.integers(1, 16),
    fixed=st.booleans(),
)
def test_a_cell_that_the_rules_allow_can_be_split_over_cp_and_tp(
    tp: int, cp: int, sp: bool, seq_length: int, data_path: str, multiple: int | None, fixed: bool
) -> None:
    """The rules are sufficient: zigzag chunks divide, the local slab divides over tp, and no row overflows."""
    config = CellConfig(
        layout=Layout(tp=tp, cp=cp, sp=sp and tp > 1),
        data_path=data_path,
        train=TrainConfig(seq_length=seq_length),
        documents=adversarial_mix(seq_length, cp),
        options=PackingOptions(pad_seq_to_mult=multiple, pad_to_max_length=fixed),
    )
    if rejections(config):
        return
    for batch in (batch for replica in config.micro_batches(0) for batch in replica):
        assert all(row.length <= seq_length for row in batch.rows)
        assert all(item.padded_length >= item.document.length for item in batch.placed)
        for rank in range(cp):
            for row in batch.local_slots(cp, rank):
                assert len(row) % (tp if config.layout.sp else 1) == 0


def test_documents_of_a_scheduler_row_end_where_tp_ranks_share_it_too() -> None:
    layout = Layout(tp=4, cp=2, sp=True)
    found = reasons(cell("scheduler", layout, pad_seq_to_mult=4))
    assert "lcm(2 * cp = 4, cp * tp = 8) = 8" in found["packing.documents-aligned"]
    assert "packing.documents-aligned" not in reasons(cell("scheduler", layout, pad_seq_to_mult=8))


def test_a_tail_that_fills_a_row_up_to_seq_length_is_split_over_tp_too() -> None:
    layout = Layout(tp=4, cp=2, sp=True)
    assert "sp.seq-length" in reasons(cell("bridge_offline", layout, 60))
    assert "sp.seq-length" not in reasons(cell("bridge_offline", layout, 64))


@given(
    path=st.sampled_from(PATHS),
    tp=st.integers(1, 4),
    cp=st.integers(1, 4),
    sp=st.booleans(),
    multiple=st.integers(1, 20),
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=6),
)
def test_documents_are_refused_exactly_when_their_multiple_does_not_divide(
    path: str, tp: int, cp: int, sp: bool, multiple: int, lengths: list[int]
) -> None:
    """By hand: 2 * cp chunks for the zigzag, and whole slots per tp rank where documents end their row.

    NeMo-RL asks for their product.
    """
    config = replace(
        cell(path, Layout(tp=tp, cp=cp, sp=sp), pad_seq_to_mult=multiple),
        documents=DocumentsConfig(mode="file", lengths=tuple(lengths)),
    )
    cuts = [2 * cp] if cp > 1 else []
    cuts += [cp * tp] if path in ("reference", "scheduler") and sp and tp > 1 else []
    cuts = [math.prod([*cuts, tp if sp else 1])] if path == "nemo_rl" else cuts
    wrong = path not in ("unpacked", "bridge_long") and any(multiple % cut for cut in cuts)
    found = reasons(config).get("packing.documents-aligned")
    assert (found is not None) == wrong
    padded = [-(-min(length, 63) // multiple) * multiple for length in lengths]
    broken = [size for size in padded * 8 if any(size % cut for cut in cuts)]
    if found and broken:
        assert f" takes {broken[0]}, and {broken[0]} % " in found


@given(
    path=st.sampled_from(PATHS),
    tp=st.integers(1, 4),
    cp=st.integers(1, 4),
    seq_length=st.integers(8, 70),
)
def test_seq_length_is_refused_exactly_when_it_does_not_divide(path: str, tp: int, cp: int, seq_length: int) -> None:
    found = reasons(cell(path, Layout(tp=tp, cp=cp, sp=tp > 1), seq_length))
    assert ("cp.seq-length" in found) == (cp > 1 and seq_length % (2 * cp) != 0)
    whole_rows = path in (
        *("unpacked", "bridge_long", "sft", "sft_scheduler", "inter_document", "bridge_offline", "megatron_rl"),
    )
    assert ("sp.seq-length" in found) == (whole_rows and tp > 1 and seq_length % (tp * cp) != 0)
    zigzag = 2 * cp if cp > 1 else 1
    multiples = {
        "reference": math.lcm(zigzag, cp * tp if tp > 1 else 1),
        "sft": zigzag,
        "inter_document": zigzag,
        "sft_scheduler": zigzag,
        "skyrl": tp * zigzag,
        "nemo_rl": tp * zigzag,  # with sp, which is on here
        "verl": tp * zigzag,
        "bridge_offline": zigzag,
        "megatron_rl": zigzag,
    }
    multiple = 1 if path in ("unpacked", "bridge_long") else multiples.get(path, multiples["reference"])
    assert ("packing.row-holds-alignment" in found) == (seq_length % multiple != 0)


@pytest.mark.parametrize(
    ("tp", "cp", "refused"), [(16, 1, False), (8, 2, False), (32, 1, True), (16, 2, True), (3, 1, True)]
)
def test_rows_of_free_length_end_at_a_multiple_of_16(tp: int, cp: int, refused: bool) -> None:
    config = cell("bridge_offline", Layout(tp=tp, cp=cp, sp=tp > 1))
    assert ("packing.offline-rows-split" in reasons(config)) == refused
    fixed = replace(config, options=PackingOptions(pad_to_max_length=True))
    assert "packing.offline-rows-split" not in reasons(fixed)
    assert "packing.offline-rows-split" not in reasons(replace(config, data_path="reference"))


@pytest.mark.parametrize(("length", "expected"), [(1, "1 token takes 2, and 2"), (5, "5 tokens takes 6, and 6")])
def test_the_offending_document_is_described_in_tokens(length: int, expected: str) -> None:
    documents = DocumentsConfig(mode="file", lengths=(length,))
    found = reasons(replace(cell("sft", Layout(cp=2), pad_seq_to_mult=2), documents=documents))
    assert f": a document of {expected} % 4 = 2" in found["packing.documents-aligned"]


@pytest.mark.parametrize(
    ("path", "layout", "multiple", "expected"),
    [
        ("reference", Layout(cp=2), 9, "pad_seq_to_mult = 9"),
        ("reference", Layout(tp=4, sp=True), None, "the alignment lcm(1, cp * tp = 4) = 4"),
        ("scheduler", Layout(tp=4, sp=True), None, "the alignment lcm(1, cp * tp = 4) = 4"),
        ("bridge_in_batch", Layout(tp=4, sp=True), None, "the alignment lcm(1, cp * tp = 4) = 4"),
        ("reference", Layout(cp=2), None, "the alignment 2 * cp = 2 * 2 = 4"),
        ("sft", Layout(cp=2), None, "the alignment 2 * cp = 2 * 2 = 4"),
        ("skyrl", Layout(tp=4), None, "the alignment tp = 4"),
        ("skyrl", Layout(tp=2, cp=2), None, "the alignment 2 * cp * tp = 2 * 2 * 2 = 8"),
    ],
)
def test_the_reason_says_where_the_multiple_of_documents_comes_from(
    path: str, layout: Layout, multiple: int | None, expected: str
) -> None:
    config = cell(path, layout, 62, pad_seq_to_mult=multiple)  # type: ignore[arg-type]
    found = reasons(config)["packing.row-holds-alignment"]
    assert found.startswith(f"train.seq_length 62 is not divisible by {expected}: 62 = ")


def test_only_nemo_rl_fuses_its_loss() -> None:
    assert reasons(cell("nemo_rl", Layout(tp=2), fuse_loss=True)) == {}
    assert reasons(cell("reference", Layout(), fuse_loss=True)) == {
        "packing.nemo-rl-switch": "fuse_loss is set, and packing is reference: only nemo_rl has this switch"
    }


@pytest.mark.parametrize(
    ("path", "layout", "rejected"),
    [
        ("sft", Layout(tp=2, dp=2), []),
        ("skyrl", Layout(dp=2), []),
        ("sft", Layout(cp=2), ["loss.per-token-with-cp"]),
        ("verl", Layout(cp=2), []),  # its loss is the mean over the step
        ("megatron_rl", Layout(cp=2), []),  # every context rank has the loss of whole rows
        ("nemo_rl", Layout(), ["loss.nemo-rl-means"]),
        ("bridge_offline", Layout(), []),
        ("bridge_offline", Layout(cp=2), ["loss.bridge-means-with-cp", "loss.per-token-with-cp"]),
    ],
)
def test_micro_batches_have_equal_weights_where_upstream_gives_them_these(
    path: str, layout: Layout, rejected: list[str]
) -> None:
    assert list(reasons(cell(path, layout, calculate_per_token_loss=False))) == rejected


def test_no_framework_of_rollouts_pads_rows_to_seq_length() -> None:
    found = [[*reasons(cell(path, Layout(), pad_to_max_length=True))] for path in ("nemo_rl", "verl")]
    assert found == [["packing.nemo-rl-rows"], ["packing.verl-alignment"]]


def test_nemo_rl_takes_every_multiple_that_its_layout_divides() -> None:
    layout = Layout(tp=2, cp=2, sp=True)
    assert reasons(cell("nemo_rl", layout, pad_seq_to_mult=64)) == {}
    found = reasons(cell("nemo_rl", layout, pad_seq_to_mult=4))["packing.documents-aligned"]
    assert "but the layout needs 2 * cp = 2 * 2, times tp = 2 with sp = 8: " in found


@pytest.mark.parametrize("path", ["reference", "verl"])
def test_rows_are_padded_to_a_multiple_of_what_ranks_split(path: str) -> None:
    layout = Layout(tp=4, cp=2, sp=True)
    assert reasons(cell(path, layout, pad_row_to_mult=128)) == {}
    found = reasons(cell(path, layout, pad_row_to_mult=20))
    assert list(found) == ["packing.rows-aligned"]
    assert found["packing.rows-aligned"].startswith("pad_row_to_mult 20 is not divisible by the alignment ")


def test_a_controller_makes_micro_batches_of_one_row_within_a_budget_that_holds_every_document() -> None:
    dynamic = cell("verl", Layout(cp=2), use_dynamic_bsz=True, max_tokens_per_microbatch=128)
    assert reasons(dynamic) == {}
    assert reasons(replace(dynamic, micro_batch_size=2)) == {
        "batch.rows-by-replicas": "step 0: 8 documents make 1 rows of 64 tokens, which cannot be split into a multiple "
        "of 2 (dp x micro_batch_size, and pp when interleaved)",
        "packing.shared-micro-batch": "micro_batch_size is 2, and a controller makes micro-batches of one row",
    }
    assert reasons(cell("verl", Layout(cp=2), use_dynamic_bsz=True, max_tokens_per_microbatch=32)) == {
        "packing.budget": "max_tokens_per_microbatch 32 is less than train.seq_length 64, the length of a document"
    }
    assert list(reasons(cell("verl", Layout(), max_tokens_per_microbatch=128))) == ["packing.budget"]
    assert list(reasons(cell("verl", Layout(), balance_batch=True))) == ["packing.verl-balance"]


def test_a_controller_makes_other_micro_batches_for_other_replicas() -> None:
    packed = replace(cell("nemo_rl", Layout(dp=2), packing_algorithm="concatenative"), resume="tp1-pp2")  # type: ignore[arg-type]
    found = reasons(packed)["packing.shared-resume"]
    assert found.startswith("resume tp1-pp2 changes dp 2 to 1, and a controller makes other micro-batches")
    assert "packing.shared-resume" not in reasons(replace(packed, resume="same"))


def test_skyrls_controller_packs_for_its_own_trainer() -> None:
    packed = cell("skyrl", Layout(tp=2, sp=True), use_sequence_packing=True)
    assert list(reasons(packed)) == ["packing.skyrl-controller"]
    trained = replace(packed, trainer="skyrl", distributed_optimizer="on")
    assert reasons(trained) == {}
    assert "packing.skyrl-layout" in reasons(
        replace(trained, options=PackingOptions(use_sequence_packing=True, remove_microbatch_padding=False))
    )


def test_rows_of_millions_of_tokens_are_fetched_and_not_trained() -> None:
    fetched = CellConfig(layout=Layout(cp=8), data_path="reference", train=TrainConfig(seq_length=2**25, steps=0))
    assert reasons(fetched) == {}
    assert reasons(replace(fetched, train=TrainConfig(seq_length=2**25, steps=1))) == {
        "train.seq-length": "train.seq_length 33554432 is above 1048576, and train.steps is 1; set steps: 0"
    }


def test_a_row_has_one_length_and_an_option_an_effect() -> None:
    twice = reasons(cell("reference", Layout(), pad_row_to_mult=128, pad_to_max_length=True))
    assert twice == {
        "packing.rows-padded-once": "pad_to_max_length makes rows of seq_length, and pad_row_to_mult 128 of a multiple"
    }
    assert reasons(cell("sft", Layout(), pad_row_to_mult=128)) == {
        "packing.option-path": "pad_row_to_mult is 128, and packing is sft: only reference and verl can have it"
    }
