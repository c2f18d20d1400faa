"""The overhead of the harness on a timed step: its timing leg against a bare Megatron loop, in one process.

    .venv/bin/python benchmarks/bench_overhead.py [--rounds 41] [--hidden 256 ...]

Two models with weights of the same shapes: one went through the probe (recording hooks, removed as before every timing
leg) and runs as in the timing leg, with barrier, clock and record; the other never saw the probe and runs Megatron's
forward_backward_func on the same batches. Their steps are interleaved, with the order reversed in every round.
Prints the paired ratio of times with its interval; exit code 1 when the whole interval is above the limit of 1.01.
Times are processor time on a CPU, and wall time between synchronisations on a GPU. Default sizes: on a GPU a slice of
1.9 billion weights at 8,192 tokens in bf16, else a small model.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from figures import Figure, finished, parser
from megatron.core.pipeline_parallel import get_forward_backward_func

from harness.core.cell.config import CellConfig, ModelConfig, TrainConfig
from harness.core.cell.flops import work_of
from harness.core.cell.layout import Coordinates, Layout
from harness.core.cell.timing import TimingConfig
from harness.core.packing.documents import DocumentsConfig
from harness.core.run.records import RankRecord
from harness.faults.node_table import fault_named
from harness.features.attention import node_kinds
from harness.judge.stats.paired import paired_ratio
from harness.probe.legs.timing import TimingLeg
from harness.probe.model import gpt
from harness.probe.passes import Passes
from harness.probe.truth import StepTruth
from harness.runtime.device import cpu_stubs
from harness.runtime.device.placement import Device, choose_device, synchronize
from harness.runtime.recording.recorder import Recorder
from harness.upstreams.node_base import Batch, RankContext
from harness.upstreams.node_data_paths import ADAPTERS

LIMIT = 1.01
SMALL = {"layers": 1, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 128, "vocab": 128, "seq_length": 64}
SIZES = {  # kind of device -> default sizes
    "cpu": {"layers": 4, "hidden": 256, "heads": 8, "kv_heads": 4, "ffn": 512, "vocab": 1024, "seq_length": 512},
    "cuda": {
        "layers": 4,
        "hidden": 4096,
        "heads": 32,
        "kv_heads": 8,
        "ffn": 14336,
        "vocab": 131072,
        "seq_length": 8192,
    },
}


def cell(sizes: dict[str, int], dtype: str) -> CellConfig:
    """A cell of one rank with the harness's own packing and a lognormal mix of documents."""
    seq_length = sizes["seq_length"]
    model: dict[str, Any] = {name: size for name, size in sizes.items() if name != "seq_length"}
    return CellConfig(
        layout=Layout(),
        data_path="reference",
        dtype=dtype,
        model=ModelConfig(**model),
        train=TrainConfig(seq_length=seq_length),
        documents=DocumentsConfig(mode="distribution", max_seq_len=seq_length, mean_seq_len=seq_length / 4),
        timing=TimingConfig(unpacked=True),
    )


def probe_step(context: RankContext, folder: Path) -> Callable[[], None]:
    """A function that runs a round of the timing leg with the packed documents as its only load."""
    recorder = Recorder(RankRecord(cell="overhead", rank=0, place=context.place), folder / "rank-0.json")
    path = ADAPTERS[context.config.data_path](context)
    chunks = gpt.build_chunks(context.config, gpt.transformer_config(context.config), context.device)
    leg = TimingLeg(Passes(chunks, path, context, fault_named(None), recorder))
    leg.prepare()
    load = leg.load_of("packed", 0, context.config, path)
    return lambda: leg.one_round([load], 0)


def bare_step(context: RankContext) -> Callable[[], None]:
    """A function that runs the same pass as a training script would."""
    config, device = context.config, context.device
    (chunk,) = gpt.build_chunks(config, gpt.transformer_config(config), device)
    path = ADAPTERS[config.data_path](context)
    truth = StepTruth(config, 0, 0)
    iterator = path.iterator(truth, 0)
    batches = [path.fetch(iterator, 0) for _ in truth.plans]
    run = get_forward_backward_func()

    def step() -> None:
        chunk.zero_grad_buffer()
        run(
            forward_step_func=_forward_step,
            data_iterator=iter(batches),
            model=chunk,
            num_microbatches=len(batches),
            seq_length=config.train.seq_length,
            micro_batch_size=1,
            forward_only=False,
        )

    return step


