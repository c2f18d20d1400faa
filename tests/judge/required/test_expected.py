from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import pytest

from harness.app.garbage import no_collection
from harness.core.cell.layout import Coordinates
from harness.core.cell.model import ModelConfig, MoeConfig, MtpConfig
from harness.core.packing.documents import mix
from harness.judge.required.expected import Expected
from tests.judge.simulator import config_of, evidence_for, judge


def expected_of(data_path: str = "reference", **keys: Any) -> Expected:
    """What is expected of a cell; `keys`: of its layout, or fields of its configuration."""
    fields = {name: keys.pop(name) for name in ("model", "recompute", "documents") if name in keys}
    return Expected(evidence_for(replace(config_of(data_path, **keys), **fields)))


def place(**where: int) -> Coordinates:
    return Coordinates(**{"tp": 0, "cp": 0, "dp": 0, "pp": 0} | where)


def test_the_layers_of_a_stage_are_those_of_its_chunks() -> None:
    expected = expected_of(pp=2, vpp=2)
    assert [expected.layers(stage) for stage in (0, 1)] == [[1, 3], [2, 4]]


def test_outputs_begin_with_the_embedding_on_the_first_stage() -> None:
    expected = expected_of(pp=2, vpp=2)
    assert [expected.outputs(stage) for stage in (0, 1)] == [[0, 1, 3], [2, 4]]


def test_prediction_layers_have_no_fingerprints() -> None:
    expected = expected_of(model=ModelConfig(layers=2, mtp=MtpConfig(layers=2)))
    assert (expected.layers(0), expected.outputs(0)) == ([1, 2], [0, 1, 2])


def test_only_the_last_stage_is_last() -> None:
    expected = expected_of(pp=4)
    assert [expected.is_last(place(pp=stage)) for stage in range(4)] == [False, False, False, True]


@pytest.mark.parametrize(
    ("tp", "sp", "ranks"), [(1, False, [True]), (2, False, [True, False]), (2, True, [True, True])]
)
def test_every_tp_rank_records_outputs_with_sequence_parallel_only(tp: int, sp: bool, ranks: list[bool]) -> None:
    expected = expected_of(tp=tp, sp=sp)
    assert [expected.records_outputs(place(tp=rank)) for rank in range(tp)] == ranks


@pytest.mark.parametrize(
    ("model", "layers"),
    [
        (ModelConfig(layers=4), [[], []]),
        (ModelConfig(layers=4, moe=MoeConfig()), [[1, 2], [3, 4]]),
        (ModelConfig(layers=4, moe=MoeConfig(), mtp=MtpConfig(layers=2)), [[1, 2], [3, 4, 5, 6]]),
        (ModelConfig(layers=4, mtp=MtpConfig(layers=2)), [[], []]),
    ],
)
def test_layers_with_experts_have_routers(model: ModelConfig, layers: list[list[int]]) -> None:
    expected = expected_of(pp=2, model=model)
    assert [expected.routed(stage) for stage in (0, 1)] == layers


def test_routers_of_interleaved_chunks_are_in_the_order_of_the_chunks() -> None:
    expected = expected_of(pp=2, vpp=2, model=ModelConfig(layers=8, moe=MoeConfig()))
    assert [expected.routed(stage) for stage in (0, 1)] == [[1, 2, 5, 6], [3, 4, 7, 8]]


def test_batches_are_fetched_chunk_by_chunk() -> None:
    assert expected_of().batch_keys(0) == [(0, 0, 0), (0, 0, 1), (0, 0, 2)]
    assert expected_of(pp=2, vpp=2).batch_keys(0) == [(0, chunk, number) for chunk in (0, 1) for number in range(4)]


def test_every_replica_has_its_own_batches() -> None:
    expected = expected_of("sft", dp=2)
    counts = [len(replica) for replica in expected.evidence.plan[0]]
    assert [len(expected.batch_keys(dp)) for dp in (0, 1)] == counts


