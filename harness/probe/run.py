"""The probe of one rank: setup, then the metadata, training, canary and timing legs.

A leg is a part of a cell with its own documents and records, named in progress reports and findings.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Coordinates
from harness.core.hardware import determinism_variables, recorded_variables
from harness.core.run.records import RankRecord
from harness.faults.node_table import fault_named
from harness.features.attention import node_kinds
from harness.features.attention.node_reference import ReferenceAttention
from harness.features.experts import node_grouped
from harness.features.hybrid import node_stubs
from harness.features.optimizer.node_distributed import build_optimizer
from harness.probe.built import import_proof, keep_arguments, record_built
from harness.probe.legs.canaries import CanaryLegs
from harness.probe.legs.metadata import metadata_leg
from harness.probe.legs.timing import TimingLeg
from harness.probe.legs.training import TrainingLeg
from harness.probe.model import gpt, norm
from harness.probe.model.groups import GLOBAL, Groups
from harness.probe.passes import Passes
from harness.probe.weights import initialize
from harness.runtime.device import cpu_stubs, gloo_stubs
from harness.runtime.device.placement import (
    Device,
    capability,
    choose_device,
    limit_memory,
    memory_bytes,
    peak_memory_bytes,
    peak_reserved_bytes,
    processor,
    share_cores,
)
from harness.runtime.recording.recorder import Recorder
from harness.upstreams.node_base import RankContext
from harness.upstreams.node_data_paths import ADAPTERS
from harness.upstreams.node_trainers import TRAINERS


def run_probe(config: CellConfig, place: Coordinates, recorder: Recorder, listener: int | None) -> None:
    """Run the legs on this rank; RANK, WORLD_SIZE, LOCAL_* and MASTER_* are in the environment.

    `listener`: descriptor of the socket on which rank 0 serves the store; None when torchrun serves it.
    """
    begin = time.perf_counter()
    # Cells run side by side, one rank per core; and sums then do not depend on the number of cores.
    torch.set_num_threads(1)
    local_ranks = int(os.environ["LOCAL_WORLD_SIZE"])
    # Before anything touches the GPU: cuBLAS reads its workspace size when it is initialised.
    os.environ |= determinism_variables(os.environ, timed=config.timing.timed) if config.device != "cpu" else {}
    device = choose_device(int(os.environ["LOCAL_RANK"]), local_ranks, config.device)
    config = node_kinds.resolved(config, device, capability(device))
    ReferenceAttention.split = staticmethod(config.style.split)
    recorder.record.environment = _environment(config, device)
    if device.kind == "cpu":
        share_cores()
        recorder.record.cpu_stubs = [
            *cpu_stubs.install(),
            *node_stubs.install(config.model.pattern),
            *norm.replaced(config),
            *node_grouped.install(config, device.kind),
        ]
    else:
        cpu_stubs.refuse()
        node_grouped.install(config, device.kind)
        recorder.record.environment["cpu_stubs"] = "none in this process, checked before the first collective"
        if device.backend == "gloo":  # ranks share a GPU
            recorder.record.gloo_stubs = gloo_stubs.install()
    limit = limit_memory(local_ranks) if device.kind == "cpu" else memory_bytes(device)
    recorder.record.environment["memory_limit_bytes"] = str(limit)
    # Before the first collective, so that a rank that hangs there has already proved what it imported.
    recorder.record.imports = import_proof()
    recorder.flush()
    recorder.lap("device")
    store = _join(config, device, listener)
    recorder.lap("rendezvous")
    context = RankContext(config=config, place=place, device=device, folder=recorder.path.parent.parent)
    with peaks_recorded(recorder.record, device):
        if config.trainer in TRAINERS:
            fault_named(config.fault).on_trainer()
            TRAINERS[config.trainer](context, recorder).run()
            recorder.lap("trainer")
            record_peaks(recorder.record, device)
        else:
            groups = gpt.initialize_parallel(config, device)
            recorder.lap("groups")
            if device.backend == "nccl":  # gloo connects a group when it is made
                gpt.first_collectives(device)
                recorder.lap("connections")
            _legs(context, groups, recorder, begin)
    recorder.lap("end")
    leave_together(store, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    recorder.lap("waiting")
    recorder.progress("end", config.train.steps, 0, "done")


def _legs(context: RankContext, groups: Groups, recorder: Recorder, begin: float) -> None:
    """Run all legs in order; `begin`: time.perf_counter at the start of the rank."""
    config, place = context.config, context.place
    fault = fault_named(config.fault)
    recorder.progress("metadata", 0, 0, "setup")  # from here on, exceptions come from the code under test
    path = ADAPTERS[config.data_path](context)
    fault.on_path(path, context)
    counts = [len(config.micro_batches(step)[place.dp]) for step in range(config.train.steps)]
    recorder.record.micro_batches = [fault.micro_batches(count, context, step) for step, count in enumerate(counts)]
    metadata_leg(path, context, fault, recorder)
    recorder.lap("metadata")
    if not config.train.steps:  # the cell only fetches batches
        recorder.record.setup_s = time.perf_counter() - begin
        record_peaks(recorder.record, context.device)
        return
    training, canaries = _model_legs(context, path, fault, recorder, groups)
    recorder.record.setup_s = time.perf_counter() - begin
    passes = training.passes
    training.run()
    del training  # with its optimizer: a leg may train with another
    recorder.lap("training")
    canaries.run()
    recorder.lap("canaries")
    record_peaks(recorder.record, context.device)
    if backend := node_kinds.chosen_backend(config.attention):
        recorder.record.environment["attention_backend"] = backend
    TimingLeg(passes).run()
    recorder.lap("timing")


def _join(config: CellConfig, device: Device, listener: int | None) -> Any:
    """Initialise torch.distributed; return its store at MASTER_ADDR and MASTER_PORT, served by rank 0 on `listener`."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    timeout = gpt.timeout_of(config)
    serves = rank == 0 and listener is not None
    store = dist.TCPStore(  # type: ignore[attr-defined]  # public, but not re-exported by its stub
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        world_size,
        is_master=serves,
        timeout=timeout,
        # A rank that never starts ends the cell at its deadline, with a finding; here it would only be a time-out.
        wait_for_workers=False,
        master_listen_fd=listener if serves else None,
    )
    # All ranks of the node inherit the socket; while any holds it, the port stays taken after rank 0 ends.
    if listener is not None and not serves:
        os.close(listener)
    # With device_id, NCCL connects the world group now and need not guess this rank's GPU.
    bound: dict[str, Any] = {"device_id": device.torch_device} if device.backend == "nccl" else {}
    dist.init_process_group(device.backend, store=store, rank=rank, world_size=world_size, timeout=timeout, **bound)
    return store


