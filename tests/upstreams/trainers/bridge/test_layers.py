from __future__ import annotations

from typing import Any

import pytest
from megatron.core.models.gpt import gpt_layer_specs

from harness.upstreams.megatron_bridge.node_trainer import use_local_prediction


@pytest.fixture(autouse=True)
def upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    def spec(config: Any, spec: Any, use_transformer_engine: bool, **more: Any) -> Any:
        return config, spec, use_transformer_engine, more

    monkeypatch.setattr(gpt_layer_specs, "get_gpt_mtp_block_spec", spec)


@pytest.mark.parametrize(("kind", "by_te"), [("reference", False), ("te", True), ("te-flash", True)])
def test_prediction_layers_are_of_the_kind_of_the_others(kind: str, by_te: bool) -> None:
    use_local_prediction(kind)
    found = gpt_layer_specs.get_gpt_mtp_block_spec("config", "spec", use_transformer_engine=True, vp_stage=1)
    assert found == ("config", "spec", by_te, {"vp_stage": 1})
