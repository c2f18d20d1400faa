"""All that is known about one cell, and the values of the whole put together from the ranks' shares.

Sums are Python floats (float64). Nothing here trusts a rank about what it should have received: the truth is
recomputed from the cell's configuration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from harness.judge.assemble import ParameterGradient, whole_activations, whole_gradients
from harness.judge.endings import Cause, Ending, cause_of, endings_of
from harness.judge.failures import FailureClass, FailureEvidence, JobEnding, LogTail, classify
from harness.judge.leg_evidence import LegEvidence, legs_seen
from harness.judge.noise import noise_floors
from harness.judge.places import Place
from harness.words.cell import same_rows
from harness.words.layout import Layout
from harness.words.legs import Leg, legs_of
from harness.words.packing import MicroBatch, PackedParams
from harness.words.records import CellResult, DocumentLoss, Fingerprint, RankRecord, SeenParams, StepSeen
from harness.words.run_plan import PlannedCell, RunPlan
from harness.words.stack import ReadyStack
from harness.words.tolerances import Bound, NoiseFloor, Tolerances, looser, tolerances_for


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What every rank of a replica must receive for one micro-batch."""

    batch: MicroBatch
    params: PackedParams | None


@dataclass(frozen=True, kw_only=True)
class Home:
    """Where a document sits in a cell's step."""

    dp: int
    micro_batch: int
    first: bool  # first in its stream: nothing can leak into it
    truncated: bool


@dataclass(frozen=True, kw_only=True)
class Sighting:
    """Packed params as one rank saw them at one place; None when it saw none."""

    place: Place
    params: SeenParams | None


@dataclass(kw_only=True)
class CellEvidence:
    cell: PlannedCell
    records: dict[int, RankRecord]
    result: CellResult | None
    reference: CellEvidence | None
    tolerances: Tolerances  # of step 0
    later: Tolerances  # not from noise that was measured in step 0
    noise: Mapping[str, NoiseFloor] = field(default_factory=dict)  # that the cell measured: a reference
    base: CellEvidence | None = None  # the same cell in the stack that it took turns with
    retried: bool = False  # an earlier attempt ended for an infrastructure cause
    logs: Mapping[int, LogTail] = field(default_factory=dict)  # ends of the logs of ranks that failed
    job: JobEnding = field(default_factory=JobEnding)  # of the job that ran it
    stack: ReadyStack | None = None  # None: the default one

    @property
    def layout(self) -> Layout:
        return self.cell.config.layout

    def bound(self, name: str, step: int) -> Bound:
        """A bound of the numerics lane at a step. Weights have moved after step 0, so no later bound is tighter."""
        at_start: Bound = getattr(self.tolerances, name)
        return at_start if step == 0 else looser(at_start, getattr(self.later, name))

    @property
    def packed(self) -> bool:
        return self.cell.config.style.packed

    @property
    def same_rows(self) -> bool:
        """Whether gradients, and what they move, may be compared with the reference's."""
        return self.reference is not None and same_rows(self.cell.config, self.reference.cell.config)

    @property
    def steps(self) -> range:
        return range(self.cell.config.train.steps)

    @cached_property
    def plan(self) -> list[list[list[Truth]]]:
        """The truth, indexed [step][dp][micro-batch]."""
        config = self.cell.config
        return [
            [[self._truth(batch) for batch in replica] for replica in config.micro_batches(step)] for step in self.steps
        ]

    def _truth(self, batch: MicroBatch) -> Truth:
        if self._padded_alone:
            batch = replace(batch, style=replace(batch.style, real_lengths=False))
        return Truth(batch=batch, params=batch.params())

    @cached_property
    def _padded_alone(self) -> bool:
        """The data path may tell padded offsets alone, and no rank told others: then those are the truth for all."""
        if not self.cell.config.style.padded_alone:
            return False
        return all(seen.params is None or seen.params.cu_seqlens_q_padded is None for seen in self.sightings)

    def truth(self, step: int, dp: int, micro_batch: int) -> Truth | None:
        """None for a micro-batch that the plan does not have."""
        if step not in self.steps or not 0 <= micro_batch < len(self.plan[step][dp]):
            return None
        return self.plan[step][dp][micro_batch]

    @cached_property
    def homes(self) -> list[dict[int, Home]]:
        """Per step: document -> its home."""
        homes: list[dict[int, Home]] = []
        for step in self.plan:
            found = {}
            for dp, replica in enumerate(step):
                for number, truth in enumerate(replica):
                    starts = {0} if self.packed else {item.start for item in truth.batch.placed}
                    for item in truth.batch.placed:
                        document = item.document
                        cut = document.original_length > document.length
                        found[document.index] = Home(
                            dp=dp, micro_batch=number, first=item.start in starts, truncated=cut
                        )
            homes.append(found)
        return homes

    @cached_property
    def endings(self) -> list[Ending]:
        return endings_of(self.layout, self.records, self.result)

    @cached_property
    def cause(self) -> Cause | None:
        """Why the cell did not complete; None when every rank did."""
        return cause_of(self.endings, self.result)

    @cached_property
    def failure_class(self) -> FailureClass | None:
        """The class of what went wrong; None when every rank completed."""
        if self.cause is None:
            return None
        endings = tuple(self.endings)
        state, job_log = self.job.state, self.job.log
        return classify(FailureEvidence(endings=endings, logs=self.logs, scheduler_state=state, job_log=job_log))

    @cached_property
    def sightings(self) -> list[Sighting]:
        """Every place at which packed params were looked for: the metadata leg, then the training leg."""
        return [sighting for record in self.records.values() for sighting in _sightings(record)]

    def step_records(self, step: int, **where: int) -> Iterator[tuple[RankRecord, StepSeen]]:
        """(record, step) of the ranks whose coordinates are `where` and that finished the step, in rank order."""
        for rank in sorted(self.records):
            record = self.records[rank]
            if all(getattr(record.place, name) == value for name, value in where.items()):
                for seen in record.steps:
                    if seen.step == step:
                        yield record, seen

    @cached_property
    def legs(self) -> dict[str, LegEvidence]:
        """Canary legs that every rank came through, by name."""
        return legs_seen(self.cell.config, self.legs_planned, self.records)

    @cached_property
    def legs_planned(self) -> list[Leg]:
        """The canary legs that the cell was to run."""
        return legs_of(self.cell.config) if self.cell.config.canaries else []

    @property
    def last_stage(self) -> int:
        return self.layout.pp - 1

    @cached_property
    def finished_steps(self) -> list[int]:
        """Steps that every rank of the last stage finished: their sums over ranks are whole."""
        per_stage = self.layout.world_size // self.layout.pp
        last = self.last_stage
        return [step for step in self.steps if sum(1 for _ in self.step_records(step, pp=last)) == per_stage]

    @cached_property
    def first_step_whole(self) -> bool:
        """Whether every rank finished step 0, so that what it recorded of gradients and activations is all there."""
        return sum(1 for _ in self.step_records(0)) == self.layout.world_size

    @cached_property
    def document_losses(self) -> dict[int, dict[int, DocumentLoss]]:
        """Finished step -> document -> loss summed over the cp ranks (last stage, tp rank 0)."""
        whole: dict[int, dict[int, DocumentLoss]] = {}
        for step in self.finished_steps:
            sums: dict[int, DocumentLoss] = {}
            for _, seen in self.step_records(step, pp=self.last_stage, tp=0):
                for document, part in seen.documents.items():
                    old = sums.get(document, DocumentLoss(loss_sum=0.0, tokens=0))
                    sums[document] = DocumentLoss(
                        loss_sum=old.loss_sum + part.loss_sum, tokens=old.tokens + part.tokens
                    )
            whole[step] = sums
        return whole

    @cached_property
    def document_tokens(self) -> dict[int, dict[int, float]]:
        """Document -> position -> loss, step 0."""
        losses: dict[int, dict[int, float]] = {}
        for _, seen in self.step_records(0, pp=self.last_stage, tp=0):
            for token in seen.tokens:
                losses.setdefault(token.document, {})[token.position] = token.loss
        return losses

    @cached_property
    def gradients(self) -> dict[str, ParameterGradient]:
        """Parameter -> gradient of the whole tensor in step 0."""
        return whole_gradients((record.place, record.parameters) for record in self._in_order())

    @cached_property
    def activations(self) -> dict[int, dict[int, Fingerprint]]:
        """Layer (0: embedding) -> document -> fingerprint over all tokens of the document, step 0."""
        ranks = ((record.place, record.activations) for record in self._in_order())
        return whole_activations(ranks, sp=self.layout.sp)

    def _in_order(self) -> list[RankRecord]:
        return [self.records[rank] for rank in sorted(self.records)]


