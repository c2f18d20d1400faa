"""Timing leg: times loads one after the other, in rounds, and records only seconds.

A load is a piece of work that is timed as a whole: a forward and backward over one step's batches, or the rotary
function. The leg runs last and removes the probe's hooks from the model, since they cost time per document. Batches are
fetched beforehand.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.core.cell.flops import load_config, slope_config
from harness.core.cell.timing import Moment, Timed, rotary_tokens
from harness.core.run.run_dir import AttemptDir, write_json
from harness.features.attention.node_rotary import attention_ops, rotary_load, with_other_rotary
from harness.probe.model.gpt import DTYPES, transformer_config
from harness.probe.passes import Passes, forward
from harness.probe.truth import StepTruth
from harness.runtime.device.gpu_state import busiest, gpu_state, sampled
from harness.runtime.device.placement import Device, barrier, synchronize
from harness.upstreams.node_base import Adapter, Batch, RankContext
from harness.upstreams.node_data_paths import ADAPTERS

MAX_WAIT = 0.5  # fraction of the deadline; the other cell may still have to import torch
_POLL_S = 0.005


# Interleaved timing of two cells in different stacks, which take turns by writing a file at the end of each turn.
#
# Turns are numbered from 0 over both cells, in the order ABAB, so that every turn follows a wait. (With ABBA, one cell
# of each round would have warm caches.) Only rank 0 of a cell reads the files. A cell that waits too long gives up and
# writes a file, so that the other one stops waiting too.
def turn_numbers(rounds: int, first: bool) -> Iterator[tuple[int, int]]:
    """Yield (round, turn) of one cell, in order; `first`: whether the cell begins."""
    for turn in range(rounds):
        yield turn, 2 * turn + (0 if first else 1)


class Interleaver:
    """One cell's side of the interleaving."""

    def __init__(self, context: RankContext) -> None:
        timing = context.config.timing
        run = AttemptDir(context.folder).run
        self.folder = run.interleaving(timing.turns) / context.folder.name
        self.rank_zero = context.is_rank_zero
        self.device = context.device.torch_device
        self.timeout_s = MAX_WAIT * context.config.deadline_s

    def wait(self, number: int) -> bool:
        """Wait until the turn before `number` is over; False if the other cell gave up or is too late. Collective."""
        # Ranks must agree, or some would wait in the load's collectives for others that gave up; so rank 0 decides for
        # all.
        ready = torch.tensor([int(self.rank_zero and self._previous_is_over(number))], device=self.device)
        dist.broadcast(ready, 0)
        return bool(ready)

    def over(self, number: int) -> None:
        """Tell the other cell that a turn is over; only rank 0 writes."""
        if self.rank_zero:
            write_json(self.folder / str(number), {"time": time.time()})

    def give_up(self, number: int) -> None:
        """Tell the other cell not to wait for further turns; only rank 0 writes."""
        if self.rank_zero:
            write_json(self.folder / "given-up", {"turn": number, "time": time.time()})

    def _previous_is_over(self, number: int) -> bool:
        limit = time.monotonic() + self.timeout_s
        before, given_up = self.folder / str(number - 1), self.folder / "given-up"
        while number and not before.exists():
            if given_up.exists() or time.monotonic() > limit:
                self.give_up(number)
                return False
            time.sleep(_POLL_S)
        return True


MAX_SHARE = 0.4  # fraction of the deadline that the rounds may take
Run = Callable[[], None]
Reading = Callable[[], float]  # seconds; on a GPU only after a synchronisation


@dataclass(frozen=True, kw_only=True)
class Load:
    """A piece of work to time; `run` is None on ranks that do not take part."""

    name: str
    documents: int
    run: Run | None


