"""A cell of which some numbers are compared with nothing."""

from __future__ import annotations

import io
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from harness.core.cell.model import ModelConfig, MoeConfig, MtpConfig
from harness.core.outcomes import Lane, LaneVerdict, Outcome
from harness.core.tolerances import Bound
from harness.infra.console import print_report
from harness.infra.html.report import render_html
from harness.judge.checks.numerics import grad_norm, parameter_gradients
from harness.judge.evidence.cell_evidence import CellEvidence, apart_from_rows
from harness.judge.report.build import judge_cells, report_of
from harness.judge.report.model import Report
from harness.judge.report.render_json import render_json
from harness.judge.report.render_junit import render_junit
from harness.judge.report.render_markdown import render_markdown
from harness.judge.required.audit import not_compared
from tests.judge.checks.whole import off
from tests.judge.parts import with_predictions, with_routers
from tests.judge.simulator import config_of, judge, run_of

EVERYTHING = (
    "compared with nothing, since the control has other rows: gradients, first update, steps after the first; the "
    "gradient norm is compared to 33%"
)
LAYERS = 2


def balanced(**values: object) -> ModelConfig:
    return ModelConfig(layers=LAYERS, moe=MoeConfig(**{"aux_loss": "aux_loss", **values}))  # type: ignore[arg-type]


def report() -> Report:
    evidence = with_predictions("sft", tp=2)
    plan, _ = run_of([evidence.cell.config])
    assert evidence.control is not None
    found = judge_cells(plan, [evidence.control, evidence], today="2026-01-01", crashed=lambda cell, error: str(error))
    return report_of(plan, found, timing={})


def test_the_lane_is_partial_and_the_outcome_stays() -> None:
    verdict = judge(with_predictions("sft", tp=2))
    assert (verdict.outcome, verdict.lanes[Lane.NUMERICS]) == (Outcome.PASS, LaneVerdict.PARTIAL)
    assert verdict.lanes[Lane.METADATA] is LaneVerdict.PASS


def test_updates_that_a_large_bound_of_gradients_would_accept_are_named() -> None:
    _, evidence = run_of([config_of("sft", tp=2)])
    cell = list(evidence.values())[1]
    assert not_compared(cell) == ""
    cell.tolerances = replace(cell.tolerances, parameter_gradient=Bound(value=0.3))
    assert not_compared(cell) == (
        "compared with nothing, since gradients may differ by 0.3 and any update would pass: second moments, the first "
        "update, the change over all steps"
    )
    assert judge(cell).lanes[Lane.NUMERICS] is LaneVerdict.PARTIAL


def test_every_report_says_what_was_compared_with_nothing() -> None:
    told = report()
    stream = io.StringIO()
    print_report(told, [], stream)
    junit = render_junit(told)
    cell = told.cells[-1]
    assert (cell.lanes[Lane.NUMERICS], cell.evidence.not_compared) == ("partial", EVERYTHING)
    assert f"part  1 cell: {EVERYTHING}" in stream.getvalue()
    assert "PASS: 2 PASS (1 in part); exit code 0" in stream.getvalue()
    said = ElementTree.fromstring(junit).findall(f".//testcase[@name='{cell.id}']/system-out")
    assert [one.text for one in said] == [f"PASS: {EVERYTHING}"]
    assert "## Judged in part" in render_markdown(told)
    assert "PASS, in part" in render_markdown(told)
    assert '"numerics": "partial"' in render_json(told)
    page = render_html(told)
    assert "2 passed, 1 of them in part." in page
    assert "<small>in part</small>" in page


def test_a_cell_that_is_compared_whole_is_not_partial() -> None:
    _, evidence = run_of([config_of("sft", tp=2)])
    assert {judge(item).lanes[Lane.NUMERICS] for item in evidence.values()} == {LaneVerdict.PASS}


@pytest.mark.parametrize(
    ("parameter", "apart"),
    [
        ("output_layer.weight", True),
        ("decoder.final_layernorm.weight", True),
        ("decoder.layers.1.mlp.experts.3.linear_fc1.weight", True),
        ("decoder.layers.1.mlp.shared_experts.linear_fc1.weight", True),
        ("decoder.layers.1.mlp.router.weight", False),
        ("decoder.layers.1.pre_mlp_layernorm.weight", False),
        ("decoder.layers.1.self_attention.linear_qkv.weight", False),
        ("decoder.layers.0.mlp.experts.3.linear_fc1.weight", False),
        ("embedding.word_embeddings.weight", False),
    ],
)
def test_router_losses_reach_the_parameters_up_to_the_last_router(parameter: str, apart: bool) -> None:
    assert apart_from_rows(replace(config_of("sft"), model=balanced()), parameter) is apart


