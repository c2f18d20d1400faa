"""Perfect rank records made from a cell's configuration: true metadata, and invented but consistent numbers.

The numbers of every layout of a group add up to the same sums, as a correct framework's do.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from harness.core.cell.canary_legs import Leg, legs_of
from harness.core.cell.config import CellConfig, ModelConfig, TrainConfig
from harness.core.cell.flops import train_flops
from harness.core.cell.identity import cell_name
from harness.core.cell.layout import Coordinates, Layout
from harness.core.cell.reports import entry_point
from harness.core.cell.upstream_config import asked, weight_decay
from harness.core.outcomes import Finding, Lane, LaneVerdict, Outcome, Severity
from harness.core.packing.arithmetic import PAD, MicroBatch, PackedParams, workload
from harness.core.packing.documents import Document, adversarial_mix
from harness.core.packing.fields import PADDING_MASK
from harness.core.run.record_file import digest_of_choices
from harness.core.run.records import (
    BatchSeen,
    BuiltSeen,
    CellResult,
    DocumentLoss,
    EvaluationSeen,
    GradientScale,
    ImportProof,
    LaterSeen,
    LayerSeen,
    LegSeen,
    OracleRecord,
    Progress,
    RankEnding,
    RankRecord,
    ReportedStep,
    SeenParams,
    StepSeen,
    TensorForm,
    TensorSeen,
    TokenLoss,
    TrainingSeen,
    UpdateApart,
    WorkloadSeen,
)
from harness.core.run.run_plan import Allocation, Expansion, PlannedCell, RunPlan, XFail
from harness.core.run.tensor_records import (
    ActivationSeen,
    Fingerprint,
    OptimizerSeen,
    ParameterSeen,
    StateSeen,
    StoredParameter,
    UpdateSeen,
)
from harness.features.hybrid.pattern import RECURRENT
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.in_turn import CellFound, evidence_in_turn
from harness.judge.evidence.truth import fields_used
from harness.judge.verdict import CellVerdict, judge_cell

MODEL = ModelConfig(layers=4)
TRAIN = TrainConfig(steps=2, global_batch=8, seq_length=64)
DOCUMENTS = adversarial_mix(64, 2)
SHARDED = ("self_attention.linear_qkv.weight", "mlp.linear_fc1.weight")
WHOLE = ("input_layernorm.weight",)
STEP_S = 0.5
RUN_ID = "smoke-20260101T000000-abcd"
ENVIRONMENT = {
    "host": "node-1",
    "pid": "4000",
    "python": "3.12.3",
    "device": "cpu",
    "processor": "processor x 8",
    "torch_device": "cpu",
    "backend": "gloo",
    "placed": "cpu with gloo, asked for auto",
    "attention": "harness reference attention",
    "dtype": "fp32",
    "memory_limit_bytes": "8589934592",
}
IMPORTS = (
    ("megatron.core", "0.19.2", "/stack/megatron/core/__init__.py"),
    ("torch", "2.15.0", "/stack/torch/__init__.py"),
)


def config_of(
    data_path: str = "reference", *, micro_batch_size: int = 1, canaries: tuple[str, ...] = (), **layout: Any
) -> CellConfig:
    layout.setdefault("sp", layout.get("tp", 1) > 1)
    return CellConfig(
        layout=Layout(**layout),
        data_path=data_path,
        micro_batch_size=micro_batch_size,
        model=MODEL,
        train=TRAIN,
        documents=DOCUMENTS,
        canaries=canaries,
    )


def planned(config: CellConfig, control: str | None, xfail: XFail | None = None) -> PlannedCell:
    layout = config.layout
    return PlannedCell(
        id=cell_name(config),
        axes={"tp": layout.tp, "pp": layout.pp, "cp": layout.cp, "packing": config.data_path},
        config=config,
        group="group",
        control=control,
        role="cell" if control else "control",
        xfail=xfail,
    )


def evidence_for(config: CellConfig, xfail: XFail | None = None) -> CellEvidence:
    """Clean evidence of a cell and its control, for a test to break."""
    return run_of([config], xfail)[1][cell_name(config)]


def run_of(configs: list[CellConfig], xfail: XFail | None = None) -> tuple[RunPlan, dict[str, CellEvidence]]:
    """A finished run of the cells and their control."""
    plain = config_of("unpacked", canaries=configs[0].canaries)
    args = configs[0].args.of_optimizer()
    control = planned(replace(plain, model=configs[0].model, train=configs[0].train, args=args), None)
    others = [config for config in configs if cell_name(config) != control.id]
    cells = [control, *(planned(config, control.id, xfail) for config in others)]
    found = {cell.id: found_of(cell) for cell in cells}
    plan = RunPlan(
        run_id=RUN_ID,
        matrix_name="smoke",
        matrix_file="matrices/smoke.yaml",
        command=["harness", "run", "matrices/smoke.yaml"],
        expansion=Expansion(cells=tuple(cells), rejected=()),
        allocations=(Allocation(name="a0", cells=tuple(cell.id for cell in cells)),),
    )
    return plan, all_evidence(plan, found)


def found_of(cell: PlannedCell) -> CellFound:
    """What a run directory holds of a cell that completed."""
    resumed = found_of(replace(cell, config=cell.config.resumed)) if cell.config.resume else None
    records = records_of(cell)
    return CellFound(
        records=records, result=result_of(cell), oracle=oracle_of(cell, records), config=cell.config, resumed=resumed
    )


def refound(evidence: CellEvidence) -> CellFound:
    """What a run directory holds of a cell that was changed in memory."""
    resumed = refound(evidence.resumed) if evidence.resumed else None
    return CellFound(
        records=evidence.records,
        result=evidence.result,
        oracle=evidence.oracle,
        config=evidence.config,
        resumed=resumed,
    )


def oracle_of(cell: PlannedCell, records: Mapping[int, RankRecord]) -> OracleRecord | None:
    """That of a cell which the oracle does not model, so that it is compared with its control."""
    if not records[0].steps:
        return None
    return OracleRecord(cell=cell.id, built=records[0].built, not_modelled="simulated ranks")


def computed(evidence: CellEvidence) -> OracleRecord:
    """That of a cell which the oracle models: the numbers of one rank, twice."""
    config = replace(evidence.cell.config, layout=Layout(), canaries=(), saved_in=None, resume="")
    alone = _record(replace(evidence.cell, config=config), 0)
    record = RankRecord(cell=alone.cell, rank=0, place=alone.place, ended="completed")
    numbers = ("steps", "evaluations", "parameters", "activations", "routers", "expert_biases", "mtp", "followed")
    for name in (*numbers, "legs"):
        setattr(record, name, copy.deepcopy(getattr(alone, name)))
    for seen in record.parameters:
        seen.in_norm, seen.sharded = None, False
        assert seen.update is not None
        seen.update.stale = None
    record.steps = [
        StepSeen(
            step=seen.step,
            micro_batches=sum(len(replica) for replica in evidence.cell.config.micro_batches(seen.step)),
            loss_sum=seen.loss_sum,
            token_count=seen.token_count,
            grad_norm=seen.grad_norm,
            rates=seen.rates,
            decays=seen.decays,
            documents=seen.documents,
            tokens=seen.tokens,
        )
        for seen in record.steps
    ]
    first, apart = record.steps[0], {seen.name: UpdateApart(change=0.0, trained=0.0) for seen in record.parameters}
    again = LegSeen(
        leg="noise-dtype",
        loss_sum=first.loss_sum or 0.0,
        token_count=first.token_count or 0,
        documents=first.documents,
        parameters=[replace(seen, parts=[], update=None) for seen in record.parameters],
        activations=record.activations,
        training=replace(second_training(copy.deepcopy(record)), changes={}, trained={}, apart=apart),
    )
    record.legs = [again]
    digest = digest_of_choices([evidence.records[rank] for rank in sorted(evidence.records)])
    return OracleRecord(cell=alone.cell, built=evidence.records[0].built, record=record, choices=digest)


def with_oracle(evidence: Mapping[str, CellEvidence]) -> None:
    """Have every cell compared with the oracle."""
    for item in evidence.values():
        item.oracle = computed(item)


def all_evidence(plan: RunPlan, found: Mapping[str, CellFound]) -> dict[str, CellEvidence]:
    """Evidence of every cell by its id, controls first; all at once, unlike in a real run."""
    return {item.cell.id: item for item in evidence_in_turn(plan, found.__getitem__)}


def result_of(cell: PlannedCell) -> CellResult:
    ranks = [RankEnding(rank=rank, ended="completed", exit_code=0) for rank in range(cell.config.layout.world_size)]
    steps = len(cell.config.steps)
    return CellResult(
        cell=cell.id, attempt=1, status="completed", ranks=ranks, started=100.0, finished=103.5, steps_s=STEP_S * steps
    )


def records_of(cell: PlannedCell) -> dict[int, RankRecord]:
    return {rank: _record(cell, rank) for rank in range(cell.config.layout.world_size)}


def _record(cell: PlannedCell, rank: int) -> RankRecord:
    config = cell.config
    place = config.layout.coordinates(rank)
    record = RankRecord(
        cell=cell.id,
        rank=rank,
        place=place,
        run_id=RUN_ID,
        attempt=1,
        ended="completed",
        progress=Progress(leg="end", step=config.train.steps, phase="done"),
        peak_memory_bytes=1_000_000 + rank,
        environment=ENVIRONMENT | {"dtype": config.dtype, "pid": str(4000 + rank)},
        imports=[ImportProof(module=name, version=version, path=path) for name, version, path in IMPORTS],
        modules={"megatron.core": "parallel_state transformer/"},
        cpu_stubs=["torch.cuda.current_device", "torch.cuda.synchronize"],
    )
    for step in config.steps:
        batches = config.micro_batches(step)[place.dp]
        record.micro_batches.append(len(batches))
        record.workloads += _workloads(config, place, step)
        indices = [_params(record, batch.params()) for batch in batches]
        if step == 0 or not config.trained_by_harness:
            fetched = _batches(config, place, batches, indices)
            record.batches += [replace(batch, step=step) for batch in fetched]
        recurrent = config.model.numbers_of(RECURRENT) if config.model.hybrid else []
        layers = [
            LayerSeen(
                step=step,
                chunk=chunk,
                micro_batch=number,
                layer=layer,
                params=index,
                mask=None if layer in recurrent else "causal",
            )
            for number, index in enumerate(indices)
            for chunk in range(config.layout.vpp)
            for layer in _attention(config, place, chunk)
        ]
        record.layers += layers
        record.recomputed += copy.deepcopy(layers) if config.recompute != "none" else []
        record.steps.append(_step(config, place, step, batches))
    if not config.steps:  # batches of a first step are fetched all the same
        first = config.micro_batches(0)[place.dp]
        record.workloads = [work for work in _workloads(config, place, 0) if work.leg == "metadata"]
        record.batches = _batches(config, place, first, [_params(record, batch.params()) for batch in first])
    record.reported = [] if config.trained_by_harness else [_reported(config, place, seen) for seen in record.steps]
    record.entry_point = entry_point(config)
    record.counts_packed = True if config.trainer == "megatron" else None
    if config.trainer == "megatron" and config.layout.rank(place) == config.layout.world_size - 1:
        print_reports(config, record.reported)
    record.evaluations = [_evaluation(config, place, number) for number in config.evaluations]
    record.built, record.built_at = _built(config), place
    record.states = [_state(config, place, after) for after in config.stored]
    record.parameters = _parameters(config, place) if config.fingerprints and config.steps else []
    if record.parameters:
        fp32 = ["torch.float32"]
        record.optimizer = OptimizerSeen(
            gradients=fp32, weights=fp32, moments=fp32, matrix_decays=[weight_decay(config)], vector_decays=[0.0]
        )
    record.gradient_scales = [GradientScale(chunk=chunk, dense=_scale(config)) for chunk in range(config.layout.vpp)]
    record.gradient_scales = record.gradient_scales if 0 in config.steps else []
    record.activations = _activations(config, place) if config.fingerprints and config.steps else []
    record.legs = [_leg(config, record, leg) for leg in legs_of(config)]
    return record


def _scale(config: CellConfig) -> float:
    """What gradients are multiplied by."""
    if not config.options.calculate_per_token_loss:
        return 1.0 / (config.layout.dp * config.layout.cp)
    returns = config.path.counted and config.trainer != "skyrl"
    return 1.0 / sum(item.loss_tokens for item in config.documents_of(0)) if returns else 1.0


def _attention(config: CellConfig, place: Coordinates, chunk: int) -> list[int]:
    """Layers of a chunk with attention; prediction layers follow the last layer of the model."""
    layers = [*config.layout.layers(config.model.layers, place.pp, chunk)]
    predicted = config.model.mtp.layers if config.model.mtp and _last(config, place, chunk) else 0
    return layers + [config.model.layers + depth for depth in range(1, predicted + 1)]


def _last(config: CellConfig, place: Coordinates, chunk: int) -> bool:
    return place.pp == config.layout.pp - 1 and chunk == config.layout.vpp - 1


def _workloads(config: CellConfig, place: Coordinates, step: int) -> list[WorkloadSeen]:
    """The workloads that data paths count: those of step 0 in two legs, in one if upstream trains."""
    if not config.path.counts_work:
        return []
    work = workload(config.micro_batches(step), place.dp)
    legs = ("metadata", "training") if step == 0 and config.trained_by_harness else ("training",)
    counts = {"micro_batches": work.micro_batches, "tokens": work.tokens, "squares": work.squares}
    return [WorkloadSeen(leg=leg, step=step, **counts) for leg in legs]


def _built(config: CellConfig) -> list[BuiltSeen]:
    return [BuiltSeen(of=of, values=values) for of, values in asked(config).items()]


def _leg(config: CellConfig, record: RankRecord, leg: Leg) -> LegSeen:
    place = record.place
    batches = leg.micro_batches(config)[place.dp]
    if not leg.model:
        indices = [_params(record, batch.params()) for batch in batches]
        return LegSeen(leg=leg.name, batches=_batches(config, place, batches, indices))
    seen = LegSeen(leg=leg.name)
    if place.pp == config.layout.pp - 1:
        seen.documents, _ = _losses(config, place, 0, batches, leg.documents, leg.changed)
        seen.token_count = sum(part.tokens for part in seen.documents.values())
        seen.loss_sum = sum(part.loss_sum for part in seen.documents.values())
        seen.documents = seen.documents if place.tp == 0 else {}
    if leg.backward:
        seen.parameters = [replace(one, update=None, in_norm=None) for one in _parameters(config, place)]
        seen.activations = _activations(config, place)
    if leg.trains:
        seen.training = second_training(copy.deepcopy(record))
    return seen


def second_training(again: RankRecord) -> TrainingSeen:
    """That ends as the first one of `again`."""
    updates = {seen.name: seen.update for seen in again.parameters if seen.update is not None}
    return TrainingSeen(
        steps=[
            LaterSeen(
                after=step.step, loss_sum=step.loss_sum or 0.0, documents=step.documents, grad_norm=step.grad_norm
            )
            for step in again.steps[1:]
        ],
        evaluations=[
            LaterSeen(
                after=one.after,
                loss_sum=one.loss_sum or 0.0,
                documents=one.documents,
                activations=one.activations,
            )
            for one in again.evaluations
        ],
        changes={name: update.change for name, update in updates.items()},
        trained={name: update.trained for name, update in updates.items() if update.trained is not None},
        merged={seen.name: seen.after for seen in again.merged if seen.after is not None},
        expert_biases=again.expert_biases,
    )


def _params(record: RankRecord, truth: PackedParams | None) -> int | None:
    if truth is None:
        return None
    seen = SeenParams(
        cu_seqlens_q=list(truth.cu_seqlens_q),
        cu_seqlens_kv=list(truth.cu_seqlens_kv),
        cu_seqlens_q_padded=None if truth.cu_seqlens_q_padded is None else list(truth.cu_seqlens_q_padded),
        cu_seqlens_kv_padded=None if truth.cu_seqlens_kv_padded is None else list(truth.cu_seqlens_kv_padded),
        max_seqlen_q=truth.max_seqlen_q,
        max_seqlen_kv=truth.max_seqlen_kv,
        qkv_format="thd",
        forms=forms_of(truth),
        max_seqlen_type="int",
    )
    if seen not in record.packed_params:
        record.packed_params.append(seen)
    return record.packed_params.index(seen)


def forms_of(truth: PackedParams) -> dict[str, TensorForm]:
    """Forms with one tensor for q and kv, and another for padded offsets only if they differ."""
    forms = {}
    equal = truth.cu_seqlens_q_padded == truth.cu_seqlens_q
    for name, same in (
        ("cu_seqlens_q", None),
        ("cu_seqlens_kv", "cu_seqlens_q"),
        ("cu_seqlens_q_padded", "cu_seqlens_q" if equal else None),
        ("cu_seqlens_kv_padded", "cu_seqlens_q" if equal else "cu_seqlens_q_padded"),
    ):
        values = getattr(truth, name)
        if values is not None:
            forms[name] = TensorForm(dtype="torch.int32", shape=[len(values)], device="cpu", same_as=same)
    return forms


def log_probs_of(batch: MicroBatch) -> TensorSeen:
    """What is recorded of a data path that unpacks log-probabilities correctly."""
    return TensorSeen(shape=[batch.slots], dtype="torch.float32", mismatches=0)


def _batches(
    config: CellConfig, place: Coordinates, batches: list[MicroBatch], indices: list[int | None]
) -> list[BatchSeen]:
    layout, found = config.layout, []
    for number, (batch, index) in enumerate(zip(batches, indices)):
        rows = 1 if batch.style.packed else len(batch.rows)
        shape = [rows, batch.slots // rows // layout.cp]
        tensor = TensorSeen(shape=shape, dtype="torch.int64", mismatches=0)
        mask = TensorSeen(shape=shape, dtype="torch.float32", mismatches=0)
        padding = TensorSeen(shape=shape, dtype="torch.bool", mismatches=0)
        for chunk in range(layout.vpp):
            last = _last(config, place, chunk)
            first = (place.pp == 0 and chunk == 0) or (last and config.model.mtp is not None)
            found.append(
                BatchSeen(
                    chunk=chunk,
                    micro_batch=number,
                    params=index,
                    tokens=tensor if first else None,
                    position_ids=tensor if first else None,
                    labels=tensor if last else None,
                    loss_mask=mask if last else None,
                    padding_mask=padding if PADDING_MASK in fields_used(config, place.pp, chunk) else None,
                    log_probs=log_probs_of(batch) if last and config.data_path == "skyrl" else None,
                )
            )
    return found


def _local_tokens(config: CellConfig, place: Coordinates, batch: MicroBatch) -> list[tuple[int, int]]:
    """(document, position) of the real tokens that this cp rank holds."""
    owners = batch.slot_owners()
    slots = [slot for row in batch.local_slots(config.layout.cp, place.cp) for slot in row]
    return [owners[slot] for slot in slots if owners[slot][0] != PAD]


def _projection(*key: int) -> float:
    """A multiple of 0.25 up to 1, of either sign: no two values are within a bound of each other, and none of 0."""
    number = 8 * _number(*key)
    return 0.25 * (1 + int(number) % 4) * (1 if number < 4 else -1)


@lru_cache(maxsize=100_000)
def _number(*key: int) -> float:
    """A pseudorandom number between 0 and 1, the same for the same key."""
    value = math.sin(sum((index + 1) * 12.9898 * (part + 1) for index, part in enumerate(key))) * 43758.5453
    return value - math.floor(value)


def token_loss(content: int, position: int, step: int) -> float:
    return 4.5 + 0.7 * _number(content, position) - 0.1 * step


def _step(config: CellConfig, place: Coordinates, step: int, batches: list[MicroBatch]) -> StepSeen:
    documents = config.documents_of(step)
    content = _contents(documents, frozenset())
    seen = StepSeen(
        step=step,
        micro_batches=len(batches),
        grad_norm=2.0 + step,
        time_s=STEP_S,
        real_tokens=sum(batch.real_tokens for batch in batches),
        slots=sum(batch.slots for batch in batches),
        rates=[config.train.lr],
        decays=sorted({0.0, weight_decay(config)}),
    )
    if place.pp != config.layout.pp - 1:
        return seen
    counted = [item for item in documents if not item.masked]
    seen.token_count = sum(item.length for item in counted)
    seen.loss_sum = math.fsum(
        token_loss(content[item.index], position, step) for item in counted for position in range(item.length)
    )
    losses, tokens = _losses(config, place, step, batches, documents, frozenset())
    per_token = config.options.calculate_per_token_loss
    if config.path.counted and config.trainer != "skyrl" and (per_token or not config.step_mean):
        seen.returned_tokens = float(sum(part.tokens for part in losses.values()))
    elif config.trainer == "harness":
        # This rank's share of the mean over the step's tokens, as Megatron's schedule and DDP must get it.
        scale = len(batches) / config.layout.cp
        scale *= 1 if per_token else config.layout.dp * config.layout.cp
        seen.returned_loss = math.fsum(part.loss_sum for part in losses.values()) / (seen.token_count or 1) * scale
    if place.tp == 0:
        seen.documents = losses
        seen.tokens = tokens if step == 0 else []
    return seen


def _reported(config: CellConfig, place: Coordinates, seen: StepSeen) -> ReportedStep:
    """What a right trainer reports of a step."""
    rows = len(config.samples(0))
    last = seen.loss_sum is not None and seen.token_count
    found = ReportedStep(
        step=seen.step,
        consumed_samples=rows * (seen.step + 1),
        skipped=0,
        loss_scale=1.0,
        loss=seen.loss_sum / seen.token_count if last else None,  # type: ignore[operator]
        grad_norm=seen.grad_norm,
        learning_rate=config.train.lr,
    )
    if config.trainer == "megatron":  # of the other trainers with counters no rank is simulated
        segments = [size for replica in config.micro_batches(seen.step) for one in replica for _, size in one.segments]
        found.flops = train_flops(config.model, segments)
        found.packed_tokens = float(sum(segments))
        found.packed_squares = float(sum(size**2 for size in segments))
    return found


def print_reports(config: CellConfig, told: list[ReportedStep]) -> None:
    """Print what the last rank reported, with one line for all steps and one for the first."""
    rows = len(config.samples(0))
    for seen in (told[0], told[-1]):
        over = [one for one in told if one.step <= seen.step]
        losses = [one.loss for one in over if one.loss is not None and math.isfinite(one.loss)]
        seen.printed = {
            "iteration": f"{seen.step + 1}/{config.train.steps}",
            "consumed samples": f"{seen.consumed_samples}",
            "learning rate": f"{seen.learning_rate or 0.0:.6E}",
            "global batch size": f"{rows}",
            "lm loss": f"{math.fsum(losses) / max(len(losses), 1):.6E}",
            "loss scale": f"{seen.loss_scale:.1f}",
            "grad norm": f"{seen.grad_norm or 0.0:.3f}",
            "number of skipped iterations": f"{sum(one.skipped for one in over)}",
        }


def _evaluation(config: CellConfig, place: Coordinates, number: int) -> EvaluationSeen:
    """What a right trainer records of an evaluation."""
    step = config.train.steps + number
    seen = _step(config, place, step, config.micro_batches(step)[place.dp])
    found = EvaluationSeen(
        after=config.train.evaluated[number],
        micro_batches=seen.micro_batches,
        loss_sum=seen.loss_sum,
        token_count=seen.token_count,
        documents=seen.documents,
        activations=_activations(config, place, step) if config.fingerprints and config.steps else [],
    )
    if seen.loss_sum is not None and not config.trained_by_harness:
        found.reported = _mean_loss(config, step)
    return found


def _mean_loss(config: CellConfig, step: int) -> float:
    """The loss of an evaluation as Megatron-LM's --sft reports it: the mean of the means of micro-batches."""
    content = _contents(config.documents_of(step), frozenset())
    means = []
    for batch in (batch for replica in config.micro_batches(step) for batch in replica):
        counted = [item.document for item in batch.placed if not item.document.masked]
        losses = [token_loss(content[one.index], place, step) for one in counted for place in range(one.length)]
        means.append(math.fsum(losses) / max(len(losses), 1))
    return math.fsum(means) / len(means)


