"""A small layer on one rank, observed by torch's debug mode and by a dispatch mode."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import silu
from torch.utils.checkpoint import checkpoint

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Layout
from harness.core.run.tensor_records import OperationSeen, OperationsSeen
from harness.core.serialization import from_jsonable, loads
from harness.probe.hooks import operations
from harness.probe.hooks.fingerprints import token_fingerprints
from harness.probe.hooks.layers import PassState
from harness.probe.hooks.operations import layer_of, record_operations

SLOTS, HIDDEN = 6, 4
CONFIG = CellConfig(layout=Layout(), data_path="reference", operations=1)
LATER = torch.tensor([2, 0])  # two documents on
OWNERS = torch.tensor([[[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [-1, 0]]])


class _Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.core_attention = torch.nn.Identity()


class _Layer(torch.nn.Module):
    """hidden [s, b, h] to [s, b, h], with a view, a weight, an in-place operation and whole numbers."""

    layer_number = 1

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.fc = torch.nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.self_attention = _Attention()
        self.group: dist.ProcessGroup | None = None

    def forward(self, hidden: Tensor, rotary_pos_emb: Tensor | None = None) -> Tensor:
        made: Tensor = self.fc(hidden).transpose(0, 1).transpose(0, 1)
        made = silu(made)
        torch.arange(3) + 1
        if self.group is not None:
            dist.all_reduce(made, group=self.group)
        return made.mul_(2)


class _Watched:
    """The layer with the hooks on it, and its record."""

    def __init__(self, folder: Path, config: CellConfig = CONFIG) -> None:
        self.layer, self.state = _Layer(), PassState(owners=OWNERS)
        self.file = folder / "attempt-1" / "operations" / "rank-00003.json"
        chunk: Any = SimpleNamespace(decoder=SimpleNamespace(layers=[self.layer]))
        place = config.layout.coordinates(0)
        context: Any = SimpleNamespace(config=config, place=place, is_first=lambda index: True)
        recorder: Any = SimpleNamespace(
            path=folder / "attempt-1" / "ranks" / "rank-00003.json", record=SimpleNamespace(rank=3)
        )
        record_operations([chunk], context, self.state, recorder)

    def seen(self) -> OperationsSeen:
        return from_jsonable(OperationsSeen, loads(self.file.read_text()), whole=True)

    def operation(self, name: str) -> OperationSeen:
        return next(one for one in self.seen().operations if one.name == name)


@pytest.fixture(params=["debug mode", "dispatch mode"])
def watched(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Watched:
    if request.param == "dispatch mode":
        monkeypatch.setattr(operations, "_debug_mode", lambda: "torch.utils._python_dispatch.TorchDispatchMode")
    made = _Watched(tmp_path)
    if request.param == "debug mode":
        pytest.importorskip("torch.utils._debug_mode")
    return made


def _hidden(seed: int = 0) -> Tensor:
    return torch.randn(SLOTS, 1, HIDDEN, generator=torch.Generator().manual_seed(seed))


def test_the_operations_of_the_forward_are_recorded_with_their_values_and_without_views(watched: _Watched) -> None:
    hidden = _hidden()
    output = watched.layer(hidden)
    seen = watched.seen()
    names = [(one.module, one.name) for one in seen.operations if one.kind == "operation"]
    assert names == [
        ("fc", "aten.mm"),
        ("", "aten.silu"),
        ("", "aten.arange"),
        ("", "aten.add.Tensor"),
        ("", "aten.mul_.Tensor"),
    ]
    assert (seen.rank, seen.layer, seen.micro_batches) == (3, 1, 1)
    last = watched.operation("aten.mul_.Tensor")
    owners = OWNERS.transpose(0, 1).flatten(0, 1)
    assert last.outputs[0].documents == token_fingerprints(output.flatten(0, 1), owners, length=64, seed=1234)
    before = last.inputs[0].documents[0].norm_sq  # as it was before the operation overwrote it
    assert last.outputs[0].documents[0].norm_sq == pytest.approx(4 * before)
    assert set(last.outputs[0].documents) == {0, 1}
    weight = watched.operation("aten.mm").inputs[1]
    assert (weight.name, weight.features) == ("fc.weight", 0)
    assert watched.operation("aten.add.Tensor").outputs[0].values == [1, 2, 3]


def test_modules_are_recorded_with_what_they_receive_and_return(watched: _Watched) -> None:
    hidden = _hidden()
    watched.layer(hidden)
    kinds = [(one.module, one.kind) for one in watched.seen().operations if one.kind != "operation"]
    assert kinds == [("", "receives"), ("fc", "receives"), ("fc", "returns"), ("", "returns")]
    assert watched.operation("receives").outputs[0].norm == pytest.approx(float(hidden.norm()))


def test_angles_of_rope_are_not_taken_for_tokens_though_there_are_as_many(watched: _Watched) -> None:
    watched.layer(_hidden(), rotary_pos_emb=torch.ones(SLOTS, 1, 1, HIDDEN))
    hidden, angles = watched.operation("receives").inputs or watched.operation("receives").outputs
    assert (len(hidden.documents), angles.documents, angles.norm) == (2, {}, (SLOTS * HIDDEN) ** 0.5)


def test_documents_of_further_micro_batches_are_added(watched: _Watched) -> None:
    watched.layer(_hidden())
    watched.state.owners, watched.state.micro_batch = torch.where(OWNERS[..., :1] < 0, OWNERS, OWNERS + LATER), 1
    watched.layer(_hidden(1))
    found = watched.operation("aten.mm")
    assert (found.micro_batches, watched.seen().micro_batches) == (2, 2)
    assert set(found.outputs[0].documents) == {0, 1, 2, 3}


def test_only_forwards_of_the_first_training_step_are_recorded(watched: _Watched) -> None:
    watched.state.step = 1
    watched.layer(_hidden())
    watched.state.step, watched.state.leg = 0, "evaluation"
    watched.layer(_hidden())
    assert not watched.file.exists()
    watched.state.leg = "training"
    hidden = _hidden().requires_grad_()
    made: Any = checkpoint(watched.layer, hidden, use_reentrant=True)
    made.sum().backward()  # runs the forward again
    assert watched.seen().micro_batches == 1


@pytest.mark.usefixtures("world_of_one")
def test_communication_is_recorded_once_it_is_complete(watched: _Watched) -> None:
    watched.layer.group = dist.group.WORLD
    watched.layer(_hidden())
    found = next(one for one in watched.seen().operations if one.kind == "communication")
    assert found.name == "c10d.allreduce_"
    assert found.outputs[0].documents == watched.operation("aten.silu").outputs[0].documents


def test_the_record_names_what_observed_the_layer(watched: _Watched) -> None:
    watched.layer(_hidden())
    seen = watched.seen()
    assert seen.torch == torch.__version__
    by_debug_mode = seen.mode == "torch.utils._debug_mode.DebugMode"
    assert by_debug_mode or seen.mode == "torch.utils._python_dispatch.TorchDispatchMode"
    assert bool(watched.operation("aten.mm").text) is by_debug_mode


def test_a_layer_is_found_by_its_number_and_the_embedding_is_0() -> None:
    layer, embedding = _Layer(), torch.nn.Identity()
    chunk: Any = SimpleNamespace(decoder=SimpleNamespace(layers=[layer]), embedding=embedding)
    assert layer_of(chunk, 1, first=True) is layer
    assert layer_of(chunk, 2, first=True) is None
    assert layer_of(chunk, 0, first=True) is embedding
    assert layer_of(chunk, 0, first=False) is None
