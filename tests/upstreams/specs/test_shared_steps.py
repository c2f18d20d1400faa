"""How NeMo-RL, verl and SkyRL share out a step; examples by hand, and upstream's own functions where clones are."""

from __future__ import annotations

import importlib.util
import os
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.cell.layout import Layout
from harness.core.packing.documents import Document
from harness.core.packing.options import ALGORITHMS as NAMES
from harness.core.packing.options import PackingOptions
from harness.core.packing.packers import plan_step
from harness.core.packing.sharing import Share
from harness.upstreams.nemo_rl.packing import ALGORITHMS, SHUFFLE_SEED, ShardByBatchSize
from harness.upstreams.nemo_rl.spec import NEMO_RL
from harness.upstreams.skyrl.spec import SKYRL, FirstFitDecreasing
from harness.upstreams.verl.packing import DynamicBatches, balanced, workload
from harness.upstreams.verl.spec import VERL

SIZES = st.lists(st.integers(1, 30), min_size=4, max_size=24).map(lambda sizes: sizes[: len(sizes) // 4 * 4])


def file_of(variable: str, path: str) -> ModuleType:
    """A file of a clone, without the imports of its package."""
    clone = os.environ.get(variable)
    if not clone:
        pytest.skip(f"{variable} does not name a clone")
    spec = importlib.util.spec_from_file_location(f"clone_{Path(path).stem}", Path(clone) / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def drawn(seed: int) -> tuple[list[int], int, int]:
    """Sizes, a budget and a number of replicas."""
    dice = random.Random(seed)
    budget = dice.choice([12, 24, 60, 100])
    sizes = [dice.randint(1, budget if dice.random() < 0.5 else budget // 3 + 1) for _ in range(dice.randint(1, 30))]
    return sizes, budget, dice.choice([1, 2, 3, 4])


def in_order(share: Share, sizes: list[int]) -> list[list[int]]:
    """The bins in the order in which replicas take them."""
    return [one for turn in zip(*share(sizes), strict=True) for one in turn]


def made(pack: Callable[[list[int]], list[list[int]]], sizes: list[int]) -> list[list[int]] | None:
    """The bins; None if they cannot be made."""
    try:
        return pack(sizes)
    except ValueError:
        return None


def test_every_algorithm_that_a_matrix_may_name_is_one_of_nemo_rls() -> None:
    assert ("planned", *ALGORITHMS) == NAMES


def test_the_modified_algorithm_puts_small_documents_beside_large_ones() -> None:
    """By hand, with bins of 60: large ones from 31 on, medium ones from 21 on, small ones from 11 on."""
    sizes = [11, 38, 35, 25, 5, 13, 12, 12, 11]
    assert ALGORITHMS["modified_first_fit_decreasing"](sizes, 60) == [[1, 0, 8], [2, 3], [5, 6, 7, 4]]


def test_documents_in_order_begin_a_bin_where_they_do_not_fit() -> None:
    assert ALGORITHMS["concatenative"]([4, 1, 3, 2, 1, 3, 4, 5], 8) == [[0, 1, 2], [3, 4, 5], [6], [7]]


@pytest.mark.parametrize("algorithm", [*ALGORITHMS])
def test_nemo_rls_own_packers_make_the_same_bins(algorithm: str) -> None:
    upstream = file_of("HARNESS_NEMO_RL_REPO", "nemo_rl/data/packing/algorithms.py")
    for seed in range(300):
        sizes, budget, replicas = drawn(seed)
        random.seed(SHUFFLE_SEED)
        packer = upstream.get_packer(algorithm, budget, min_bin_count=replicas, bin_count_multiple=replicas)
        share = ShardByBatchSize(algorithm=algorithm, capacity=budget, replicas=replicas)
        assert made(partial(in_order, share), sizes) == made(packer.pack, sizes), (sizes, budget, replicas)


def test_skyrls_own_packer_makes_the_same_bins() -> None:
    upstream = file_of("HARNESS_SKYRL_REPO", "skyrl/train/dataset/bin_packing.py")
    for seed in range(300):
        sizes, budget, replicas = drawn(seed)
        packer = upstream.make_seq_packer("first_fit_decreasing", budget, replicas, replicas)
        share = FirstFitDecreasing(capacity=budget, replicas=replicas)
        assert made(partial(in_order, share), sizes) == made(packer.pack, sizes), (sizes, budget, replicas)


def test_the_largest_differences_are_joined_first() -> None:
    """The example of Karmarkar and Karp's differencing method: 8, 7, 6, 5, 4 become 8 + 6 and 7 + 5 + 4."""
    assert balanced([8, 7, 6, 5, 4], 2, equal_size=False) == [[1, 3, 4], [0, 2]]


@given(SIZES)
def test_replicas_of_equal_work_have_equally_many_documents(sizes: list[int]) -> None:
    shares = balanced([workload(size) for size in sizes], 4, equal_size=True)
    assert {len(share) for share in shares} == {len(sizes) // 4}
    assert sorted(document for share in shares for document in share) == [*range(len(sizes))]


@given(SIZES, st.booleans(), st.sampled_from([1, 2]))
def test_dynamic_micro_batches_keep_their_budget_on_every_replica(
    sizes: list[int], balance: bool, multiple: int
) -> None:
    try:
        shares = DynamicBatches(capacity=40, replicas=2, multiple=multiple, balance=balance)(sizes)
    except ValueError:
        return
    assert len({len(bins) for bins in shares}) == 1 and len(shares[0]) % multiple == 0
    assert all(sum(sizes[document] for document in one) <= 40 for bins in shares for one in bins)
    assert sorted(document for bins in shares for one in bins for document in one) == [*range(len(sizes))]


def test_verl_sends_every_replica_equally_many_documents() -> None:
    with pytest.raises(ValueError, match="3 documents cannot be shared evenly by dp = 2 replicas"):
        DynamicBatches(capacity=40, replicas=2, multiple=1, balance=True)([1, 2, 3])


def test_micro_batches_with_little_work_come_first_and_last() -> None:
    [bins] = DynamicBatches(capacity=10, replicas=1, multiple=1, balance=False)([10, 9, 8, 7])
    assert bins == [[2], [0], [1], [3]]


@pytest.mark.parametrize(
    ("path", "options", "expected"),
    [
        (NEMO_RL, PackingOptions(packing_algorithm="first_fit_decreasing"), [[[1], [3, 5]], [[2, 0], [4]]]),
        (SKYRL, PackingOptions(use_sequence_packing=True), [[[1], [3, 5]], [[2, 0], [4]]]),
        (VERL, PackingOptions(use_dynamic_bsz=True), [[[1], [0, 2]], [[3], [4, 5]]]),
        (VERL, PackingOptions(use_dynamic_bsz=True, balance_batch=True), [[[1], [4, 0]], [[5, 3], [2]]]),
    ],
)
def test_a_step_is_shared_out_to_its_replicas(
    path: object, options: PackingOptions, expected: list[list[list[int]]]
) -> None:
    documents = [
        Document(index=index, length=length, original_length=length)
        for index, length in enumerate((9, 30, 20, 15, 4, 6))
    ]
    layout = Layout(dp=2)
    style = path.trained(path.style(layout, 32, options), layout)  # type: ignore[attr-defined]
    replicas = plan_step(documents, style, layout, seq_length=32, micro_batch_size=1)
    assert [[[item.document.index for item in batch.placed] for batch in replica] for replica in replicas] == expected
