"""The evidence of one cell, with values of the whole model assembled from the ranks' shares.

Sums are Python floats (float64). Nothing here trusts a rank about what it should have received: the truth is
recomputed from the cell's configuration.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from harness.core.cell.canary_legs import Leg, legs_of
from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Layout
from harness.core.packing.arithmetic import MicroBatch
from harness.core.run.records import CellResult, DocumentLoss, OracleRecord, RankRecord, SeenParams, StepSeen
from harness.core.run.run_plan import BaselineRequest, PlannedCell
from harness.core.run.tensor_records import Fingerprint, UpdateSeen
from harness.core.stack import ReadyStack
from harness.core.tolerances import (
    ACCEPTS_NONE,
    FOLLOWED_FACTOR,
    GROWTH_FACTOR,
    MAX_GROWN,
    NOISE_FACTOR,
    OUTPUTS_FACTOR,
    SMALLEST_FACTOR,
    Bound,
    NoiseFloor,
    Tolerances,
    grown,
    looser,
)
from harness.judge.evidence.assemble import ParameterGradient, whole_activations, whole_gradients, whole_updates
from harness.judge.evidence.endings import Ending, endings_of
from harness.judge.evidence.leg_evidence import LegEvidence, legs_seen
from harness.judge.evidence.numbers import Scan, scan
from harness.judge.evidence.truth import DocumentPosition, ParamsSeen, Truth
from harness.judge.failures.classification import Cause, FailureClass, JobEnding, LogTail, cause_of
from harness.judge.locations import RankLocation
from harness.judge.stats.baseline import Baseline
from harness.judge.stats.noise import later_floors


class Observation(NamedTuple):
    """Packed params as one rank saw them at one location; None if it saw none."""

    place: RankLocation
    params: SeenParams | None
    device: str | None  # of the model on that rank, None if not recorded


def observations_of(records: Iterable[RankRecord]) -> list[Observation]:
    """Return observations of the metadata leg, then of the training leg, of every record.

    Equal params on devices of one name are one object, since many ranks hold the same few.
    """
    known: dict[tuple[Any, ...], list[SeenParams]] = {}
    return [observation for record in records for observation in _observations(record, known)]


def _observations(record: RankRecord, known: dict[tuple[Any, ...], list[SeenParams]]) -> Iterator[Observation]:
    device = record.environment.get("torch_device")
    table: list[SeenParams | None] = [_interned(params, device, known) for params in record.packed_params]
    table.append(None)
    at, rank = record.place, record.rank
    for batch in record.batches:
        place = RankLocation(rank, at, "metadata", batch.step, batch.micro_batch, batch.chunk)
        yield Observation(place, table[-1 if batch.params is None else batch.params], device)
    for seen in record.layers:
        place = RankLocation(rank, at, "training", seen.step, seen.micro_batch, seen.chunk, seen.layer)
        yield Observation(place, table[-1 if seen.params is None else seen.params], device)


def _interned(params: SeenParams, device: str | None, known: dict[tuple[Any, ...], list[SeenParams]]) -> SeenParams:
    """Return the equal params seen first, or these if they are new."""
    similar = known.setdefault((device, tuple(params.cu_seqlens_q or ()), params.max_seqlen_q), [])
    for known_params in similar:
        if known_params == params:
            return known_params
    similar.append(params)
    return params


@dataclass(kw_only=True)
class CellEvidence:
    """All that a verdict on a cell reads: its files, its plan, and what it is compared with."""

    cell: PlannedCell
    records: dict[int, RankRecord]
    result: CellResult | None
    control: CellEvidence | None
    oracle: OracleRecord | None = None
    tolerances: Tolerances  # of step 0, against the reference
    later: Tolerances  # of later steps, without the noise floors, which are of step 0
    within: Tolerances | None = None  # of what is compared within the cell, or with a control; None: the same
    noise: Mapping[str, NoiseFloor] = field(default_factory=dict)  # measured by this cell; only controls do
    base: CellEvidence | None = None  # the same cell in the base stack, interleaved with this one
    retried: bool = False  # there is an earlier attempt that its launcher did not interrupt
    earlier: Sequence[CellEvidence] = ()  # of its earlier attempts, oldest first
    resumed: CellEvidence | None = None  # of the part that continues from the checkpoint
    saved: CellEvidence | None = None  # of the part that saved it; only that part's `resumed` has it
    logs: Mapping[int, LogTail] = field(default_factory=dict)  # ends of the logs of ranks that failed
    job: JobEnding = field(default_factory=JobEnding)  # of the job that ran it
    stack: ReadyStack | None = None  # None: the default one
    history: BaselineRequest | None = None  # earlier runs to compare times with; None: not requested
    before: Baseline | None = None  # their times, as baseline.json has them
    nodes: int = 1  # that ran it, each an equal number of consecutive ranks
    peak_tflops: Mapping[str, float] = field(default_factory=dict)  # of one GPU by dtype, where the user states it
    attempt: int = 1  # number of the attempt that left the records and the result
    folder: str = ""  # of that attempt, in the run directory
    run_id: str = ""  # of the plan
    config: CellConfig | None = None  # as config.json has it: what the ranks ran
    damaged: Sequence[str] = ()  # what is wrong with the attempt's files
    stopped: str = ""  # why the run was stopped before the cell had ended

    @property
    def layout(self) -> Layout:
        """Return the parallel layout of the cell."""
        return self.cell.config.layout

    @cached_property
    def reference(self) -> CellEvidence | None:
        """Return what the cell's numbers are compared with: the oracle's; where it computes none, the control's."""
        if self.oracle is None or self.oracle.record is None:
            return self.control
        config = replace(self.cell.config, layout=Layout(), saved_in=None, resume="")
        return replace(
            self, cell=replace(self.cell, config=config), records={0: self.oracle.record}, control=None, oracle=None
        )

    @property
    def by_oracle(self) -> bool:
        """Return whether the numbers of the cell are compared with those of the oracle."""
        return self.oracle is not None and self.oracle.record is not None

    @property
    def origin(self) -> str:
        """Return what messages call the reference."""
        return "oracle" if self.by_oracle else "control"

    @property
    def own(self) -> Tolerances:
        """Return the tolerances of what is compared within the cell, or with its control."""
        return self.within or self.tolerances

    def own_bound(self, name: str, step: int) -> Bound:
        """Return a bound of the numerics lane at a step, within the cell; later ones are no tighter."""
        return self._at(step, self.own, name)

    def _at(self, step: int, tolerances: Tolerances, name: str) -> Bound:
        at_start: Bound = getattr(tolerances, name)
        return at_start if step == 0 else looser(at_start, getattr(self.later, name))

    def bound(self, name: str, step: int) -> Bound | None:
        """Return a bound against the reference at a step; None: training has amplified rounding beyond comparison.

        `step`: number of updates so far.
        """
        bound = self._at(step, self.tolerances, name)
        if step == 0 or self.reference is None or name in self.tolerances.chosen:
            return bound
        if name != "grad_norm" and self.bound("grad_norm", step) is None:  # rounding decides what updates do
            return None
        floor = self.reference.later_noise.get(name, {}).get(step)
        return grown(bound, floor, MAX_GROWN[self.cell.config.dtype], self.growth(name))

    def growth(self, name: str = "") -> float:
        """Return how many times the reference's distance between two trainings a cell may be off after an update."""
        if self.cell.config.dtype != "fp32":
            return OUTPUTS_FACTOR if name == "activation" else GROWTH_FACTOR
        follows = self.oracle is not None and self.oracle.record is not None and self.oracle.record.followed
        return FOLLOWED_FACTOR if follows else GROWTH_FACTOR

    def weight_bound(self, what: str, name: str, bound: Bound) -> Bound | None:
        """Return `bound` of what updates have made of one parameter; None: rounding decides it."""
        if self.reference is None or "parameter_gradient" in self.tolerances.chosen:
            return bound
        floor = next(iter(self.reference.later_noise.get(f"{what} of {name}", {}).values()), None)
        if what == "trained" and self._grown_too_far:
            return None
        if floor is None or self.cell.config.dtype == "fp32" or not self.by_oracle:
            return grown(bound, floor, ACCEPTS_NONE)
        if what == "trained" and self.weight_bound("change", name, bound) is None:
            # The first update may decide all that follow: B and C of a Mamba layer act through their product alone, so
            # the signs that rounding gives to one turn the gradients of the other.
            return None
        # In bf16 every update is about the signs of rounded gradients: a norm has few, so two may be a third of it.
        factors = (NOISE_FACTOR, SMALLEST_FACTOR)
        factor = next((number for number in factors if number * floor.value < ACCEPTS_NONE), NOISE_FACTOR)
        return grown(bound, floor, ACCEPTS_NONE, factor)

    @cached_property
    def _grown_too_far(self) -> bool:
        """Return whether rounding decides the gradient norm of the last step, and so what all updates add up to."""
        return self.bound("grad_norm", self.cell.config.train.steps - 1) is None

    @cached_property
    def diverges(self) -> float:
        """Return the step from which on numbers may be infinite, since rounding decided them before; or inf.

        Those of the reference are then infinite at the end of either training.
        """
        reference = self.reference or self
        if not any(rank_scan.bad for rank_scan in reference.scans.values()):
            return math.inf
        most = MAX_GROWN[self.cell.config.dtype]
        lost = [
            step
            for name in ("step_loss", "grad_norm")
            for step, floor in reference.later_noise.get(name, {}).items()
            if math.isfinite(floor.value) and grown(Bound(value=0.0), floor, most, self.growth()) is None
        ]
        return min(lost, default=math.inf)

    @cached_property
    def later_noise(self) -> dict[str, dict[int, NoiseFloor]]:
        """Return how far two trainings of this cell are from each other; only controls and the oracle train twice."""
        return later_floors(self.records[0]) if set(self.records) == {0} else {}

    @property
    def rejected(self) -> bool:
        """Return whether a node rejected the cell, also for what a checkout lacks, if the matrix allows that."""
        if self.result is None:
            return False
        allowed = self.result.status == "error" and self.result.rejection is not None and bool(self.cell.may_reject)
        return self.result.status == "rejected" or allowed

    @property
    def packed(self) -> bool:
        """Return whether the cell's data path packs documents."""
        return self.cell.config.style.packed

    @property
    def same_rows(self) -> bool:
        """Return whether gradients, and the weights they update, may be compared with the reference."""
        return self.by_oracle or not self.cell.config.by_rows

    @cached_property
    def steps(self) -> range:
        """Return the steps that this part of the cell trains: all, or after a resume the later ones."""
        return self.cell.config.steps

    @property
    def fetched_steps(self) -> range:
        """Return the steps whose batches ranks compare with the plan.

        Upstream's own trainer fetches all while it trains.
        """
        return range(1) if self.cell.config.trained_by_harness else self.steps

    @property
    def planned_steps(self) -> range:
        """Return the steps that any record may be of: if none is trained, the one whose batches are fetched."""
        return self.steps or self.fetched_steps

    @cached_property
    def plan(self) -> list[list[list[Truth]]]:
        """Return the truth of all steps of the cell, at least of step 0, indexed [step][dp][micro-batch]."""
        config = self.cell.config
        return [
            [[self._truth(batch) for batch in replica] for replica in config.micro_batches(step)]
            for step in range(max(config.train.steps, 1))
        ]

    def _truth(self, batch: MicroBatch) -> Truth:
        if self._offsets_padded:
            batch = replace(batch, style=replace(batch.style, real_lengths=False))
        return Truth(batch=batch, params=batch.params())

    @cached_property
    def _offsets_padded(self) -> bool:
        """Return whether cu_seqlens are the padded offsets: the path may give only these, and no rank gave both."""
        if not self.cell.config.style.padded_only:
            return False
        return all(
            observation.params is None or observation.params.cu_seqlens_q_padded is None
            for observation in self.observations
        )

    def truth(self, step: int, dp: int, micro_batch: int) -> Truth | None:
        """Return the truth for one micro-batch; None if the plan does not have it."""
        if step not in self.planned_steps or not 0 <= micro_batch < len(self.plan[step][dp]):
            return None
        return self.plan[step][dp][micro_batch]

    @cached_property
    def document_positions(self) -> list[dict[int, DocumentPosition]]:
        """Return, per step, document -> its position."""
        by_step: list[dict[int, DocumentPosition]] = []
        for step in self.plan:
            positions = {}
            for dp, replica in enumerate(step):
                for number, truth in enumerate(replica):
                    starts = {0} if self.packed else {placed.start for placed in truth.batch.placed}
                    for placed in truth.batch.placed:
                        document = placed.document
                        cut = document.original_length > document.length
                        positions[document.index] = DocumentPosition(
                            dp=dp, micro_batch=number, first=placed.start in starts, truncated=cut
                        )
            by_step.append(positions)
        return by_step

    @cached_property
    def scans(self) -> dict[int, Scan]:
        """Return rank -> scan of the numbers that it computed."""
        return {rank: scan(self.records[rank]) for rank in sorted(self.records)}

    @cached_property
    def endings(self) -> list[Ending]:
        """Return how each rank ended, in rank order."""
        return endings_of(self.layout, self.records, self.result, deadline_s=self.cell.config.deadline_s)

    @cached_property
    def cause(self) -> Cause | None:
        """Return why the cell did not complete; None if every rank did."""
        return cause_of(self.endings, self.result, self.job, self.logs)

    @property
    def failure_class(self) -> FailureClass | None:
        """Return the class of the failure; None if every rank completed."""
        return self.cause.failure_class if self.cause else None

    @cached_property
    def observations(self) -> list[Observation]:
        """Return the packed params, or their absence, at every location that the ranks recorded."""
        return observations_of(self.records.values())

    @cached_property
    def params_seen(self) -> list[ParamsSeen]:
        """Return the distinct packed params of the observations, micro-batch by micro-batch."""
        groups: dict[tuple[int, int], ParamsSeen] = {}
        for observation in self.observations:
            place, params = observation.place, observation.params
            truth = self.truth(place.step, place.at.dp, place.micro_batch)
            if params is None or truth is None or truth.params is None:
                continue
            key = (id(params), id(truth))
            if key not in groups:
                groups[key] = ParamsSeen(
                    params=params, device=observation.device, truth=truth, expected=truth.params, places=[]
                )
            groups[key].places.append(place)
        return list(groups.values())

    def step_records(self, step: int, **where: int) -> Iterator[tuple[RankRecord, StepSeen]]:
        """Yield (record, step) of the ranks with the coordinates `where` that finished the step, in rank order."""
        for rank in sorted(self.records):
            record = self.records[rank]
            if all(getattr(record.place, name) == value for name, value in where.items()):
                for recorded in record.steps:
                    if recorded.step == step:
                        yield record, recorded

    @cached_property
    def legs(self) -> dict[str, LegEvidence]:
        """Return the canary legs that every rank finished, by name."""
        return legs_seen(self.cell.config, self.legs_planned, self.records)

    @cached_property
    def legs_planned(self) -> list[Leg]:
        """Return the canary legs that the cell was to run."""
        return legs_of(self.cell.config) if self.cell.config.canaries else []

    @property
    def last_stage(self) -> int:
        """Return the number of the last pipeline stage."""
        return self.layout.pp - 1

    @cached_property
    def finished_steps(self) -> list[int]:
        """Return the steps that every rank of the last stage finished, so that sums over ranks are complete."""
        per_stage = self.layout.world_size // self.layout.pp
        last = self.last_stage
        return [step for step in self.steps if sum(1 for _ in self.step_records(step, pp=last)) == per_stage]

    @cached_property
    def first_step_whole(self) -> bool:
        """Return whether every rank finished step 0, so that its records are complete."""
        return sum(1 for _ in self.step_records(0)) == self.layout.world_size

    @property
    def fingerprinted(self) -> bool:
        """Return whether gradients and activations of step 0 are complete."""
        return self.cell.config.fingerprints and self.first_step_whole

    @cached_property
    def document_losses(self) -> dict[int, dict[int, DocumentLoss]]:
        """Return finished step -> document -> loss summed over the cp ranks (last stage, tp rank 0)."""
        whole: dict[int, dict[int, DocumentLoss]] = {}
        for step in self.finished_steps:
            sums: dict[int, DocumentLoss] = {}
            for _, recorded in self.step_records(step, pp=self.last_stage, tp=0):
                for document, part in recorded.documents.items():
                    old = sums.get(document, DocumentLoss(loss_sum=0.0, tokens=0))
                    sums[document] = DocumentLoss(
                        loss_sum=old.loss_sum + part.loss_sum, tokens=old.tokens + part.tokens
                    )
            whole[step] = sums
        return whole

    @cached_property
    def document_tokens(self) -> dict[int, dict[int, float]]:
        """Return document -> token position -> loss, step 0."""
        losses: dict[int, dict[int, float]] = {}
        for _, recorded in self.step_records(0, pp=self.last_stage, tp=0):
            for token in recorded.tokens:
                losses.setdefault(token.document, {})[token.position] = token.loss
        return losses

    @cached_property
    def gradients(self) -> dict[str, ParameterGradient]:
        """Return parameter -> gradient of the whole tensor, step 0."""
        return whole_gradients((record.place, record.parameters) for record in self._in_order())

    @cached_property
    def updates(self) -> dict[str, UpdateSeen]:
        """Return parameter -> what the optimizer made of the whole tensor."""
        return whole_updates((record.place, record.parameters) for record in self._in_order())

    @cached_property
    def activations(self) -> dict[int, dict[int, Fingerprint]]:
        """Return layer (0: embedding) -> document -> fingerprint over all tokens of the document, step 0."""
        ranks = ((record.place, record.activations) for record in self._in_order())
        return whole_activations(ranks, sp=self.layout.sp)

    def _in_order(self) -> list[RankRecord]:
        return [self.records[rank] for rank in sorted(self.records)]
