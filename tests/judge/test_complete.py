"""What is missing of a cell's evidence leaves it undecided: test_absent.py takes every field away in turn."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.core.cell.config import TrainConfig
from harness.core.cell.layout import Coordinates
from harness.core.cell.timing import Timed, TimingConfig
from harness.core.outcomes import NODE_RULES, Outcome, Rejection
from harness.core.packing.documents import DocumentsConfig
from harness.core.run.records import ExpertBiasSeen, Failure, RankRecord, WorkloadSeen
from harness.core.run.run_plan import BaselineRequest
from harness.core.run.tensor_records import ParameterSeen
from harness.judge.complete import incomplete, missing, rejection_problem, uncompared, untrusted
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.stats.baseline import Baseline, Sample
from tests.judge.checks.adapters.of_adapters import LAYER, adapted_cell
from tests.judge.checks.numerics.test_ended import cut_off
from tests.judge.parts import with_predictions, with_routers
from tests.judge.simulator import TRAIN, computed, config_of, evidence_for, judge
from tests.judge.timed import timed

CANARIES = ("isolation", "determinism", "padding", "repetition", "order")
BOTH = {("packed", 0): 0.1, ("unpacked", 0): 0.1}
FAILURE = Failure(type="RuntimeError", message="no", traceback="", time=1.0)
SAMPLE = Sample(run_id="night-1", started="2026-01-01T00:00:00Z", seconds=0.5)

OfRecord = Callable[[RankRecord], object]


@pytest.mark.parametrize(
    "make",
    [
        lambda: evidence_for(config_of("sft")),
        lambda: evidence_for(config_of("reference", tp=2, pp=2, canaries=CANARIES)),
        lambda: evidence_for(config_of("reference", cp=2, dp=2, pp=2, vpp=2)),
        lambda: evidence_for(config_of("reference", pp=2, first_stage_layers=3)),
        lambda: evidence_for(config_of("reference", pp=2, vpp=2, stages="Et|tt||tL")),
        lambda: evidence_for(config_of("reference", pp=3, stages="Ett||ttL")),
        lambda: evidence_for(config_of("skyrl", tp=2, sp=False)),
        lambda: evidence_for(config_of("unpacked", micro_batch_size=2)),
        lambda: evidence_for(replace(config_of("sft"), recompute="full")),
        lambda: evidence_for(replace(config_of("sft", pp=2), trainer="megatron")),
        lambda: evidence_for(replace(config_of("sft", tp=2, pp=2), trainer="megatron", resume="same")),
        lambda: evidence_for(replace(config_of("sft", tp=2, pp=2), trainer="megatron", resume="tp1-pp4")),
        lambda: with_routers(pp=2),
        lambda: with_predictions(depths=2, pp=2),
        lambda: timed(BOTH),
    ],
)
def test_clean_evidence_is_of_its_cell_and_complete(make: Callable[[], CellEvidence]) -> None:
    evidence = make()
    for part in filter(None, (evidence, evidence.resumed)):
        assert (untrusted(part), incomplete(part)) == ("", "")


def set_field(name: str, value: object) -> OfRecord:
    return lambda record: setattr(record, name, value)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (set_field("schema_version", 1), "schema_version 1, this harness reads 2"),
        (set_field("cell", "other"), "it belongs to cell other"),
        (set_field("run_id", "other"), "it belongs to run other, not to smoke-20260101T000000-abcd"),
        (set_field("run_id", ""), "it belongs to no run, not to smoke-20260101T000000-abcd"),
        (set_field("attempt", 2), "it belongs to attempt 2, but is in the folder of attempt 1"),
        (
            set_field("place", Coordinates(tp=0, cp=0, dp=0, pp=0)),
            "its place is stage 0, tp 0, cp 0, dp 0, the layout puts it at stage 0, tp 1, cp 0, dp 0",
        ),
        (set_field("failure", FAILURE), "its ending is completed, but it contains a failure"),
        (set_field("ended", "raised"), "its ending is raised, but it contains no failure"),
        (lambda record: record.steps.pop(), "its ending is completed, but it contains steps [0] of [0, 1]"),
        (lambda record: record.steps.pop(0), "its ending is completed, but it contains steps [1] of [0, 1]"),
        (
            lambda record: record.legs.pop(),
            "its ending is completed, but it contains canary legs ['determinism'] of ['determinism', 'padding']",
        ),
    ],
)
def test_a_record_is_of_this_rank_and_attempt(change: OfRecord, problem: str) -> None:
    evidence = evidence_for(config_of("sft", tp=2, canaries=("determinism", "padding")))
    change(evidence.records[1])
    assert untrusted(evidence) == f"record of rank 1: {problem}"


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_record_is_of_a_rank_of_the_layout(rank: int) -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    evidence.records[rank] = replace(evidence.records[1], rank=rank)
    assert untrusted(evidence) == f"record of rank {rank}: rank {rank} does not fit a layout of 2 ranks"


@pytest.mark.parametrize("ended", ["raised", "running"])
def test_a_rank_that_did_not_complete_holds_fewer_steps(ended: str) -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    cut_off(evidence.records[1], ended)
    assert untrusted(evidence) == ""


def test_damaged_files_are_named_before_anything_else() -> None:
    evidence = evidence_for(config_of("sft"))
    evidence.damaged, evidence.records = ["rank-0.json is not JSON", "rank-1.json is not JSON"], {}
    assert untrusted(evidence) == "rank-0.json is not JSON"


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("the node went down", "the node went down"),
        ("", "no reason given"),
        (None, "the cell has not run, or its agent died"),
    ],
)
def test_a_cell_without_records_says_why(reason: str | None, why: str) -> None:
    evidence = evidence_for(config_of("sft"))
    assert evidence.result is not None
    evidence.result.reason = reason or ""
    evidence.records = {}
    if reason is None:
        evidence.result = None
    assert untrusted(evidence) == f"no rank records: {why}"


def test_the_configuration_that_ran_is_the_planned_one() -> None:
    evidence = evidence_for(config_of("sft"))
    evidence.config = replace(evidence.cell.config, deadline_s=60.0, micro_batch_size=2)
    assert untrusted(evidence) == "config.json has micro_batch_size 2, plan.json 1"
    evidence.config = replace(evidence.cell.config, train=TrainConfig(steps=1))
    assert untrusted(evidence).startswith("config.json has train {'steps': 1, 'global_batch': 8, ")
    evidence.config = None
    assert untrusted(evidence) == "config.json is missing, so what the ranks ran is unknown"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"schema_version": 1}, "schema_version 1, this harness reads 2"),
        ({"cell": "other"}, "it belongs to cell other"),
        ({"attempt": 2}, "it belongs to attempt 2, but is in the folder of attempt 1"),
    ],
)
def test_a_result_is_of_this_attempt(fields: dict[str, Any], problem: str) -> None:
    for evidence, of in ((evidence_for(config_of("sft")), untrusted), (rejected(), rejection_problem)):
        assert evidence.result is not None
        evidence.result = replace(evidence.result, **fields)
        assert of(evidence) == f"result.json: {problem}"


def test_a_result_has_one_ending_of_each_rank_of_the_layout_at_most() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    assert evidence.result is not None
    evidence.result.ranks.append(evidence.result.ranks[0])
    assert untrusted(evidence) == "result.json: it has endings of ranks [0, 1, 0], the layout has 2 ranks"


def rejected() -> CellEvidence:
    evidence = evidence_for(config_of("sft"))
    assert evidence.result is not None
    evidence.result.status, evidence.records = "rejected", {}
    evidence.result.rejection = Rejection(rule="stack.data_path", reason="megatron-core 0.16.1 has no SFT data path")
    return evidence


@pytest.mark.parametrize("rule", NODE_RULES)
def test_a_node_may_reject_by_its_rules(rule: str) -> None:
    evidence = rejected()
    assert evidence.result is not None
    evidence.result.rejection = Rejection(rule=rule, reason="its reason")
    assert rejection_problem(evidence) == ""


@pytest.mark.parametrize(
    ("rejection", "named"),
    [
        (Rejection(rule="cp.divides", reason="its reason"), " by 'cp.divides', which is no rule that nodes decide"),
        (Rejection(rule="stack.data_path", reason=""), ", but no rule with a reason is named"),
        (None, ", but no rule with a reason is named"),
    ],
)
def test_a_node_may_not_reject_by_other_rules_or_without_a_reason(rejection: Rejection | None, named: str) -> None:
    evidence = rejected()
    assert evidence.result is not None
    evidence.result.rejection = rejection
    assert rejection_problem(evidence) == f"result.json: status is rejected{named}"


def test_a_cell_that_ran_or_whose_files_are_damaged_was_not_rejected() -> None:
    evidence = rejected()
    evidence.records = evidence_for(config_of("sft", tp=2)).records
    assert rejection_problem(evidence) == "result.json: status is rejected, but 2 ranks left records"
    evidence.damaged = ["rank-0.json is not JSON"]
    assert rejection_problem(evidence) == "rank-0.json is not JSON"
    evidence.damaged, evidence.records, evidence.config = [], {}, None
    assert rejection_problem(evidence) == "config.json is missing, so what the ranks ran is unknown"


def test_without_a_result_or_with_other_endings_how_the_ranks_ended_is_unknown() -> None:
    evidence = evidence_for(config_of("sft"))
    assert evidence.result is not None
    evidence.result.ranks[0].exit_code = 1
    problem = "says that rank 0 completed with exit code 1, its record that it completed"
    assert incomplete(evidence) == f"incomplete evidence: result.json {problem}"
    evidence.result.ranks = []
    assert incomplete(evidence) == "incomplete evidence: result.json has endings of 0 of 1 ranks"
    evidence.result = None
    assert "result.json is missing, so how the attempt ended is unknown" in incomplete(evidence)


@pytest.mark.parametrize("ended", ["running", "raised"])
def test_a_cell_whose_ranks_did_not_all_complete_is_judged_by_what_exists(ended: str) -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    cut_off(evidence.records[0], ended)
    evidence.result = None
    assert incomplete(evidence) == ""


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda record: record.environment.pop("host"), "environment: host is missing"),
        (
            lambda record: record.environment.update(attention="other"),
            "environment: attention is 'other', the cell asks for auto: reference",
        ),
        (lambda record: record.environment.update(dtype="bf16"), "environment: dtype is bf16, the cell's is fp32"),
        (lambda record: record.imports.pop(0), "imports: megatron.core is missing, so which code ran is unknown"),
        (lambda record: record.layers.pop(), "layers: 1 missing, such as (1, 0, 2, 4); 24 are planned"),
        (lambda record: record.layers.append(record.layers[0]), "layers: 25 recorded, 24 are planned"),
        (
            lambda record: record.activations.pop(),
            "activations: recorded for layers [0, 1, 2, 3], expected for [0, 1, 2, 3, 4]",
        ),
    ],
)
def test_what_a_record_lacks_is_named(change: OfRecord, problem: str) -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    change(evidence.records[1])
    assert incomplete(evidence).startswith(f"incomplete evidence: record of rank 1: {problem}")


def test_work_that_the_descriptor_does_not_announce_is_traced_to_its_flag() -> None:
    evidence = evidence_for(config_of("sft"))
    evidence.records[0].workloads.append(WorkloadSeen(leg="training", step=0, micro_batches=1, tokens=1, squares=1))
    assert incomplete(evidence) == (
        "incomplete evidence: record of rank 0: workloads: recorded for [('training', 0)], expected for [], since the "
        "data path sft has counts_work=False"
    )


def test_only_a_stage_without_a_part_of_the_model_has_no_weights() -> None:
    evidence = evidence_for(config_of("reference", pp=3, stages="Ett||ttL"))
    evidence.records[2].parameters = []
    assert "record of rank 2: parameters: 0 recorded, some expected" in incomplete(evidence)
    evidence = evidence_for(config_of("reference", pp=3, stages="Ett||ttL"))
    evidence.records[1].parameters = evidence.records[0].parameters
    assert "record of rank 1: parameters: 7 recorded, none expected" in incomplete(evidence)


def test_numbers_that_are_not_finite_are_left_to_the_checks() -> None:
    evidence = evidence_for(config_of("sft"))
    evidence.records[0].parameters[0].gradient.norm_sq = float("nan")
    assert incomplete(evidence) == ""


@pytest.mark.parametrize(("ranks", "more"), [(3, ""), (4, "; 1 more"), (8, "; 5 more")])
def test_three_problems_are_named_and_the_others_counted(ranks: int, more: str) -> None:
    evidence = evidence_for(config_of("sft", tp=8))
    for rank in range(ranks):
        evidence.records[rank].optimizer = None
    named = "; ".join(f"record of rank {rank}: optimizer is missing" for rank in range(3))
    assert incomplete(evidence) == f"incomplete evidence: {named}{more}"


def test_ranks_of_a_stage_hold_the_same_parameters_and_import_the_same_code() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    del evidence.records[1].parameters[3]
    name = "decoder.layers.0.input_layernorm.weight"
    held = f"record of rank 1: parameters: {name} differs from rank 0 of its stage"
    assert incomplete(evidence) == f"incomplete evidence: {held}"
    evidence = evidence_for(config_of("sft", tp=2))
    evidence.records[1].imports = [replace(one, version="0.1") for one in evidence.records[1].imports]
    assert "record of rank 1: imports: torch is 0.1 from " in incomplete(evidence)


def test_a_parameter_that_the_reference_has_is_held_by_some_rank() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    for record in evidence.records.values():
        del record.parameters[3]
    assert "parameters: no rank holds decoder.layers.0.input_layernorm.weight" in incomplete(evidence)


@pytest.mark.parametrize("saves", [True, False])
def test_what_is_saved_is_loaded(saves: bool) -> None:
    evidence = evidence_for(replace(config_of("sft", tp=2), trainer="megatron", resume="tp1-pp1"))
    part = evidence.resumed
    assert part is not None
    for side in (evidence, part):
        for record in side.records.values():
            shorter = record.states[0].parameters[1:]
            record.states[0].parameters = shorter if (side is part) is saves else record.states[0].parameters
            record.parameters = []
    how = "loaded" if saves else "saved"
    part.cell = replace(part.cell, config=replace(part.cell.config, canaries=()))
    assert [problem for problem in missing(part) if how in problem] == [
        f"states: embedding.word_embeddings.weight after step 1 is not {how}"
    ]


def reported(**changes: object) -> str:
    """What is missing of a cell that Megatron-LM's trainer trained, after changes of its last rank's first report."""
    evidence = evidence_for(replace(config_of("sft", pp=2), trainer="megatron"))
    for name, value in changes.items():
        holder = evidence.records[1] if hasattr(evidence.records[1], name) else evidence.records[1].reported[0]
        setattr(holder, name, value)
    return incomplete(evidence)


@pytest.mark.parametrize("name", ["flops", "packed_tokens", "packed_squares"])
def test_a_number_that_the_release_counts_is_required(name: str) -> None:
    assert reported(**{name: None}) == (f"incomplete evidence: record of rank 1: reported: step 0: {name} is missing")


def test_the_line_that_the_trainer_prints_and_the_function_that_it_entered_by_are_required() -> None:
    assert reported(printed=None).endswith("reported: step 0: the printed line is missing")
    assert "entry_point is 'other', expected ''" in reported(entry_point="other")


def test_a_release_that_is_known_to_count_packed_tokens_does_so() -> None:
    assert "counts_packed is None, and the release counts packed tokens" in reported(counts_packed=None)
    assert "counts_packed is False, and the release counts packed tokens" in reported(counts_packed=False)


ROUNDS = 3
UNPACKED = TimingConfig(unpacked=True, rounds=ROUNDS)
TURNS = TimingConfig(turns="pair", rounds=ROUNDS)


def timing_problem(config: TimingConfig, *loads: tuple[str, int], rounds: int = ROUNDS, **untimed: str) -> str:
    evidence = evidence_for(replace(config_of("sft"), timing=config))
    evidence.records[0].warmup_rounds, evidence.records[0].untimed = 1, untimed
    evidence.records[0].timings = [
        Timed(load=name, documents=count, round=number, seconds=0.5)
        for number in range(rounds)
        for name, count in loads
    ]
    return incomplete(evidence).removeprefix("incomplete evidence: record of rank 0: ")


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (timing_problem(UNPACKED, *BOTH), ""),
        (timing_problem(UNPACKED, ("unpacked", 0)), "timings: recorded for [('unpacked', 0)], expected for "),
        (timing_problem(UNPACKED, *BOTH, ("full", 0)), "timings: recorded for [('full', 0), "),
        (
            timing_problem(UNPACKED, *BOTH, rounds=2),
            "timings: packed with 0 documents has rounds [0, 1], not [0, 1, 2]",
        ),
        (timing_problem(UNPACKED, unpacked="the layout cannot run it"), ""),
        (timing_problem(UNPACKED, unpacked=""), "untimed: unpacked has no reason"),
        (timing_problem(TURNS, ("turn", 0)), ""),
        (timing_problem(TURNS, ("turn", 0), rounds=2), "timings: turn with 0 documents has rounds [0, 1]"),
        (timing_problem(TURNS, ("turn", 0), rounds=2, turn="the other stack ended"), ""),
    ],
)
def test_every_load_is_timed_in_every_round_or_says_why_not(found: str, problem: str) -> None:
    assert found.startswith(problem) and bool(found) == bool(problem)


def nightly(*samples: Sample) -> CellEvidence:
    """A cell of two ranks whose matrix asks for a comparison with earlier runs."""
    evidence = evidence_for(config_of("sft", tp=2))
    evidence.history = BaselineRequest(runs=20)
    evidence.before = Baseline(runs=20, samples={"processor x 8": list(samples)})
    for record in evidence.records.values():
        for step in record.steps:
            step.busy_s = 0.4
    return evidence


@pytest.mark.parametrize("count", [0, 1, 10])
def test_times_can_be_compared_however_many_earlier_runs_there_are(count: int) -> None:
    assert uncompared(nightly(*[SAMPLE] * count)) == ""
    assert judge(nightly(*[SAMPLE] * count)).outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda evidence: setattr(evidence, "before", None), "baseline.json has no entry of this cell"),
        (lambda evidence: setattr(evidence, "before", Baseline(runs=3)), "baseline.json says 3 runs, plan.json 20"),
        (
            lambda evidence: setattr(evidence.records[1].steps[1], "busy_s", 0.0),
            "record of rank 1: steps: step 1: busy_s is 0.0",
        ),
    ],
)
def test_a_requested_comparison_without_times_is_undecided(change: Callable[[CellEvidence], object], why: str) -> None:
    evidence = nightly(*[SAMPLE] * 10)
    change(evidence)
    assert uncompared(evidence) == why
    assert judge(evidence).outcome is Outcome.ERROR


def test_the_first_step_warms_up_and_on_a_gpu_the_timing_leg_is_compared() -> None:
    evidence = nightly()
    evidence.records[0].steps[0].busy_s = 0.0
    assert uncompared(evidence) == ""
    evidence.records[0].steps[1].busy_s = 0.0
    for record in evidence.records.values():
        record.environment = {**record.environment, "device": "NVIDIA H200"}
    assert uncompared(evidence) == ""


def only_first_layer(record: RankRecord) -> None:
    """As if the other layers had no qkv."""
    keep = f"{LAYER}.weight"
    record.frozen = [seen for seen in record.frozen if "linear_qkv" not in seen.name or seen.name == keep]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda record: record.frozen.clear(), "frozen: recorded for layers [], stage 0 has"),
        (lambda record: setattr(record.frozen[0], "after", ""), "has no digest"),
        (lambda record: record.parameters.clear(), f"parameters: {LAYER} has no adapter that trains"),
        (lambda record: record.merged.clear(), "merged: 0 weights, not 1"),
        (lambda record: setattr(record.merged[0], "after", None), f"merged: {LAYER}.weight: after is None"),
        (lambda record: setattr(record.merged[0], "output_off", None), "output_off None"),
    ],
)
def test_what_adapters_need_is_named(change: OfRecord, said: str) -> None:
    evidence = adapted_cell()
    only_first_layer(evidence.records[0])
    assert not any(said in problem for problem in missing(evidence))
    change(evidence.records[0])
    assert any(said in problem for problem in missing(evidence))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda record: record.routers.pop(), "routers: 1 missing, such as"),
        (lambda record: setattr(record, "aux_scale", None), "aux_scale is missing"),
        (lambda record: setattr(record.routers[0], "aux_loss", None), "aux_loss is missing"),
        (lambda record: record.routers[0].real.clear(), "not 1 rows of 4 experts"),
        (lambda record: setattr(record.routers[0].real[0], "squares", None), "squares are missing"),
        (lambda record: record.choices.pop(), "choices: 1 missing, such as"),
        (
            lambda record: record.expert_biases.append(ExpertBiasSeen(step=0, layer=1, values=[0.0])),
            "expert_biases: not of 4 experts",
        ),
    ],
)
def test_what_experts_need_is_named(change: OfRecord, said: str) -> None:
    evidence = with_routers(z_loss_coeff=0.1)
    assert not any(said in problem for problem in missing(evidence))
    change(evidence.records[0])
    assert any(said in problem for problem in missing(evidence))


def by_oracle(**layout: int) -> CellEvidence:
    evidence = evidence_for(config_of("reference", **layout))
    evidence.oracle = computed(evidence)
    return evidence


def oracle_record(evidence: CellEvidence) -> RankRecord:
    assert evidence.oracle is not None and evidence.oracle.record is not None
    return evidence.oracle.record


def test_the_training_that_bounds_follow_from_has_the_documents_of_every_step() -> None:
    evidence = by_oracle(dp=2)
    training = oracle_record(evidence).legs[0].training
    assert training is not None and judge(evidence).outcome is Outcome.PASS
    for step in training.steps:
        step.documents = {}
    problem = "the training that bounds follow from lacks steps, documents, layers or parameters"
    assert incomplete(evidence) == f"incomplete evidence: oracle.json: {problem}"


def truncated() -> CellEvidence:
    documents = DocumentsConfig(mode="file", lengths=(20, 7, 9))
    evidence = evidence_for(replace(config_of("reference", tp=2, canaries=("truncation",)), documents=documents))
    evidence.oracle = computed(evidence)
    return evidence


@pytest.mark.parametrize(
    ("name", "lost"),
    [("params", "packed params as the path has them"), ("tokens", "tokens"), ("loss_mask", "loss_mask")],
)
def test_batches_of_a_leg_that_does_not_run_the_model_are_whole(name: str, lost: str) -> None:
    evidence = truncated()
    assert judge(evidence).outcome is Outcome.PASS
    for record in evidence.records.values():
        for batch in record.legs[0].batches:
            setattr(batch, name, None)
    assert f"legs: truncation: batches: chunk 0, micro-batch 0: no {lost}" in incomplete(evidence)


def test_a_path_that_returns_log_probabilities_does_so_on_the_last_stage() -> None:
    evidence = evidence_for(config_of("skyrl", pp=2))
    assert incomplete(evidence) == ""
    for record in evidence.records.values():
        for batch in record.batches:
            batch.log_probs = None
    assert "record of rank 1: batches: step 0, chunk 0, micro-batch 0: no log_probs" in incomplete(evidence)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_a_load_takes_time(seconds: float) -> None:
    evidence = timed(BOTH)
    evidence.records[0].timings[0].seconds = seconds
    assert f"timings: packed took {seconds!r} s" in incomplete(evidence)


@pytest.mark.parametrize("name", ["backend", "attention"])
def test_ranks_use_the_same_kernel_and_backend(name: str) -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    other = "reference attention of another build" if name == "attention" else "nccl"
    evidence.records[1].environment[name] = other
    assert any(problem.startswith(f"environment: {name} is {other!r} on rank 1") for problem in missing(evidence)) or (
        "environment: attention" in incomplete(evidence)
    )


def test_ranks_of_a_stage_hold_the_same_parameters_of_a_checkpoint() -> None:
    evidence = evidence_for(replace(config_of("sft", tp=2), trainer="megatron", resume="same"))
    part = evidence.resumed
    assert part is not None
    for state in part.records[1].states:
        state.parameters = state.parameters[:1]
    assert "states: parameters after step 1 are not those of rank 0" in incomplete(part)


def test_a_parameter_is_listed_once() -> None:
    evidence = evidence_for(config_of("sft"))
    evidence.records[0].parameters.append(evidence.records[0].parameters[0])
    assert "parameters: one is listed twice" in incomplete(evidence)


def test_evaluations_of_the_oracle_have_losses() -> None:
    train = replace(TRAIN, eval_interval=1)
    evidence = evidence_for(replace(config_of("sft"), trainer="megatron", train=train))
    evidence.oracle = computed(evidence)
    seen = oracle_record(evidence).evaluations[0]
    problem = "oracle.json: it lacks losses in the evaluation after step"
    assert not any(problem in one for one in missing(evidence))
    seen.loss_sum = None
    assert any(problem in one for one in missing(evidence))
    seen.loss_sum, seen.documents = 1.0, {}
    assert any(problem in one for one in missing(evidence))


def test_a_frozen_weight_that_the_control_has_is_held_by_some_rank() -> None:
    evidence = adapted_cell()
    assert evidence.control is not None
    only_first_layer(evidence.control.records[0])
    for record in evidence.records.values():
        only_first_layer(record)
        record.frozen.pop()
    name = evidence.control.records[0].frozen[-1].name
    problem = f"frozen: no rank holds {name}; "
    assert any(found.startswith(problem) for found in missing(evidence))
    record = evidence.records[0]  # one that trains is not missing: the check `frozen_weights` reports it
    record.parameters.append(ParameterSeen(name=name, sharded=False, gradient=record.parameters[0].gradient))
    assert not any(found.startswith(problem) for found in missing(evidence))
