"""Which failed cells have a standalone reproducer, a script without the harness, and the values in it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from harness.core.cell.config import CellConfig, ModelConfig
from harness.core.outcomes import Finding
from harness.core.packing.arithmetic import MicroBatch
from harness.core.packing.options import align_up
from harness.core.setting import upstream_of
from harness.upstreams.builtin.spec import REFERENCE
from harness.upstreams.megatron_bridge.spec import OFFLINE
from harness.upstreams.megatron_lm.spec import SFT

MAX_RANKS = 8
_SIZES = ("layers", "hidden", "heads", "kv_heads", "head_size", "ffn", "vocab")
_NUMBERS = ("aux_loss", "z_loss", "parameter_gradients", "grad_norm")
_METADATA = ("params_present", "params_form", "params_agree_plan", "params_agree_ranks")


@dataclass(frozen=True, kw_only=True)
class Standalone:
    """The values of a script; `template`: its name without suffix."""

    template: str
    ranks: int
    needs: str  # what must be installed
    test: str  # name of the pytest function, without prefix
    shows: str  # a text that its output contains when it fails for this reason
    values: Mapping[str, Any]


def standalone(config: CellConfig, finding: Finding, checkouts: tuple[str, ...]) -> Standalone | str:
    """Return the script for a cell, or why it can have none. `checkouts`: projects that its stack has checked out."""
    if reason := _none(config):
        return reason
    if finding.check in _NUMBERS:
        return _gradients(config)
    if finding.check not in _METADATA:
        return f"no script repeats the check {finding.check}"
    form = _FORMS.get(config.data_path)
    return form(config, checkouts) if form else f"no script repeats the data path {config.data_path}"


def _none(config: CellConfig) -> str:
    if config.fault:
        return f"the harness injected the fault {config.fault}: upstream's code is not at fault"
    if not config.trained_by_harness:
        return f"the cell ran the training loop of {config.trainer}, which a script cannot repeat"
    if config.layout.vpp > 1 or config.layout.ep > 1:
        return "scripts have no interleaved stages and no expert parallelism"
    if config.model.hybrid or config.model.vision or config.model.mtp:
        return "scripts have no hybrid or vision model and no multi-token prediction"
    if config.layout.world_size > MAX_RANKS:
        return f"it needs {config.layout.world_size} ranks, and scripts have at most {MAX_RANKS}"
    return ""


def _sft(config: CellConfig, checkouts: tuple[str, ...]) -> Standalone:
    checkout = "megatron-lm" in checkouts
    replicas = config.micro_batches(0)
    multiple = config.options.pad_seq_to_mult or 1
    lengths = [
        [
            [align_up(segment.document.original_length + 1, multiple) for segment in row.placed]
            for micro in replica
            for row in micro.rows
        ]
        for replica in replicas
    ]
    return Standalone(
        template="sft_checkout" if checkout else "sft_wheel",
        ranks=config.layout.world_size,
        needs="Megatron-LM on PYTHONPATH" if checkout else "megatron-core 0.17 or later",
        test="every_rank_gets_the_offsets_of_the_documents",
        shows="WRONG",
        values={
            "layout": config.layout,
            "seq_length": config.train.seq_length,
            "rows": config.micro_batch_size,
            "documents": lengths,
            "expected": [[_expected(micro) for micro in replica] for replica in replicas],
            "reads": "tp == 0",
        },
    )


def _gradients(config: CellConfig) -> Standalone | str:
    """Return the script that compares packed rows split over context-parallel ranks with the same rows on one rank."""
    layout, model = config.layout, config.model
    if config.data_path != REFERENCE.name or layout.cp == 1 or layout.cp < layout.world_size:
        return "scripts compare gradients only of the harness's own packing (reference), split over cp ranks alone"
    if not config.options.calculate_per_token_loss:
        return "scripts compare gradients only with calculate_per_token_loss, where each token has the same weight"
    sizes = replace(ModelConfig(), **{name: getattr(model, name) for name in _SIZES}, moe=model.moe)
    if model != sizes or config.dtype != "fp32":
        return "scripts have dense layers or experts in fp32, without other parts of the model"
    moe = model.moe
    experts = {} if moe is None else {**upstream_of(moe), "moe_aux_loss_coeff": moe.aux_loss_coeff * moe.balanced}
    experts |= {"moe_z_loss_coeff": moe.z_loss_coeff or None} if moe else {}
    values = {name: value for name, value in {**upstream_of(model), **experts}.items() if value not in (None, False)}
    values.pop("moe_token_dispatcher_type", None)
    return Standalone(
        template="gradients",
        ranks=layout.cp,
        needs="megatron-core 0.17 or later",
        test="gradients_do_not_depend_on_the_number_of_context_parallel_ranks",
        shows="WRONG",
        values={
            "vocab": model.vocab,
            "documents": [
                [(segment.padded_length, segment.document.loss_tokens) for segment in micro.placed]
                for micro in config.micro_batches(0)[0]
            ],
            "model": {name: repr(value).replace("'", '"') for name, value in values.items()},
        },
    )


def _expected(micro: MicroBatch) -> tuple[list[int], int]:
    """Return cu_seqlens and max_seqlen, as attention must receive them."""
    params = micro.params()
    assert params is not None
    return list(params.cu_seqlens_q), params.max_seqlen_q


def _bridge_offline(config: CellConfig, checkouts: tuple[str, ...]) -> Standalone | str:
    if config.style.document_multiple > 1 or config.options.pad_cu_seqlens:
        return "scripts of Megatron-Bridge pad no documents and no offsets"
    replicas = config.micro_batches(0)
    rows = [
        [[segment.document.length + 1 for segment in micro.rows[0].placed] for micro in replica] for replica in replicas
    ]
    return Standalone(
        template="bridge_offline",
        ranks=config.layout.world_size,
        needs="megatron-bridge 0.4 or later",
        test="every_rank_gets_the_offsets_of_the_documents",
        shows="WRONG",
        values={
            "layout": config.layout,
            "seq_length": config.train.seq_length,
            "rows": 1,
            "documents": rows,
            "expected": [[_expected(micro) for micro in replica] for replica in replicas],
            "reads": "True",
            "pad_to_max_length": config.options.pad_to_max_length,
        },
    )


_FORMS: Mapping[str, Callable[[CellConfig, tuple[str, ...]], Standalone | str]] = {
    SFT.name: _sft,
    OFFLINE.name: _bridge_offline,
}