def _forward_step(iterator: Iterator[Batch], chunk: Any) -> tuple[Any, Any]:
    batch = next(iterator)
    output = chunk(batch.tokens, batch.position_ids, None, labels=batch.labels, packed_seq_params=batch.params)
    return output, partial(_loss, batch.loss_mask)


def _loss(loss_mask: Any, output: Any) -> tuple[Any, Any, dict[str, Any]]:
    loss, tokens = (output.float() * loss_mask).sum(), loss_mask.sum().to(torch.int)
    return loss, tokens, {"lm loss": torch.stack([loss.detach(), tokens.float()])}


def seconds(step: Callable[[], None], device: Device) -> float:
    clock = time.process_time if device.kind == "cpu" else time.perf_counter
    synchronize(device)
    begin = clock()
    step()
    synchronize(device)
    return clock() - begin


def measure(steps: dict[str, Callable[[], None]], device: Device, rounds: int, warmup: int) -> dict[str, list[float]]:
    """Name of a step -> its seconds in each round; the order is reversed in every round."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    gc.collect()
    gc.disable()
    for number in range(-warmup, rounds):
        order = list(steps) if number % 2 else list(reversed(steps))
        for name in order:
            spent = seconds(steps[name], device)
            times[name] += [spent] if number >= 0 else []
    gc.enable()
    return times


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=41)
    options.add_argument("--warmup", type=int, default=3)
    options.add_argument("--dtype", choices=list(gpt.DTYPES))
    for name in SIZES["cpu"]:
        options.add_argument(f"--{name.replace('_', '-')}", type=int, dest=name)
    arguments = options.parse_args()
    rounds, warmup = (7, 1) if arguments.smallest else (arguments.rounds, arguments.warmup)
    torch.set_num_threads(1)
    device = choose_device(0, 1)
    if device.kind == "cpu":
        cpu_stubs.install()
    usual = SMALL if arguments.smallest else SIZES[device.kind]
    sizes = {name: getattr(arguments, name) or size for name, size in usual.items()}
    config = cell(sizes, arguments.dtype or {"cpu": "fp32", "cuda": "bf16"}[device.kind])
    store = dist.HashStore()  # type: ignore[attr-defined]  # public, but not re-exported by its stub
    dist.init_process_group(device.backend, store=store, rank=0, world_size=1)
    gpt.initialize_parallel(config, device)
    config = node_kinds.resolved(config, device)
    with tempfile.TemporaryDirectory(prefix="overhead-") as folder:
        place = Coordinates(tp=0, cp=0, dp=0, pp=0)
        context = RankContext(config=config, place=place, device=device, folder=Path(folder))
        steps = {"probe": probe_step(context, Path(folder)), "bare": bare_step(context)}
        times = measure(steps, device, rounds, warmup)
    dist.destroy_process_group()
    work = work_of(config)
    print(f"{device.kind}, {config.dtype}, {sizes}: {work.real_tokens} real tokens in {work.slots} slots")
    ratio = paired_ratio(times["probe"], times["bare"])
    assert ratio is not None
    print(f"probe over bare: {ratio.median:.4f} times ({ratio.low:.4f} to {ratio.high:.4f} in {ratio.rounds} rounds)")
    print(f"limit {LIMIT}: {'EXCEEDED' if ratio.above(LIMIT) else 'kept' if ratio.high <= LIMIT else 'undecided'}")
    figures = [
        Figure(name=f"a step, {name}", values=[1000 * value for value in found], unit="ms")
        for name, found in times.items()
    ]
    figures.append(Figure(name="probe over bare, median of pairs", values=[ratio.median], unit="times", limit=LIMIT))
    finished(figures, arguments)
    return 1 if ratio.above(LIMIT) and not arguments.smallest else 0


if __name__ == "__main__":
    sys.exit(main())
