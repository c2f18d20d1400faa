"""Metadata leg: fetches every micro-batch of step 0 without the model, and compares it with the truth.

It runs first, so that a data path that crashes or hangs in training still gets its metadata verdict.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.core.packing.arithmetic import Workload
from harness.core.run.records import BatchSeen, LegName, WorkloadSeen
from harness.faults.node_fault import Fault
from harness.probe.hooks.batches import batch_seen, log_probs_returned
from harness.probe.truth import StepTruth
from harness.runtime.recording.recorder import Recorder
from harness.upstreams.node_base import Adapter, RankContext


def metadata_leg(path: Adapter, context: RankContext, fault: Fault, recorder: Recorder) -> None:
    """Append one BatchSeen per chunk and micro-batch to the record."""
    truth = StepTruth(context.config, 0, context.place.dp)
    for batch in observed_batches(truth, "metadata", path, context, fault, recorder):
        recorder.record.batches.append(batch)
    recorder.flush()


def observed_batches(
    truth: StepTruth, leg: LegName, path: Adapter, context: RankContext, fault: Fault, recorder: Recorder
) -> Iterator[BatchSeen]:
    """Fetch every batch of every chunk and compare it with the truth; flush the record before each fetch."""
    for chunk in range(context.config.layout.vpp):
        recorder.progress(leg, 0, 0, "start")
        iterator = path.iterator(truth, chunk)
        # The path counts when it makes an iterator; other chunks of the rank would count the same rows again.
        if chunk == 0 and leg == "metadata":
            record_workload(path, leg, 0, context, fault, recorder)
        for number, micro in enumerate(truth.micro_batches):
            recorder.progress(leg, 0, number, "fetch")
            recorder.flush()
            batch = fault.on_batch(path.fetch(iterator, chunk), context, chunk, number)
            compared = batch_seen(batch, truth, context, recorder, chunk, number)
            if context.is_last(chunk):
                compared.log_probs = log_probs_returned(path, micro, context, batch)
            yield compared


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
