"""Canary legs: ranks and judge derive the same ones, and the right answer of each is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.cell.canary_legs import LEG_NAMES, Leg, legs_of, shared_passes, why_not
from harness.core.cell.config import CANARIES, DEFAULT_CANARIES, NOISE, CellConfig, TrainConfig
from harness.core.cell.layout import Layout
from harness.core.packing.documents import DocumentsConfig, adversarial_mix
from harness.upstreams.table import DATA_PATHS

SHORT = DocumentsConfig(mode="file", lengths=(20, 12, 9, 4, 15, 7, 3, 11))


def cell(data_path: str = "reference", documents: DocumentsConfig | None = None, **layout: int) -> CellConfig:
    return CellConfig(
        layout=Layout(**layout, sp=layout.get("tp", 1) > 1),
        data_path=data_path,
        documents=documents or adversarial_mix(64, 2),
        train=TrainConfig(steps=1),
        canaries=CANARIES,
    )


def legs(config: CellConfig) -> dict[str, Leg]:
    return {leg.name: leg for leg in legs_of(config)}


def test_noise_legs_come_last_and_the_one_that_moves_weights_after_all() -> None:
    config = not_modelled(replace(cell("unpacked"), canaries=(*CANARIES, NOISE), dtype="bf16"))
    order, epsilon = legs_of(config)[-2:]
    assert [leg.name for leg in (order, epsilon)] == ["noise-order", "noise-epsilon"]
    assert order.documents == epsilon.documents[::-1] == tuple(config.documents_of(0))[::-1]
    assert order.backward and epsilon.backward
    assert [leg.name for leg in legs_of(config) if leg.trains] == [epsilon.name]


def not_modelled(config: CellConfig) -> CellConfig:
    """A cell that the oracle does not model."""
    return replace(config, model=replace(config.model, builder="other"))


def test_a_control_that_the_oracle_models_trains_once() -> None:
    config = replace(cell("unpacked"), canaries=(NOISE,))
    assert legs_of(config) == []
    assert why_not(config, NOISE) == "the oracle has its own"


def test_noise_of_fp32_is_that_of_a_second_training_alone() -> None:
    found = legs_of(not_modelled(replace(cell("unpacked"), canaries=(NOISE,))))
    assert [(leg.name, leg.trains) for leg in found] == [("noise-epsilon", True)]


@pytest.mark.parametrize("data_path", DATA_PATHS)
@pytest.mark.parametrize("layout", [{}, {"tp": 2}, {"cp": 2}, {"dp": 2}, {"pp": 2, "vpp": 2}])
def test_every_leg_can_be_packed_and_every_canary_runs_or_says_why_not(data_path: str, layout: dict[str, int]) -> None:
    config = cell(data_path, **layout)
    ran = legs_of(config)
    assert [leg.name for leg in ran] == sorted((leg.name for leg in ran), key=LEG_NAMES.index)
    for leg in ran:
        assert all(leg.micro_batches(config))
    for canary in CANARIES:
        assert bool(why_not(config, canary)) != any(leg.canary == canary for leg in ran)


def test_successive_legs_that_only_run_forward_share_a_pass() -> None:
    config = not_modelled(replace(cell("sft", SHORT), canaries=(*CANARIES, NOISE)))
    shared = [[leg.name for leg in one] for one in shared_passes(legs_of(config))]
    forwards = ["isolation", "isolation-middle", "repetition", "order", "padding"]
    assert shared == [["truncation"], ["determinism"], forwards, ["noise-epsilon"]]
    assert shared_passes([]) == []


def test_only_requested_canaries_run() -> None:
    assert legs_of(replace(cell(), canaries=())) == []
    assert {leg.canary for leg in legs_of(replace(cell(), canaries=("order",)))} == {"order"}
    assert not any(leg.backward for leg in legs_of(replace(cell(), canaries=DEFAULT_CANARIES)))


def test_isolation_changes_one_document_of_each_micro_batch_and_leaves_it_neighbours() -> None:
    config = cell(documents=SHORT)
    for name, place in (("isolation", 0), ("isolation-middle", None)):
        leg = legs(config)[name]
        for batch in leg.micro_batches(config)[0]:
            inside = [item.document.index for item in batch.placed]
            changed = [index for index in inside if index in leg.changed]
            assert len(changed) == 1
            assert inside.index(changed[0]) == (len(inside) // 2 if place is None else place)


def test_few_documents_are_packed_as_they_are_in_step_0() -> None:
    config = cell()
    (all_of_them,) = config.micro_batches(0)
    (few,) = legs(config)["isolation"].micro_batches(config)
    assert few == all_of_them[:1]
    assert len(few) < len(all_of_them)


def test_order_reverses_and_repetition_fills_one_row_with_copies() -> None:
    config = cell(documents=SHORT)
    order, repetition = legs(config)["order"], legs(config)["repetition"]
    assert [item.index for item in order.documents] == sorted((item.index for item in order.documents), reverse=True)
    assert len(order.documents) > 2
    assert {item.copy_of for item in repetition.documents} == {None, 0}
    assert [len(batch.placed) for batch in repetition.micro_batches(config)[0]] == [8]


@pytest.mark.parametrize("layout", [{"pp": 2, "vpp": 2}, {"pp": 4, "dp": 2}, {"pp": 4, "vpp": 2}, {"dp": 2}])
def test_repetition_makes_as_many_rows_as_the_layout_needs_if_rows_are_packed_offline(
    layout: dict[str, int],
) -> None:
    config = cell("bridge_offline", **layout)
    config = replace(config, train=replace(config.train, global_batch=16))
    alone = replace(config, layout=Layout())  # its rows are as upstream packs them: none is split
    documents = legs(config)["repetition"].documents
    rows = [[item.document.index for item in batch.placed] for batch in alone.packed(documents)[0]]
    dp = config.layout.dp
    for replica, batches in enumerate(config.packed(documents)):
        assert [[item.document.index for item in batch.placed] for batch in batches] == rows[replica::dp]


def test_documents_that_do_not_make_rows_for_a_layout_leave_a_canary_out_with_the_reason() -> None:
    config = cell("bridge_offline", SHORT, pp=4, vpp=2)
    reason = why_not(replace(config, train=replace(config.train, global_batch=6)), "repetition")
    assert "cannot be split into a multiple of 4" in reason


def test_truncation_is_a_leg_only_where_step_0_cuts_nothing() -> None:
    assert "truncation" not in legs(cell())
    leg = legs(cell(documents=SHORT))["truncation"]
    cut = [item.index for item in leg.documents if item.original_length > item.length]
    assert (cut, leg.model) == ([0, 2, 4, 6], False)


@pytest.mark.parametrize(
    ("config", "canary", "says"),
    [
        (cell("unpacked"), "isolation", "no micro-batch holds two documents"),
        (cell("unpacked"), "order", "do not share rows"),
        (cell(), "padding", "no slot is padding"),
        (cell("bridge_offline"), "padding", "end-of-sentence"),
        (replace(cell(), train=TrainConfig(steps=0)), "isolation", "only fetches batches"),
    ],
)
def test_a_canary_that_does_not_apply_says_why(config: CellConfig, canary: str, says: str) -> None:
    assert says in why_not(config, canary)


def test_an_unknown_canary_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown canary 'parrot'"):
        why_not(cell(), "parrot")