def _contents(documents: Sequence[Document], changed: frozenset[int]) -> dict[int, int]:
    """Document -> key of its tokens; copies share one."""
    kept = {item.index: item.index if item.copy_of is None else item.copy_of for item in documents}
    return {index: 1000 + index if index in changed else content for index, content in kept.items()}


def _losses(
    config: CellConfig,
    place: Coordinates,
    step: int,
    batches: list[MicroBatch],
    documents: Sequence[Document],
    changed: frozenset[int],
) -> tuple[dict[int, DocumentLoss], list[TokenLoss]]:
    content, masked = _contents(documents, changed), {item.index for item in documents if item.masked}
    sums: dict[int, DocumentLoss] = {}
    tokens = []
    for document, position in (token for batch in batches for token in _local_tokens(config, place, batch)):
        loss = token_loss(content[document], position, step)
        part = sums.setdefault(document, DocumentLoss(loss_sum=0.0, tokens=0))
        if document not in masked:
            part.loss_sum += loss
            part.tokens += 1
            tokens.append(TokenLoss(document=document, position=position, loss=loss))
    return sums, tokens


def _parameters(config: CellConfig, place: Coordinates) -> list[ParameterSeen]:
    layout, layers = config.layout, config.model.layers
    found = []
    if place.pp == 0:
        found.append(_gradient(layout, place, "embedding.word_embeddings.weight", 0, True))
    for chunk in range(layout.vpp):
        for layer in layout.layers(layers, place.pp, chunk):
            for number, name in enumerate(SHARDED + WHOLE):
                full = f"decoder.layers.{layer - 1}.{name}"
                found.append(_gradient(layout, place, full, 10 * layer + number, name in SHARDED))
    if place.pp == layout.pp - 1:
        found.append(_gradient(layout, place, "decoder.final_layernorm.weight", 900, False))
        found.append(_gradient(layout, place, "output_layer.weight", 901, True))
    return found


