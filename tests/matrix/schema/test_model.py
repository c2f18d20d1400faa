"""The parts of a model in a matrix: long names, axes, errors, names of cells, and controls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.core.run.run_dir import path_component
from harness.features.attention.config import MlaConfig
from harness.features.experts.config import MoeConfig
from harness.features.prediction.config import MtpConfig
from harness.matrix.schema.json_schema import json_schema
from harness.upstreams.table import DATA_PATHS
from tests.matrix.helpers import expand_axes, matrix_of, names, problems_of

AXES = {"packing": "reference"}


def test_long_names_of_megatron_are_accepted_inside_the_parts() -> None:
    model = matrix_of(
        matrix=AXES,
        model={
            "moe": {
                "num_moe_experts": 8,
                "moe-router-topk": 1,
                "moe_router_load_balancing_type": "seq_aux_loss",
                "moe_aux_loss_coeff": 0.5,
                "moe_ffn_hidden_size": 32,
            },
            "mtp": {"mtp_num_layers": 2, "mtp_loss_scaling_factor": 0.3},
            "mla": {"q_lora_rank": None, "rope_type": "yarn"},
        },
    ).model
    assert model.moe == MoeConfig(experts=8, topk=1, aux_loss="seq_aux_loss", aux_loss_coeff=0.5, ffn=32)
    assert model.mtp == MtpConfig(layers=2, loss_factor=0.3)
    assert model.mla == MlaConfig(q_lora_rank=None, rope="yarn")


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ({"moe": {"expertz": 4}}, "model.moe.expertz: unknown key"),
        ({"moe": {"expertz": 4}}, "did you mean 'experts'?"),
        ({"moe": {"layer_freq": "[0,1]"}}, "model.moe.layer_freq: lists 2 layers, and layers is 4"),
        ({"moe": {"layer_freq": "[0]*4"}}, "model.moe.layer_freq: no layer has experts"),
        ({"moe": {"topk": 5}}, "model.moe.topk: topk 5 is more than experts 4"),
        ({"moe": {"aux_loss": "aux"}}, "must be one of none, aux_loss, seq_aux_loss"),
        ({"moe": {"experts": 2, "num_experts": 2}}, "given twice"),
        ({"moe": 4}, "model.moe: must be a mapping"),
        ({"mtp": {"layers": 0}}, "model.mtp.layers: must be at least 1"),
        ({"mtp": {"loss_factor": 0}}, "model.mtp.loss_factor: must be above 0"),
        ({"mla": {"qk_pos_emb_head_dim": 3}}, "rotary positions need an even size, and 3 is odd"),
        ({"pattern": "*-"}, "model.layers: pattern '*-' has 2 layers, and layers is 4"),
        ({"pattern": "*-*X"}, "model.pattern: 'X' is not a layer; use *, G, M, -, E, and | between stages"),
        ({"pattern": "*E*E"}, "model.moe: pattern '*E*E' and moe do not agree on whether there are experts"),
    ],
)
def test_a_wrong_part_is_reported_with_what_is_allowed(model: dict[str, Any], expected: str) -> None:
    assert any(expected in str(problem) for problem in problems_of(matrix=AXES, model=model))


def test_a_wrong_part_on_an_axis_is_reported_at_its_item() -> None:
    found = problems_of(matrix={**AXES, "model.moe": [None, {"topk": "2"}]})
    assert any("matrix.model.moe[1].topk: must be an integer" in str(problem) for problem in found)


def test_axes_of_parts_take_mappings_and_null_and_name_the_cells() -> None:
    made = expand_axes({**AXES, "model.moe": [None, {"aux_loss": "aux_loss"}], "model.mtp": [None, {}]})
    assert names(made) == [
        "tp1-pp1-cp1-reference",
        "tp1-pp1-cp1-reference-mtp1",
        "tp1-pp1-cp1-reference-moe4x2-aux_loss",
        "tp1-pp1-cp1-reference-moe4x2-aux_loss-mtp1",
    ]
    assert [cell.axes["model.moe"] for cell in made.cells if cell.role == "cell"][::2] == ["none", "moe4x2-aux_loss"]


def test_every_legal_number_of_experts_makes_an_id_that_names_a_file() -> None:
    number = [{"z_loss_coeff": 1e6, "capacity_factor": 1e6}, {"z_loss_coeff": 1e-6, "capacity_factor": 0.01}]
    made = expand_axes({**AXES, "model.moe": number})
    assert all(path_component(cell.id) for cell in made.cells)
    assert names(made) == ["tp1-pp1-cp1-reference-moe4x2-z1e06-cap1e06", "tp1-pp1-cp1-reference-moe4x2-z1e-06-cap0.01"]


def test_an_id_that_names_no_file_is_a_problem_of_the_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the data path of a plug-in with such a name would make it."""
    monkeypatch.setitem(DATA_PATHS, "a/b", replace(DATA_PATHS["reference"], name="a/b"))
    (problem,) = problems_of(matrix={"packing": "a/b"})
    assert problem.message == "the id of a cell cannot name its folder"
    assert "a/b" in problem.found


def test_the_name_of_a_cell_shows_a_part_that_an_axis_removes() -> None:
    made = expand_axes({**AXES, "model.moe": [None, {}]}, model={"moe": {}})
    assert names(made) == ["tp1-pp1-cp1-reference-nomoe", "tp1-pp1-cp1-reference"]


def test_the_schema_offers_the_parts_with_their_long_names() -> None:
    schema = json_schema()
    moe = schema["$defs"]["MoeSection"]["properties"]
    assert {"experts", "num_moe_experts", "padding_mask"} <= moe.keys()
    assert "model.moe" in schema["properties"]["matrix"]["properties"]