def test_what_else_depends_on_rows() -> None:
    config, name = config_of("sft"), "output_layer.weight"
    bias = MoeConfig(score_function="sigmoid", expert_bias=True)
    router = "decoder.layers.0.mlp.router.weight"
    assert apart_from_rows(replace(config, model=ModelConfig(layers=LAYERS, moe=bias)), router)
    assert apart_from_rows(
        replace(config, model=ModelConfig(layers=LAYERS, moe=MoeConfig(capacity_factor=2.0))), router
    )
    for model in (
        ModelConfig(layers=LAYERS, moe=MoeConfig(capacity_factor=1.0)),
        ModelConfig(layers=LAYERS, moe=MoeConfig(), mtp=MtpConfig()),
        replace(balanced(), tied=True),
    ):
        assert not apart_from_rows(replace(config, model=model), name)


def test_nothing_is_compared_where_cell_or_control_divides_by_each_micro_batch() -> None:
    evidence = with_routers("sft")
    assert evidence.control is not None and evidence.comparable("output_layer.weight")
    own, its = evidence.cell, evidence.control.cell
    per_batch = replace(own.config.options, calculate_per_token_loss=False)
    cell = replace(own, config=replace(own.config, options=per_batch))
    control = replace(its, config=replace(its.config, options=per_batch))
    for changed in (
        replace(evidence, cell=cell),
        replace(evidence, control=replace(evidence.control, cell=control)),
    ):
        assert not changed.comparable("output_layer.weight")
        changed.records[0].steps[0].grad_norm = 144.0
        assert grad_norm.check(changed) == []


def broken(parameter: str) -> CellEvidence:
    """An auxiliary loss on upstream's data path, with one gradient times 144."""
    evidence = with_routers("sft")
    assert not evidence.same_rows
    for seen in evidence.records[0].parameters:
        if seen.name == parameter:
            off(seen.gradient, 144.0)
    return evidence


def test_a_gradient_on_which_rows_have_no_effect_is_compared() -> None:
    (finding,) = parameter_gradients.check(broken("output_layer.weight"))
    assert finding.message.startswith("gradient of output_layer.weight: off by 143")
    assert finding.message.endswith("1 of 2 parameters differ; location: the output layer")
    assert parameter_gradients.check(broken("embedding.word_embeddings.weight")) == []
    assert "gradients of 7 of 9 parameters" in not_compared(with_routers("sft"))


@pytest.mark.parametrize(("factor", "found"), [(144.0, 1), (2.0, 1), (0.2, 0), (1.2, 0)])
def test_a_gradient_norm_is_compared_coarsely(factor: float, found: int) -> None:
    evidence = with_routers("sft", dp=2)
    for record in evidence.records.values():
        record.steps[0].grad_norm = factor * (record.steps[0].grad_norm or 0.0)
    assert len(grad_norm.check(evidence)) == found


def test_with_more_slots_than_the_control_no_norm_is_compared() -> None:
    evidence = with_routers("sft")
    evidence.records[0].steps[0].grad_norm = 144.0
    assert grad_norm.check(evidence)
    assert evidence.control is not None
    less = evidence.control.cell.config.train
    fewer = replace(
        evidence.control.cell, config=replace(evidence.control.cell.config, train=replace(less, seq_length=8))
    )
    assert grad_norm.check(replace(evidence, control=replace(evidence.control, cell=fewer))) == []


def test_a_z_loss_may_outweigh_the_loss_so_no_norm_is_compared() -> None:
    evidence = with_routers("sft", z_loss_coeff=0.1)
    evidence.records[0].steps[0].grad_norm = 144.0
    assert grad_norm.check(evidence) == []
    assert "gradient norm, first update" in not_compared(evidence)


def test_metadata_do_not_pass_where_a_rank_compared_no_batch() -> None:
    evidence = with_predictions("sft", tp=2)
    evidence.records[1].batches = []
    assert judge(evidence).lanes[Lane.METADATA] is not LaneVerdict.PASS