def _state(config: CellConfig, place: Coordinates, after: int) -> StateSeen:
    """What a checkpoint after some steps holds: the same in every layout."""
    rows = len(config.samples(0))
    exact = len(config.stored) > 1
    return StateSeen(
        after=after,
        parameters=[
            StoredParameter(
                name=seen.name,
                sharded=seen.sharded,
                weight=_scaled(seen.gradient, 1.0 + after),
                first_moment=_scaled(seen.gradient, 0.1 * after),
                second_moment=_scaled(seen.gradient, 0.01 * after),
                digest=f"{seen.name} tp {place.tp} after {after}" if exact else "",
            )
            for seen in _parameters(config, place)
        ],
        updates=after,
        scheduled=rows * after,
        random=f"random numbers of {place}" if exact and after == config.train.save_step else "",
    )


def _scaled(seen: Fingerprint, factor: float) -> Fingerprint:
    """Not that of a scaled tensor, but one that adds up over shards just as well."""
    return Fingerprint(norm_sq=seen.norm_sq * factor, projections=[value * factor for value in seen.projections])


def _gradient(layout: Layout, place: Coordinates, name: str, key: int, splits: bool) -> ParameterSeen:
    norm, projections = 1.0 + _number(key), [_projection(key, 1), _projection(key, 2)]
    sharded = splits and layout.tp > 1
    shares = [(part + 1) / 36 for part in range(8)]  # of eight unequal parts, which shards are made of
    each = 8 // layout.tp
    share = sum(shares[place.tp * each : (place.tp + 1) * each]) if sharded else 1.0

    def scaled(factor: float) -> Fingerprint:
        return Fingerprint(norm_sq=norm * factor, projections=[value * factor for value in projections])

    parts = [scaled(part) for part in shares] if layout.world_size == 1 and splits else []
    update = UpdateSeen(
        first_moment=scaled(share / 10),
        second_moment=scaled(share / 20),
        change=scaled(share),
        trained=scaled(share),
        stale=0,
    )
    in_norm = sharded or place.tp == 0
    return ParameterSeen(
        name=name, sharded=sharded, gradient=scaled(share), parts=parts, update=update, in_norm=in_norm
    )