class TimingLeg:
    """Prepares and times the loads of a cell."""

    def __init__(self, passes: Passes) -> None:
        self.chunks, self.path = passes.chunks, passes.path
        self.context, self.recorder = passes.context, passes.recorder
        self.stopwatch = stopwatch(self.context.device)
        self.kernels: dict[str, set[str]] = {}  # load -> names of the attention kernels that it used
        self.warmup = self.context.config.timing.warmup_on(self.context.device.kind)

    def run(self) -> None:
        """Time every load `rounds` times, after unrecorded warm-up rounds. Collective."""
        timing = self.context.config.timing
        if not timing.timed:
            return
        self.prepare()
        if timing.unpaired:
            self._rounds([*self._slope(), *self._packing()])
        if timing.turns:
            self._turns()
        self.recorder.flush()

    def prepare(self) -> None:
        """Remove the probe's hooks from the model. Call it before building loads."""
        self.recorder.progress("timing", 0, 0, "start")
        self.recorder.record.warmup_rounds = self.warmup
        for chunk in self.chunks:
            _remove_hooks(chunk)

    def _rounds(self, loads: list[Load]) -> None:
        rounds = self.context.config.timing.rounds
        gc.collect()
        gc.disable()  # else a collection would run inside some load
        try:
            for number in range(-self.warmup, rounds):
                self.recorder.progress("timing", max(number, 0), 0, "forward")
                begin = time.perf_counter()
                order = loads if number % 2 else loads[::-1]  # so that drift within a round affects all loads alike
                self.one_round(order, number, kernels=number == -self.warmup)
                if number == -1:
                    # The last warm-up round is the estimate: earlier ones pay for compilation and first allocations.
                    if not self._fits(time.perf_counter() - begin, {load.name for load in loads}):
                        return
                    self._record_gpu("before")
                self.recorder.flush()  # keeps the rounds so far if the deadline passes
            self._record_gpu("after")
            # After the measured rounds, since profiling kernels and polling the GPU would slow them.
            self._one_more_round(loads)
        finally:
            gc.enable()

    def one_round(self, loads: Sequence[Load], number: int, *, kernels: bool = False) -> None:
        """Run loads one after the other, then read their times; a round below 0 is not recorded.

        `kernels`: record the attention kernels of the loads, which costs time.

        Each load starts on an idle device: otherwise its launches would overlap the kernels of the previous load, which
        would hide the cost of launching many kernels and of host synchronisation.
        """
        device, readings = self.context.device, []
        for load in loads:
            synchronize(device)
            barrier(device)
            if load.run is not None:
                with self._kernels_recorded(load) if kernels else nullcontext():
                    readings.append((load, self.stopwatch(load.run)))
        synchronize(device)
        if number >= 0:
            self.recorder.record.timings += [
                Timed(load=load.name, documents=load.documents, round=number, seconds=reading())
                for load, reading in readings
            ]

    def _record_gpu(self, when: Moment) -> None:
        if self.context.device.kind == "cuda":
            self.recorder.record.gpu_states.append(gpu_state(self.context.device, when))

    def _one_more_round(self, loads: list[Load]) -> None:
        """Run an unrecorded round, to see the state of a GPU under load (an idle one is never throttled) and whether
        a load uses other attention kernels by now."""
        if self.context.device.kind != "cuda":
            self.one_round(loads, -1, kernels=True)
            return
        with sampled(lambda: gpu_state(self.context.device, "under load")) as states:
            self.one_round(loads, -1, kernels=True)
        self.recorder.record.gpu_states += busiest(states)

    @contextmanager
    def _kernels_recorded(self, load: Load) -> Iterator[None]:
        """Record which attention kernels a load uses: a library may choose by shape, and may change its choice."""
        with attention_ops() as names:
            yield
        self.kernels.setdefault(f"{load.name} {load.documents or ''}".rstrip(), set()).update(names)
        users: dict[str, list[str]] = {}
        for name, used in sorted(self.kernels.items()):
            users.setdefault(", ".join(sorted(used)) or "none that torch reports", []).append(name)
        text = "; ".join(f"{used} ({', '.join(names)})" for used, names in users.items())
        self.recorder.record.environment["timed_attention"] = text

    def _turns(self) -> None:
        """Time the step of this cell interleaved with the same cell in another stack; the first rounds warm up."""
        config = self.context.config
        turns, load = Interleaver(self.context), self.load_of("turn", 0, config, self.path)
        for number, turn in turn_numbers(config.timing.rounds + self.warmup, config.timing.first):
            if not turns.wait(turn):
                self.recorder.record.untimed["turn"] = f"the cell of the other stack did not finish turn {turn - 1}"
                return
            begin = time.perf_counter()
            self.one_round([load], number - self.warmup, kernels=number == 0)
            # Twice: the other cell's turns take about as long, and this cell waits for them.
            if number == self.warmup - 1 and not self._fits(2 * (time.perf_counter() - begin), {load.name}):
                turns.give_up(turn)
                return
            turns.over(turn)

    def _fits(self, seconds: float, names: set[str]) -> bool:
        """Return whether rounds of `seconds` of wall time fit before the deadline; if not, records why. Collective."""
        agreed = torch.tensor([seconds], device=self.context.device.torch_device)
        # Clocks of ranks differ by a little, and near the limit they would decide differently and hang.
        dist.broadcast(agreed, 0)
        config = self.context.config
        rounds, limit_s = config.timing.rounds, MAX_SHARE * config.deadline_s
        if rounds * float(agreed) <= limit_s:
            return True
        why = f"{rounds} rounds of {float(agreed):.3g} s exceed {limit_s:.3g} s, {MAX_SHARE} of launch.deadline_s"
        self.recorder.record.untimed.update(dict.fromkeys(names, why))
        return False

    def _slope(self) -> Iterator[Load]:
        """Yield packs of the same size with increasing numbers of documents.

        For the rotary function alone on rank 0 only.
        """
        config = self.context.config
        if not config.timing.documents:
            return
        upstream = transformer_config(config)
        yield from self._rotary("rotary", upstream)
        other_rotary = with_other_rotary(upstream, self.context.device.kind)
        if isinstance(other_rotary, str):
            self.recorder.record.untimed["rotary_other"] = other_rotary
        else:
            yield from self._rotary("rotary_other", other_rotary)
        for documents in config.timing.documents:
            yield self.load_of("step", documents, slope_config(config, documents))

    def _rotary(self, name: str, upstream: Any) -> Iterator[Load]:
        config, device = self.context.config, self.context.device.torch_device
        tokens = rotary_tokens(config.timing, config.layout)
        for documents in config.timing.documents:
            alone = None
            if self.context.is_rank_zero:
                alone = rotary_load(upstream, documents, tokens, device, DTYPES[config.dtype])
            yield Load(name=name, documents=documents, run=alone)

    def _packing(self) -> Iterator[Load]:
        """Yield the documents of step 0 packed by the data path, one per row, and full rows; all in the same layout."""
        config = self.context.config
        requested = [name for name, is_requested in self._unpacked_loads().items() if is_requested]
        configs = {}
        for name in requested:
            try:
                configs[name] = load_config(config, name, 0)
            except ValueError as error:
                self.recorder.record.untimed[name] = str(error)
        if configs:
            yield self.load_of("packed", 0, config, self.path)
        for name, of_load in configs.items():
            assert of_load is not None
            yield self.load_of(name, 0, of_load)

    def _unpacked_loads(self) -> dict[str, bool]:
        timing = self.context.config.timing
        return {"unpacked": timing.unpacked, "full": timing.full_rows}

    def load_of(self, name: str, documents: int, config: CellConfig, path: Adapter | None = None) -> Load:
        """Return a forward and backward over the micro-batches of step 0 of `config`; fetches the micro-batches."""
        path = path or ADAPTERS[config.data_path](replace(self.context, config=config))
        truth = StepTruth(config, 0, self.context.place.dp)
        batches = []
        for chunk in range(len(self.chunks)):
            iterator = path.iterator(truth, chunk)
            batches.append([path.fetch(iterator, chunk) for _ in truth.plans])
        return Load(name=name, documents=documents, run=partial(self._forward_backward, config, batches))

    def _forward_backward(self, config: CellConfig, batches: list[list[Batch]]) -> None:
        for chunk in self.chunks:
            # As a trainer does before each step; gradients would otherwise add up over all rounds.
            chunk.zero_grad_buffer()
        iterators = [iter(of_chunk) for of_chunk in batches]
        get_forward_backward_func()(
            forward_step_func=partial(_forward_step, config),
            data_iterator=iterators if len(iterators) > 1 else iterators[0],
            model=self.chunks if len(self.chunks) > 1 else self.chunks[0],
            num_microbatches=len(batches[0]),
            seq_length=config.train.seq_length,
            micro_batch_size=config.micro_batch_size,
            forward_only=False,
        )


