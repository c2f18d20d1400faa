from __future__ import annotations

from dataclasses import replace

from harness.core.cell.model import ModelConfig
from harness.features.experts.config import MoeConfig
from harness.upstreams.verl.node_data_path import _engine
from tests.runtime.conftest import config


class Engine:
    """In place of verl's, of which nothing is called."""


def test_upstream_gets_the_whole_configuration_of_the_model() -> None:
    moe = MoeConfig(experts=8, aux_loss="aux_loss", aux_loss_coeff=0.5, z_loss_coeff=0.1)
    made = _engine(Engine, replace(config("verl"), model=ModelConfig(layers=2, moe=moe))).tf_config
    assert (made.num_moe_experts, made.moe_aux_loss_coeff, made.moe_z_loss_coeff) == (8, 0.5, 0.1)
    assert (made.num_layers, made.calculate_per_token_loss) == (2, True)
