"""What a plan will cost, before anything runs: counts are exact, seconds a rough estimate."""

from __future__ import annotations

from dataclasses import dataclass

from harness.words.cell import CellConfig
from harness.words.run_plan import Expansion

# Measured with megatron-core 0.19.2 on a machine of 2 cores without a GPU.
IMPORT_S = 10.0  # torch and Megatron, once per agent
RANK_CPU_S = 0.35  # fork, process groups, model, record: processor time of one rank outside its steps
RANK_STEP_CPU_S = 0.02  # one rank, one step, beside its arithmetic: schedule and collectives
CPU_FLOPS = 5e9  # small matrix products in fp32, one core


@dataclass(frozen=True, kw_only=True)
class Cost:
    """`rank_steps` counts training steps times ranks over all cells."""

    cells: int
    rejected: int
    excluded: int
    largest_world: int  # ranks of the biggest cell
    ranks: int  # processes started over the whole run
    rank_steps: int
    seconds: float
    basis: str  # what the seconds come from


def estimate(expansion: Expansion, *, cores: int = 1) -> Cost:
    """Counts of a plan and its estimated wall time on `cores` processor cores."""
    configs = [cell.config for cell in expansion.cells]
    worlds = [config.layout.world_size for config in configs]
    busy = sum(_cpu_seconds(config) / min(cores, world) for config, world in zip(configs, worlds))
    return Cost(
        cells=len(configs),
        rejected=len(expansion.rejected),
        excluded=sum(expansion.excluded.values()),
        largest_world=max(worlds),
        ranks=sum(worlds),
        rank_steps=sum(config.train.steps * world for config, world in zip(configs, worlds)),
        seconds=IMPORT_S + busy,
        basis=f"one import, {RANK_CPU_S} s per rank and {RANK_STEP_CPU_S} s per rank and step, cores: {cores}",
    )


def _cpu_seconds(config: CellConfig) -> float:
    """Processor time of one cell over all its ranks."""
    world, steps = config.layout.world_size, config.train.steps
    return world * (RANK_CPU_S + steps * RANK_STEP_CPU_S) + steps * step_flops(config) / CPU_FLOPS


def step_flops(config: CellConfig) -> float:
    """Arithmetic of one step, forward and backward: 6 x parameters x slots (attention scores left out).

    Slots are bounded by one row per document, the unpacked case.
    """
    model, train = config.model, config.train
    head = model.hidden // model.heads
    attention = model.hidden * (2 * model.hidden + 2 * model.kv_heads * head)
    parameters = model.layers * (attention + 3 * model.hidden * model.ffn) + model.hidden * model.vocab
    return 6.0 * parameters * train.global_batch * train.seq_length
