from __future__ import annotations

import pytest
import torch

from harness.core.packing.arithmetic import PAD
from harness.core.run.tensor_records import Fingerprint
from harness.probe.hooks.fingerprints import document_fingerprints, gradient_fingerprint, merge, part_fingerprints
from harness.probe.weights import NamedParameter, Shard

Parameter = torch.nn.Parameter


def _named(shard: Shard) -> NamedParameter:
    return NamedParameter(
        name="decoder.layers.0.mlp.linear_fc1.weight", parameter=Parameter(torch.zeros(1)), shard=shard
    )


def _near(one: Fingerprint, other: Fingerprint) -> bool:
    return one.norm_sq == pytest.approx(other.norm_sq, rel=1e-12) and one.projections == pytest.approx(
        other.projections, rel=1e-9, abs=1e-9
    )


@pytest.mark.parametrize(("dim", "pieces", "count"), [(0, 1, 2), (0, 2, 2), (1, 1, 4)])
def test_fingerprints_of_shards_add_up_to_that_of_the_whole(dim: int, pieces: int, count: int) -> None:
    full = torch.randn(8, 12, generator=torch.Generator().manual_seed(3))
    whole = gradient_fingerprint(_named(Shard(full=(8, 12), dim=None, pieces=1, index=0, count=1)), full, seed=7)
    total: dict[int, Fingerprint] = {}
    for rank in range(count):
        shard = Shard(full=(8, 12), dim=dim, pieces=pieces, index=rank, count=count)
        merge(total, {0: gradient_fingerprint(_named(shard), shard.take(full), seed=7)})
    assert _near(total[0], whole)


@pytest.mark.parametrize(("dim", "pieces", "count"), [(0, 2, 2), (0, 2, 4), (1, 1, 2), (1, 1, 4)])
def test_parts_of_a_whole_gradient_compose_the_shards_of_every_tp_size(dim: int, pieces: int, count: int) -> None:
    full = torch.randn(16, 8, generator=torch.Generator().manual_seed(3))
    name = "decoder.layers.0.mlp.linear_fc1.weight" if pieces == 2 else "decoder.layers.0.mlp.linear_fc2.weight"
    parameter = Parameter(torch.zeros(16, 8))
    whole = Shard(full=(16, 8), dim=None, pieces=1, index=0, count=1)
    unsplit = NamedParameter(name=name, parameter=parameter, shard=whole, split=dim, pieces=pieces)
    parts = part_fingerprints(unsplit, full, seed=7)
    assert len(parts) == 8
    for rank in range(count):
        shard = Shard(full=(16, 8), dim=dim, pieces=pieces, index=rank, count=count)
        seen = gradient_fingerprint(
            NamedParameter(name=name, parameter=parameter, shard=shard), shard.take(full), seed=7
        )
        total: dict[int, Fingerprint] = {}
        for part in parts[rank * 8 // count : (rank + 1) * 8 // count]:
            merge(total, {0: part})
        assert _near(total[0], seen)


def test_a_parameter_that_tensor_parallelism_does_not_split_has_no_parts() -> None:
    whole = Shard(full=(16, 8), dim=None, pieces=1, index=0, count=1)
    assert part_fingerprints(_named(whole), torch.ones(16, 8), seed=7) == []


def test_swapping_two_shards_changes_the_projections_but_not_the_norm() -> None:
    full = torch.randn(8, 12, generator=torch.Generator().manual_seed(3))
    whole = Shard(full=(8, 12), dim=None, pieces=1, index=0, count=1)
    right = gradient_fingerprint(_named(whole), full, seed=7)
    swapped = gradient_fingerprint(_named(whole), torch.cat([full[4:], full[:4]]), seed=7)
    assert swapped.norm_sq == pytest.approx(right.norm_sq)
    assert swapped.projections != pytest.approx(right.projections, rel=1e-3)


def test_document_fingerprints_do_not_depend_on_who_holds_which_token() -> None:
    hidden = torch.randn(10, 4, generator=torch.Generator().manual_seed(1))
    owners = torch.tensor([[0, 0], [0, 1], [0, 2], [PAD, 3], [1, 0], [1, 1], [1, 2], [1, 3], [PAD, 4], [PAD, 5]])
    whole = document_fingerprints(hidden, owners, length=8, seed=7)
    assert set(whole) == {0, 1}
    shares: dict[int, Fingerprint] = {}
    for part in (torch.tensor([0, 5, 2, 8]), torch.tensor([4, 1, 3, 9, 7, 6])):
        merge(shares, document_fingerprints(hidden[part], owners[part], length=8, seed=7))
    assert all(_near(shares[document], whole[document]) for document in whole)


def test_fingerprints_ignore_the_content_of_padding_but_not_a_moved_token() -> None:
    hidden = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    owners = torch.tensor([[0, 0], [0, 1], [PAD, 2]])
    whole = document_fingerprints(hidden, owners, length=4, seed=7)
    hidden[2] = 99.0
    assert _near(document_fingerprints(hidden, owners, length=4, seed=7)[0], whole[0])
    moved = document_fingerprints(hidden[[1, 0, 2]], owners, length=4, seed=7)
    assert moved[0].projections != pytest.approx(whole[0].projections, rel=1e-3)
