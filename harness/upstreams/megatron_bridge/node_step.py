"""Megatron-Bridge's training step up to the model: forward_step, called with a stub of the model.

get_batch, the split over context-parallel ranks and packed_seq_utils are thus upstream's, in upstream's order; the stub
records what the model would get. The same call works with releases 0.4 to 0.6.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from harness.core.cell.config import CellConfig
from harness.upstreams.builtin.node_stub import ModelStub
from harness.upstreams.node_base import Batch, RankContext, batch_given, mask_and_loss
from harness.upstreams.node_lookup import Unavailable, module_unavailable


def missing(*modules: str) -> Unavailable:
    """Return why these modules of megatron.bridge cannot be used; None when they can."""
    for module in modules:
        names = ("forward_step",) if module.endswith("_step") else ()
        if reason := module_unavailable(f"megatron.bridge.{module}", "megatron.bridge", *names):
            return reason
    return None


def dataset_config(config: CellConfig, root: str, specs: Any = None, **dataset_kwargs: Any) -> Any:
    """Return upstream's configuration of a dataset of JSON lines under `root`; packed offline when specs are given."""
    common: dict[str, Any] = {
        "dataset_root": root,
        "seq_length": config.train.seq_length,
        "dataset_kwargs": dataset_kwargs,
        "do_validation": False,
        "do_test": False,
    }
    try:
        from megatron.bridge.data.builders.gpt_sft import GPTSFTDatasetConfig as Upstream
    except ModuleNotFoundError:
        from megatron.bridge.training.config import FinetuningDatasetConfig as Upstream
    if "packed_sequence_specs" in inspect.signature(Upstream).parameters:  # up to 0.5
        return Upstream(packed_sequence_specs=specs, **common)
    return Upstream(enable_offline_packing=specs is not None, offline_packing_specs=specs, **common)


def state_of(dataset: Any, sizes: Any) -> Any:
    """Return the part of upstream's GlobalState that forward_step reads."""
    switches = SimpleNamespace(check_for_nan_in_loss=False, check_for_spiky_loss=False)
    cfg = SimpleNamespace(dataset=dataset, model=sizes, rerun_state_machine=switches)
    # A plain namespace: a field that a later release reads raises AttributeError, which names it.
    return SimpleNamespace(timers=_timers, straggler_timer=_NoTimer(), cfg=cfg)


class BridgeStep:
    """Calls forward_step on one rank. `dataset`: upstream's dataset configuration, which forward_step reads."""

    def __init__(self, context: RankContext, dataset: Any, module: str = "gpt_step") -> None:
        self.context = context
        self.forward_step = importlib.import_module(f"megatron.bridge.training.{module}").forward_step
        layout, mtp = context.config.layout, context.config.model.mtp
        sizes = SimpleNamespace(
            virtual_pipeline_model_parallel_size=layout.vpp if layout.vpp > 1 else None,
            seq_length=context.config.train.seq_length,
            sequence_parallel=layout.sp,
            mtp_num_layers=mtp.layers if mtp else None,
            is_hybrid_model=bool(context.config.model.pattern),  # decides on total_tokens from 0.5 on
        )
        self.state = state_of(dataset, sizes)
        self.sizes = sizes

    def batch(self, iterator: Iterator[Any] | None, chunk: int) -> Batch:
        """Return the next micro-batch as upstream passes it to the model, with the loss mask of upstream's loss
        function.
        """
        vp_stage = chunk if self.context.config.layout.vpp > 1 else None
        model = CalledModel(self.sizes, vp_stage, embeds=self.context.is_first(chunk))
        with model.called_by(f"{self.forward_step.__module__}.forward_step"):
            _, loss = self.forward_step(self.state, iterator, model)
        # The loss function is a partial that holds the mask: the model itself is not given one.
        mask, _ = mask_and_loss(loss)
        return replace(batch_given(model.given), loss_mask=None if mask is None else mask.float())


class CalledModel(ModelStub):
    """A stub of the model that records its arguments. Process groups are Megatron's own."""

    def __init__(self, config: Any, vp_stage: int | None, *, embeds: bool = True) -> None:
        from megatron.core.process_groups_config import ProcessGroupCollection

        self.config, self.vp_stage = config, vp_stage
        self.pre_process = embeds  # read by main of 2026-08
        self.pg_collection = ProcessGroupCollection.use_mpu_process_groups()
        self.given: dict[str, Any] = {}

    def __call__(self, **given: Any) -> torch.Tensor:
        self.given = given
        return torch.empty(0)


def _timers(name: str, log_level: int = 0) -> Any:
    return SimpleNamespace(start=lambda: None, stop=lambda: None)


class _NoTimer:
    """Used both as `with timer:` and as `with timer(bdata=True):`."""

    def __call__(self, **_: Any) -> _NoTimer:
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        pass