def _activations(config: CellConfig, place: Coordinates, step: int = 0) -> list[ActivationSeen]:
    layout = config.layout
    if place.tp and not layout.sp:
        return []
    tokens: list[tuple[int, int]] = []
    for batch in config.micro_batches(step)[place.dp]:
        local = _local_tokens(config, place, batch)
        if layout.sp and layout.tp > 1:
            size = -(-len(local) // layout.tp)
            local = local[place.tp * size : (place.tp + 1) * size]
        tokens += local
    layers = [layer for chunk in range(layout.vpp) for layer in layout.layers(config.model.layers, place.pp, chunk)]
    found = []
    for layer in ([0] if place.pp == 0 else []) + layers:
        documents: dict[int, Fingerprint] = {}
        for document, position in tokens:
            old = documents.setdefault(document, Fingerprint(norm_sq=0.0, projections=[0.0, 0.0]))
            old.norm_sq += 1.0 + _number(layer, document, position)
            old.projections[0] += _number(layer, document, position, 1) - 0.5
            old.projections[1] += _number(layer, document, position, 2) - 0.5
        found.append(ActivationSeen(layer=layer, documents=documents))
    return found


def leg_of(record: RankRecord, name: str) -> LegSeen:
    """What a rank recorded of one canary leg."""
    return next(leg for leg in record.legs if leg.leg == name)


def at(evidence: CellEvidence, **where: int) -> list[RankRecord]:
    """Records of the ranks at the coordinates."""
    return [
        record
        for record in evidence.records.values()
        if all(getattr(record.place, name) == value for name, value in where.items())
    ]


def drop_params(record: RankRecord) -> None:
    """Remove the packed params of one rank from both legs."""
    for batch in record.batches:
        batch.params = None
    for layer in (*record.layers, *record.recomputed):
        layer.params = None


def alter_params(record: RankRecord, change: Callable[[SeenParams], None], **where: int) -> None:
    """Change the packed params of one rank in both legs, where the entry's fields (micro_batch=, ...) match."""
    entries: list[BatchSeen | LayerSeen] = [*record.batches, *record.layers, *record.recomputed]
    for seen in entries:
        if seen.params is None or any(getattr(seen, name, None) != value for name, value in where.items()):
            continue
        changed = copy.deepcopy(record.packed_params[seen.params])
        change(changed)
        record.packed_params.append(changed)
        seen.params = len(record.packed_params) - 1
    _without_unused(record)


def _without_unused(record: RankRecord) -> None:
    """Keep each distinct entry of the table once and drop unused ones, as the recorder does."""
    table = record.packed_params
    distinct: list[SeenParams] = []
    legs = [batch for leg in record.legs for batch in leg.batches]
    for seen in [*record.batches, *record.layers, *record.recomputed, *legs]:
        if seen.params is not None:
            if table[seen.params] not in distinct:
                distinct.append(table[seen.params])
            seen.params = distinct.index(table[seen.params])
    record.packed_params = distinct


TODAY = "2026-01-01"


def judge(evidence: CellEvidence) -> CellVerdict:
    return judge_cell(evidence, today=TODAY)


def the_only_finding(evidence: CellEvidence, check: str) -> Finding:
    """The finding of `check`; fails if another check finds an error or the outcome is not FAIL."""
    verdict = judge(evidence)
    errors = [finding for finding in verdict.findings if finding.severity is Severity.ERROR]
    assert [finding.check for finding in errors] == [check], [finding.message for finding in errors]
    assert verdict.outcome is Outcome.FAIL
    failed = [lane for lane in Lane if verdict.lanes[lane] is LaneVerdict.FAIL]
    assert failed == [errors[0].lane]
    return errors[0]


def place_of(finding: Finding, *keys: str) -> tuple[Any, ...]:
    return tuple(finding.where.get(key) for key in keys)