def test_attention_layers_are_recorded_in_every_step_and_micro_batch() -> None:
    expected = expected_of(pp=2, vpp=2)
    for stage, layer_of in ((0, (1, 3)), (1, (2, 4))):
        keys = {
            (step, chunk, number, layer_of[chunk]) for step in range(2) for chunk in range(2) for number in range(4)
        }
        assert expected.layer_keys(stage, 0) == keys


def test_prediction_layers_have_attention_on_the_last_stage() -> None:
    expected = expected_of(pp=2, model=ModelConfig(layers=2, mtp=MtpConfig(layers=1)))
    assert {key[3] for key in expected.layer_keys(0, 0)} == {1}
    assert {key[3] for key in expected.layer_keys(1, 0)} == {2, 3}


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_all_attention_layers_are_recomputed_or_none(recompute: str) -> None:
    assert expected_of().recomputed_keys(0, 0) == frozenset()
    expected = expected_of(pp=2, recompute=recompute)
    assert expected.recomputed_keys(1, 0) == expected.layer_keys(1, 0) != frozenset()


@pytest.mark.parametrize(
    ("data_path", "keys", "shapes"),
    [
        ("reference", {}, [[1, 46], [1, 56], [1, 63]]),
        ("reference", {"cp": 2}, [[1, 26], [1, 30], [1, 32]]),
        ("sft", {"micro_batch_size": 1}, [[1, 64]] * 3),
        ("unpacked", {}, [[1, 64]] * 8),
        ("unpacked", {"micro_batch_size": 2}, [[2, 64]] * 4),
        ("unpacked", {"micro_batch_size": 4, "cp": 2}, [[4, 32]] * 2),
    ],
)
def test_shapes_are_rows_and_the_slots_of_one_cp_rank(
    data_path: str, keys: dict[str, int], shapes: list[list[int]]
) -> None:
    assert expected_of(data_path, **keys).shapes(0) == {(0, number): shape for number, shape in enumerate(shapes)}


def test_a_leg_without_the_model_has_batches_and_shapes() -> None:
    expected = expected_of("sft", canaries=("truncation",), documents=mix("uncut", 64, 2))
    assert [leg.name for leg in expected.legs] == ["truncation"]
    assert expected.leg_batches("truncation", 0) == (
        [(0, 0, number) for number in range(8)],
        {(0, number): [1, 64] for number in range(8)},
    )


def test_a_leg_is_found_by_its_name() -> None:
    expected = expected_of("reference", canaries=("determinism", "repetition"))
    assert [leg.name for leg in expected.legs] == ["determinism", "repetition"]
    assert expected.leg_batches("determinism", 0) == (expected.batch_keys(0), expected.shapes(0))
    assert expected.leg_batches("repetition", 0) == ([(0, 0, 0)], {(0, 0): [1, 56]})


def test_a_cell_without_canaries_has_no_legs() -> None:
    assert expected_of().legs == []


def test_data_paths_that_count_their_work_do_so_in_the_metadata_leg_and_every_step() -> None:
    assert expected_of("reference").workloads == [("metadata", 0), ("training", 0), ("training", 1)]
    assert expected_of("sft").workloads == []


def test_upstreams_trainer_fetches_the_batches_of_every_step() -> None:
    evidence = evidence_for(replace(config_of("sft", dp=2), trainer="megatron"))
    expected = Expected(evidence)
    counts = [len(step[1]) for step in evidence.plan]
    assert len(counts) == 2
    assert expected.batch_keys(1) == [(step, 0, number) for step in (0, 1) for number in range(counts[step])]
    assert expected.shapes(1).keys() == {(step, number) for step in (0, 1) for number in range(counts[step])}


def test_judged_evidence_is_freed_without_the_garbage_collector() -> None:
    """Judging runs without it, so an object that refers to itself would keep the records of every cell."""
    with no_collection():
        evidence = evidence_for(config_of("sft", tp=2, pp=2))
        judge(evidence)
        kept = weakref.ref(evidence)
        del evidence
        assert kept() is None
