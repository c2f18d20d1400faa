"""A cell as SkyRL's configuration, whose classes are not installed here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from harness.core.cell.arguments import Arguments, merged
from harness.core.cell.axes import axes, dotted, with_value
from harness.core.cell.config import CellConfig
from harness.core.packing.documents import mix
from harness.matrix.rules.table import rejections
from harness.runtime.device.placement import choose_device
from harness.upstreams.skyrl.node_config import fields, trainer_config
from harness.upstreams.skyrl.node_documents import examples
from tests.runtime.conftest import config
from tests.upstreams.trainers.megatron.test_flags import OTHER_VALUES

CPU = choose_device(0, 1, "cpu")
DEFAULTS = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


def made_by_skyrl(**given: Any) -> SimpleNamespace:
    """As TrainerConfig: sections with defaults beside what it is given."""
    ddp = SimpleNamespace(overlap_grad_reduce=False, overlap_param_gather=False, average_in_collective=True)
    megatron = SimpleNamespace(ddp_config=ddp, transformer_config_kwargs=dict(DEFAULTS), optimizer_config_kwargs={})
    policy = SimpleNamespace(megatron_config=megatron, optimizer_config=SimpleNamespace(weight_decay=0.01))
    return SimpleNamespace(policy=policy, algorithm=SimpleNamespace(temperature=None), **given)


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("skyrl", "skyrl.train", "skyrl.train.config", "skyrl.train.config.config"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["skyrl.train.config.config"], "TrainerConfig", made_by_skyrl, raising=False)
    provider = ModuleType("megatron.bridge.models.gpt_provider")
    monkeypatch.setattr(provider, "local_layer_spec", "local", raising=False)
    monkeypatch.setitem(sys.modules, provider.__name__, provider)
    yield


def cell(**more: Any) -> CellConfig:
    own = {"trainer": "skyrl", "micro_batch_size": 2, "distributed_optimizer": "on"}
    return replace(config("skyrl", tp=2, pp=2, cp=2), **own | more)


def kwargs(config: CellConfig) -> dict[str, Any]:
    found: dict[str, Any] = trainer_config(config, CPU).policy.megatron_config.transformer_config_kwargs
    return found


def test_it_holds_layout_and_micro_batches() -> None:
    made = trainer_config(cell(), CPU)
    megatron = made.policy.megatron_config
    assert (megatron.tensor_model_parallel_size, megatron.pipeline_model_parallel_size) == (2, 2)
    assert megatron.context_parallel_size == 2
    assert (made.micro_train_batch_size_per_gpu, made.remove_microbatch_padding) == (2, True)
    assert (made.algorithm.temperature, made.use_expandable_segments) == (1.0, False)


def test_the_model_is_that_of_the_cell() -> None:
    found = kwargs(cell())
    assert (found["num_layers"], found["sequence_parallel"], found["transformer_layer_spec"]) == (4, True, "local")
    assert "transformer_layer_spec" not in kwargs(cell(attention="te"))
    assert "calculate_per_token_loss" not in found  # SkyRL's loss is that without it


def test_recomputation_is_the_cells_and_not_skyrls_default() -> None:
    assert [kwargs(cell())[name] for name in DEFAULTS] == [None, None, None]
    assert [kwargs(cell(recompute="selective"))[name] for name in DEFAULTS] == ["selective", None, None]
    assert {name: kwargs(cell(recompute="full"))[name] for name in DEFAULTS} == DEFAULTS


def test_precision_is_told_to_the_optimizer_too() -> None:
    made = trainer_config(cell(), CPU)
    assert not made.bf16
    given = made.policy.megatron_config.optimizer_config_kwargs
    assert given == {"bf16": False, "params_dtype": torch.float32, "overlap_param_gather": False}
    half = trainer_config(cell(dtype="bf16"), CPU)
    assert half.bf16 and half.policy.megatron_config.optimizer_config_kwargs["params_dtype"] == torch.bfloat16


def test_overlap_is_that_of_gradients_and_weights() -> None:
    megatron = trainer_config(cell(distributed_optimizer="overlap"), CPU).policy.megatron_config
    assert megatron.ddp_config.overlap_grad_reduce and megatron.ddp_config.overlap_param_gather
    assert megatron.optimizer_config_kwargs["overlap_param_gather"]


def test_it_clips_only_if_the_cell_asks_for_it() -> None:
    plain = trainer_config(cell(), CPU).policy.optimizer_config
    assert (plain.lr, plain.max_grad_norm, plain.weight_decay) == (0.001, 0.0, 0.01)
    words = {"clip_grad": ("0.5",), "weight_decay": ("0.1",), "adam_beta1": ("0.8",), "adam_eps": ("1e-6",)}
    made = trainer_config(cell(args=Arguments(merged(words))), CPU).policy
    found = made.optimizer_config
    assert (found.max_grad_norm, found.weight_decay, found.adam_betas) == (0.5, 0.1, [0.8, 0.999])
    assert made.megatron_config.optimizer_config_kwargs["adam_eps"] == 1e-6


VALUES = OTHER_VALUES | {"packing": "sft", "micro_batch_size": 4, "distributed_optimizer": "overlap"}


def plain() -> CellConfig:
    return replace(cell(), layout=config("skyrl").layout)


def asked_of_upstream(cell: CellConfig) -> tuple[str, dict[str, Any], list[Any]]:
    found = [examples(cell, step) for step in range(cell.train.steps)]
    return repr(trainer_config(cell, CPU)), fields(cell), found


@pytest.mark.parametrize("name", VALUES)
def test_no_axis_is_dropped_in_silence(name: str) -> None:
    """Each changes the configuration or the data, or a rule rejects the cell."""
    axis = (axes() | dotted())[name]
    if name == "documents":
        changed = replace(plain(), documents=mix("uncut", 64, 2))
    else:
        changed = with_value(plain(), axis, VALUES[name])
    assert rejections(changed) or asked_of_upstream(changed) != asked_of_upstream(plain())


def test_the_cell_from_which_an_axis_differs_is_not_rejected() -> None:
    assert rejections(plain()) == ()
