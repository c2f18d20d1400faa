"""What modules of a layer receive and return, as `harness explain --operations` compares it with the ranks' own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Coordinates
from harness.core.packing.documents import DocumentsConfig
from harness.core.run.records import BuiltSeen
from harness.core.run.tensor_records import OperationSeen, OperationsSeen
from harness.oracle.drawing import document_tokens
from harness.oracle.layers import NOTED, Noted
from harness.oracle.operations import operations_of
from harness.oracle.rows import stream_of
from harness.oracle.train import Oracle
from harness.probe.hooks.fingerprints import token_fingerprints
from tests.oracle.test_choices import ROUTED, all_of_expert_0, rounding_cell
from tests.oracle.test_train import BUILT, MODEL, cell

DENSE = [
    ("", "receives"),
    ("input_layernorm", "returns"),
    ("self_attention.linear_qkv", "returns"),
    ("self_attention.core_attention", "receives"),
    ("self_attention.core_attention", "returns"),
    ("self_attention.linear_proj", "returns"),
    ("pre_mlp_layernorm", "returns"),
    ("mlp.linear_fc1", "returns"),
    ("mlp.linear_fc2", "returns"),
    ("", "returns"),
]


def of_layer(number: int, config: CellConfig, built: list[BuiltSeen] = BUILT) -> OperationsSeen:
    return operations_of(replace(config, operations=number), built)


def names(seen: OperationsSeen) -> list[tuple[str, str]]:
    return [(one.module, one.name) for one in seen.operations]


def deeper(layers: int) -> list[BuiltSeen]:
    return [replace(BUILT[0], values=MODEL | {"num_layers": str(layers)}), *BUILT[1:]]


def by_name(seen: OperationsSeen) -> dict[tuple[str, str], OperationSeen]:
    return {(one.module, one.name): one for one in seen.operations}


def test_modules_come_in_the_order_of_a_forward() -> None:
    seen = of_layer(1, cell())
    assert names(seen) == DENSE
    assert all((one.kind, one.number, one.inputs) == (one.name, 0, []) for one in seen.operations)


def test_of_eleven_layers_only_the_one_asked_for_is_seen() -> None:
    """The name of the second begins like that of the eleventh."""
    config = replace(cell(), train=replace(cell().train, global_batch=1))
    seen = of_layer(2, config, deeper(11))
    assert (seen.layer, names(seen)) == (2, DENSE)
    assert seen.operations == of_layer(2, config, deeper(2)).operations


def test_number_0_is_the_embedding() -> None:
    (seen,) = of_layer(0, cell()).operations
    (embedded,) = by_name(of_layer(1, cell()))["", "receives"].outputs
    assert (seen.module, seen.name, seen.outputs) == ("", "returns", [embedded])


def test_a_record_is_of_one_rank_that_the_oracle_is() -> None:
    seen = of_layer(1, cell("unpacked"))
    assert (seen.rank, seen.place) == (0, Coordinates(tp=0, cp=0, dp=0, pp=0))
    assert (seen.mode, seen.torch) == ("the oracle", torch.__version__)


@pytest.mark.parametrize(("data_path", "dp", "micro_batches"), [("sft", 1, 3), ("unpacked", 1, 8), ("unpacked", 2, 8)])
def test_documents_of_all_micro_batches_have_the_fingerprints_that_ranks_make(
    data_path: str, dp: int, micro_batches: int, noted: dict[Noted, tuple[Tensor, ...]]
) -> None:
    config = cell(data_path, dp)
    seen, at = of_layer(2, config), "decoder.layers.1"
    assert seen.micro_batches == micro_batches == sum(map(len, config.micro_batches(0)))
    assert {one.micro_batches for one in seen.operations} == {micro_batches}
    oracle = Oracle.of(config, BUILT)
    found: dict[Noted, list[dict[int, list[float]]]] = {}
    shapes: dict[Noted, list[list[int]]] = {}
    for plans in config.micro_batches(0):
        for plan in plans:
            stream = stream_of(config, 0, plan)
            oracle.forward(stream, 0, 0, 0)
            owners = torch.stack([stream.documents, stream.positions], 1)
            for (module, name), tensors in noted.items():
                inside = (module.removeprefix(at).removeprefix("."), name)
                documents = found.setdefault(inside, [{} for _ in tensors])
                shapes.setdefault(inside, [list(tensor.shape) for tensor in tensors])
                for one, tensor in zip(documents, tensors):
                    made = token_fingerprints(
                        tensor.flatten(1), owners, length=config.train.seq_length, seed=config.train.seed
                    )
                    one |= {number: [mark.norm_sq, *mark.projections] for number, mark in made.items()}
    for key, one in by_name(seen).items():
        assert [output.shape for output in one.outputs] == shapes[key]
        for output, documents in zip(one.outputs, found[key], strict=True):
            assert output.documents.keys() == documents.keys() == set(range(8))
            for number, mark in output.documents.items():
                assert [mark.norm_sq, *mark.projections] == pytest.approx(documents[number], rel=1e-9, abs=1e-12)


def test_a_tensor_has_the_shape_and_norm_of_the_first_micro_batch() -> None:
    config = cell("unpacked")
    (packed,), (rows,) = (by_name(of_layer(1, one))["", "receives"].outputs for one in (cell(), config))
    assert (rows.shape, rows.dtype, rows.features) == ([32, 8], "float64", 8)
    weight = Oracle.of(config, BUILT).weights["embedding.word_embeddings.weight"].detach()
    embedded = weight[stream_of(config, 0, config.micro_batches(0)[0][0]).tokens]
    assert rows.norm == pytest.approx(float(embedded.square().sum().sqrt()))
    assert packed.documents == rows.documents
    query, key, _ = by_name(of_layer(1, config))["self_attention.core_attention", "receives"].outputs
    assert (query.shape, query.features, key.shape, key.features) == ([32, 2, 4], 8, [32, 1, 4], 4)


def test_documents_are_those_of_the_first_step() -> None:
    """Whose lengths are 3 and 5; those of the second are 7 and 9."""
    config = replace(cell(), documents=DocumentsConfig(mode="file", lengths=(3, 5, 7, 9)))
    config = replace(config, train=replace(config.train, global_batch=2))
    (embedded,) = of_layer(0, config).operations[0].outputs
    weight = Oracle.of(config, BUILT).weights["embedding.word_embeddings.weight"].detach()
    for document in config.documents_of(0):
        own = weight[document_tokens(config, 0, document)[: document.length]]
        assert embedded.documents[document.index].norm_sq == pytest.approx(float(own.square().sum()))


def test_modules_that_see_only_some_slots_are_missing() -> None:
    seen = names(of_layer(1, rounding_cell(), ROUTED))
    assert ("pre_mlp_layernorm", "returns") in seen
    assert not [module for module, _ in seen if ".experts." in module]


def test_routers_choose_as_the_ranks_did() -> None:
    config = replace(rounding_cell(), operations=1)
    first = {place: choice for place, choice in all_of_expert_0(config).items() if place[0] == 0}
    own, followed = (by_name(operations_of(config, ROUTED, choices)) for choices in ({}, first))
    assert followed["", "receives"] == own["", "receives"]
    assert followed["", "returns"] != own["", "returns"]


def test_afterwards_nothing_is_noted_any_more() -> None:
    of_layer(1, cell())
    assert NOTED.get() is None