def _forward_step(config: CellConfig, iterator: Iterator[Batch], model: Any, *_: Any) -> tuple[Tensor, Any]:
    """Run Megatron's forward_step_func, as in the training leg but without records."""
    batch = next(iterator)
    return forward(model, batch, config), partial(_loss, batch)


def _loss(batch: Batch, output: Tensor) -> tuple[Any, ...]:
    if batch.score is not None:
        returned = batch.score(output).returned
        return *returned, {"lm loss": returned[0].detach()}
    assert batch.loss_mask is not None
    loss, tokens = (output.float() * batch.loss_mask.float()).sum(), batch.loss_mask.sum().to(torch.int)
    return loss, tokens, {"lm loss": torch.stack([loss.detach(), tokens.float()])}


def _remove_hooks(chunk: Any) -> None:
    """Remove all forward hooks except those with which Megatron's DDP waits for gathered weights."""
    ddp_hooks = {handle.id for handle in getattr(chunk, "remove_forward_pre_hook_handles", {}).values()}
    for module in chunk.modules():
        # torch cannot remove hooks without their handles, and of upstream's own only those of DDP matter here.
        module._forward_hooks.clear()
        for number in module._forward_pre_hooks.keys() - ddp_hooks:
            del module._forward_pre_hooks[number]
            module._forward_pre_hooks_with_kwargs.pop(number, None)


def stopwatch(device: Device) -> Callable[[Run], Reading]:
    """Return a function that runs the load and returns a deferred reader, since reading synchronises."""
    return by_events if device.kind == "cuda" else by_cpu_time


def by_events(run: Run) -> Reading:
    """Measure from the load's first kernel to its last on the current stream."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    run()
    end.record()
    return lambda: begin.elapsed_time(end) / 1000


def by_cpu_time(run: Run) -> Reading:
    """Measure the CPU time of this process: other processes may share the cores, and gloo sleeps while it waits."""
    begin = time.process_time()
    run()
    seconds = time.process_time() - begin
    return lambda: seconds
