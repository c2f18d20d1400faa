"""Metadata leg: fetches every micro-batch of step 0 without the model, and compares it with the truth.

It runs first, so that a data path that crashes or hangs in training still gets its metadata verdict.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from harness.core.packing.arithmetic import PAD
from harness.core.packing.workload import Workload
from harness.core.run.records import BatchSeen, TensorSeen, WorkloadSeen
from harness.core.run.states import LegName
from harness.node.data_paths.base import Adapter, Batch, RankContext
from harness.node.faults import Fault
from harness.node.probe.hooks.log_probs import log_probs_returned
from harness.node.probe.truth import MicroTruth, StepTruth, first_difference
from harness.node.recording.recorder import Recorder


def metadata_leg(path: Adapter, context: RankContext, fault: Fault, recorder: Recorder) -> None:
    """Append one BatchSeen per chunk and micro-batch to the record."""
    if hasattr(path, "refusal"):
        recorder.progress("metadata", 0, 0, "fetch")
        recorder.record.refusal = path.refusal()
    truth = StepTruth(context.config, 0, context.place.dp)
    for seen in observed_batches(truth, "metadata", path, context, fault, recorder):
        recorder.record.batches.append(seen)
    recorder.flush()


def observed_batches(
    truth: StepTruth, leg: LegName, path: Adapter, context: RankContext, fault: Fault, recorder: Recorder
) -> Iterator[BatchSeen]:
    """Fetch every batch of every chunk and compare it with the truth; flush the record before each fetch."""
    for chunk in range(context.config.layout.vpp):
        recorder.progress(leg, 0, 0, "start")
        iterator = path.iterator(truth, chunk)
        if chunk == 0 and leg == "metadata":
            record_workload(path, leg, 0, context, fault, recorder)
        for number, micro in enumerate(truth.micro_batches):
            recorder.progress(leg, 0, number, "fetch")
            recorder.flush()
            batch = fault.on_batch(path.fetch(iterator, chunk), context, chunk, number)
            seen = _seen(batch, micro, context, recorder, chunk, number)
            if context.is_last(chunk):
                seen.log_probs = log_probs_returned(path, micro, context, batch)
            yield seen


def record_workload(
    path: Adapter, leg: LegName, step: int, context: RankContext, fault: Fault, recorder: Recorder
) -> None:
    """Record the workload that the data path counted for the step just started, if it counts."""
    counted: Workload | None = getattr(path, "workload", None)
    if counted is None:
        return
    work = fault.on_workload(counted, context)
    recorder.record.workloads.append(
        WorkloadSeen(
            leg=leg,
            step=step,
            micro_batches=float(work.micro_batches),
            tokens=float(work.tokens),
            squares=float(work.squares),
        )
    )


def _seen(
    batch: Batch, micro: MicroTruth, context: RankContext, recorder: Recorder, chunk: int, number: int
) -> BatchSeen:
    cp, cp_rank = context.config.layout.cp, context.place.cp
    owners = micro.local(micro.owners, cp, cp_rank)

    def counted(name: str) -> Tensor:
        """The slots compared: for labels the unmasked ones, for the mask all, for other fields those with tokens."""
        if name == "loss_mask":
            return torch.ones(owners.shape[:-1], dtype=torch.bool)
        return micro.local(micro.loss_mask, cp, cp_rank) > 0 if name == "labels" else owners[..., 0] != PAD

    def against(name: str) -> TensorSeen | None:
        found: Tensor | None = getattr(batch, name)
        if found is None:
            return None
        expected = micro.local(getattr(micro, name), cp, cp_rank)
        shape, dtype = list(found.shape), str(found.dtype)
        if shape != list(expected.shape):
            return TensorSeen(shape=shape, dtype=dtype, mismatches=expected.numel())
        count, first = first_difference(found.cpu(), expected, owners, counted(name))
        return TensorSeen(shape=shape, dtype=dtype, mismatches=count, first=first)

    return BatchSeen(
        chunk=chunk,
        micro_batch=number,
        params=recorder.params(batch.params),
        tokens=against("tokens"),
        labels=against("labels"),
        loss_mask=against("loss_mask"),
        position_ids=against("position_ids"),
    )