def _sightings(record: RankRecord) -> Iterator[Sighting]:
    table = record.packed_params
    for batch in record.batches:
        place = Place(
            rank=record.rank, at=record.place, leg="metadata", step=0, micro_batch=batch.micro_batch, chunk=batch.chunk
        )
        yield Sighting(place=place, params=None if batch.params is None else table[batch.params])
    for layer in record.layers:
        place = Place(
            rank=record.rank,
            at=record.place,
            leg="training",
            step=layer.step,
            micro_batch=layer.micro_batch,
            chunk=layer.chunk,
            layer=layer.layer,
        )
        yield Sighting(place=place, params=None if layer.params is None else table[layer.params])


def evidence_of(
    plan: RunPlan,
    found: Mapping[str, tuple[dict[int, RankRecord], CellResult | None]],
    retried: frozenset[str],
    *,
    logs: Mapping[str, Mapping[int, LogTail]] | None = None,
    jobs: Mapping[str, JobEnding] | None = None,
) -> dict[str, CellEvidence]:
    """Evidence of every planned cell, linked to its reference; `found` holds the records and result that exist.

    `retried` names cells of which an earlier attempt ended for an infrastructure cause. `logs` holds the ends of the
    logs of failed ranks by cell and rank, `jobs` how the job of each cell ended, where that is known.
    """
    evidence: dict[str, CellEvidence] = {}
    for cell in plan.expansion.references_first:
        records, result = found.get(cell.id, ({}, None))
        reference = evidence.get(cell.reference) if cell.reference else None
        own = noise_floors(records)
        noise = reference.noise if reference else own
        evidence[cell.id] = CellEvidence(
            cell=cell,
            records=records,
            result=result,
            reference=reference,
            tolerances=tolerances_for(cell.config.dtype, plan.tolerances, noise),
            later=tolerances_for(cell.config.dtype, plan.tolerances),
            noise=own,
            retried=cell.id in retried,
            logs=(logs or {}).get(cell.id, {}),
            job=(jobs or {}).get(cell.id, JobEnding()),
            stack=plan.stacks.get(cell.config.stack),
        )
    for cell in plan.expansion.cells:
        if cell.base:
            evidence[cell.id].base = evidence.get(cell.base)
    return evidence