def leave_together(store: Any, rank: int, world_size: int) -> None:
    """Wait until every rank is done; rank 0, which serves the store, then waits until every other has read that.

    A barrier of gloo is not enough: a rank that leaves it early closes its sockets, and with messages in them that it
    has not read, the kernel resets the connections that slower ranks still read from.
    """
    ranks = range(world_size)
    store.set(f"harness/done/{rank}", "")
    store.wait([f"harness/done/{peer}" for peer in ranks])
    store.set(f"harness/left/{rank}", "")
    if rank == 0:
        store.wait([f"harness/left/{peer}" for peer in ranks])


def _model_legs(
    context: RankContext, path: Any, fault: Any, recorder: Recorder, groups: Groups = GLOBAL
) -> tuple[TrainingLeg, CanaryLegs]:
    """Build the model with its initial weights; return the training leg and the canary legs on it."""
    config = context.config
    recorder.progress("training", 0, 0, "setup")
    upstream = gpt.transformer_config(config)
    # Before any model is built, since it wraps constructors.
    keep_arguments()
    with groups.hidden():
        chunks = gpt.build_chunks(config, upstream, context.device, groups)
    recorder.lap("model")
    for chunk in chunks:
        # Before the optimizer, which copies bf16 weights into its fp32 ones.
        initialize(gpt.unwrap(chunk), seed=config.train.seed, **gpt.shard_ranks(context))
    recorder.lap("weights")
    with groups.hidden():
        optimizer = build_optimizer(config, chunks, groups)
    # Before the fault, which may replace modules: what is recorded is what upstream built.
    record_built(recorder.record, config, chunks, optimizer)
    fault.on_model(chunks, context)
    passes = Passes(chunks, path, context, fault, recorder, groups)
    legs = TrainingLeg(passes, optimizer), CanaryLegs(passes)
    recorder.lap("optimizer")
    return legs


def _environment(config: CellConfig, device: Device) -> dict[str, str]:
    return {
        "host": platform.node(),
        "pid": str(os.getpid()),
        "python": platform.python_version(),
        "device": device.kind if device.kind == "cpu" else torch.cuda.get_device_name(),
        "processor": processor(),
        "torch_device": str(device.torch_device),
        "backend": device.backend,
        "placed": f"{device}, asked for {config.device}",
        "attention": node_kinds.described(config.attention),
        "dtype": config.dtype,
        **recorded_variables(os.environ),
    }


def record_peaks(record: RankRecord, device: Device) -> None:
    """Record the peaks since the rank started."""
    record.peak_memory_bytes = peak_memory_bytes(device)
    record.peak_reserved_bytes = peak_reserved_bytes(device)


@contextmanager
def peaks_recorded(record: RankRecord, device: Device) -> Iterator[None]:
    """Record the peaks when an exception propagates: they explain an out-of-memory error."""
    try:
        yield
    except Exception:
        record_peaks(record, device)
        raise
