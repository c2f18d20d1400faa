from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.outcomes import Finding, Lane
from harness.core.packing.options import PackingOptions
from harness.core.run.records import ImportProof, SeenParams
from harness.core.run.tensor_records import Fingerprint, ParameterSeen
from harness.features.attention.config import MlaConfig
from harness.features.prediction.config import MtpConfig
from harness.judge.checks.table import CHECKS
from harness.judge.diagnosis.known_issues import KNOWN_ISSUES, parse, with_known
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.reporting.render_markdown import render_markdown
from tests.judge.parts import with_routers
from tests.judge.reports import build_report
from tests.judge.simulator import alter_params, at, config_of, drop_params, evidence_for, judge, run_of

NO_GRADIENT = Fingerprint(norm_sq=0.0, projections=[])
ISSUE = "Megatron-LM issue 4092, fixed in megatron-core 0.18.0 (https://github.com/NVIDIA/Megatron-LM/issues/4092)"


def ran(evidence: CellEvidence, release: str, module: str = "megatron.core") -> None:
    for record in evidence.records.values():
        proof = ImportProof(module=module, version=release, path=f"/stack/{module.replace('.', '/')}/__init__.py")
        record.imports = [*(other for other in record.imports if other.module != module), proof]


def garbled(evidence: CellEvidence, stage: int, tp: int = 1) -> None:
    def garbage(params: SeenParams) -> None:
        params.max_seqlen_q = params.max_seqlen_kv = 93824992231648

    for record in at(evidence, pp=stage, tp=tp):
        alter_params(record, garbage)


def known(evidence: CellEvidence) -> list[str]:
    return [finding.known for finding in judge(evidence).findings if finding.known]


@pytest.mark.parametrize("release", ["0.17.0", "0.17.1", "0.18.0rc1", "0.17.0rc0+abc"])
def test_the_metadata_of_tp_ranks_lost_in_the_middle_and_at_the_end_is_named(release: str) -> None:
    evidence = evidence_for(config_of("sft", tp=2, pp=4))
    ran(evidence, release)
    garbled(evidence, 1)
    for record in at(evidence, pp=3, tp=1):
        drop_params(record)
    assert known(evidence) == [ISSUE, ISSUE]


@pytest.mark.parametrize("release", ["0.16.1", "0.18.0", "0.19.2", "unknown"])
def test_other_releases_do_not_have_it(release: str) -> None:
    evidence = evidence_for(config_of("sft", tp=2, pp=4))
    ran(evidence, release)
    garbled(evidence, 1)
    assert known(evidence) == []


@pytest.mark.parametrize(("stage", "tp", "path"), [(0, 1, "sft"), (3, 1, "sft"), (1, 0, "sft"), (1, 1, "reference")])
def test_other_places_and_data_paths_are_not_named(stage: int, tp: int, path: str) -> None:
    evidence = evidence_for(config_of(path, tp=2, pp=4))
    ran(evidence, "0.17.1")
    garbled(evidence, stage, tp)
    assert len(judge(evidence).findings) == 1
    assert known(evidence) == []


def without_params(evidence: CellEvidence, *stages: int) -> None:
    for stage in stages:
        for record in at(evidence, pp=stage):
            drop_params(record)


def numbers(found: list[str]) -> list[str]:
    """Upstream numbers of the issues."""
    return [re.findall(r"(\d+)\)$", text)[0] for text in found]


@pytest.mark.parametrize(
    ("release", "named"), [("0.16.1", ["3564"]), ("0.16.0rc0", ["3564"]), ("0.17.1", []), ("0.15.3", [])]
)
def test_middle_stages_that_get_nothing_are_named(release: str, named: list[str]) -> None:
    evidence = evidence_for(config_of("sft", tp=2, pp=4))
    ran(evidence, release)
    without_params(evidence, 1, 2)
    assert numbers(known(evidence)) == named


def test_a_matrix_of_offsets_is_named() -> None:
    evidence = evidence_for(config_of("sft"))
    ran(evidence, "0.16.1")

    def one_row(params: SeenParams) -> None:
        for form in params.forms.values():
            form.shape = [1, *form.shape]

    for record in evidence.records.values():
        alter_params(record, one_row)
    assert set(numbers(known(evidence))) == {"3564"}


@pytest.mark.parametrize(
    ("module", "release", "stages", "named"),
    [
        ("megatron.bridge", "0.4.2", (1, 2), ["2952"]),
        ("megatron.bridge", "0.5.0", (1, 2), []),
        ("megatron.bridge", "0.4.2", (1, 3), []),
        ("megatron.core", "0.4.2", (1, 2), []),
    ],
)
def test_an_issue_of_megatron_bridge_depends_on_the_release_of_megatron_bridge(
    module: str, release: str, stages: tuple[int, ...], named: list[str]
) -> None:
    evidence = evidence_for(config_of("bridge_offline", pp=4))
    ran(evidence, release, module)
    without_params(evidence, *stages)
    assert numbers(known(evidence)) == named
    if named:
        assert known(evidence)[0].startswith("Megatron-Bridge issue 2952, fixed in megatron-bridge 0.5.0 (https://")


def aux_weight(evidence: CellEvidence, release: str, factor: float, *, per_token: bool = True) -> list[str]:
    """Numbers of the issues named when gradients of the auxiliary loss are wrong by a factor, in either mode."""
    for record in evidence.records.values():
        record.aux_scale = factor
    [row] = [check for check in CHECKS if check.name == "aux_loss"]
    (found,) = row.findings(evidence)
    options = replace(evidence.cell.config.options, calculate_per_token_loss=per_token)
    cell = replace(evidence.cell, config=replace(evidence.cell.config, options=options))
    ran(evidence, release)
    return numbers([item.known for item in with_known(replace(evidence, cell=cell), [found]) if item.known])


@pytest.mark.parametrize(
    ("layout", "factor", "release", "per_token", "named"),
    [
        ({"cp": 2}, 0.5, "0.15.3", False, ["2237"]),
        ({"cp": 2}, 0.5, "0.16.0", False, []),
        ({"cp": 2}, 0.5, "0.18.2", True, ["5047"]),
        ({"tp": 2}, 0.5, "0.18.2", True, ["5047"]),
        ({"cp": 2}, 0.5, "0.19.0", True, []),
        ({"cp": 2}, 2.0, "0.18.2", True, []),
        ({"tp": 2}, 0.5, "0.15.3", False, []),
        ({"dp": 2}, 0.5, "0.18.2", True, []),
    ],
)
def test_the_weight_of_an_auxiliary_loss_is_named_by_mode_and_factor(
    layout: dict[str, int], factor: float, release: str, per_token: bool, named: list[str]
) -> None:
    assert aux_weight(with_routers(**layout), release, factor, per_token=per_token) == named


@pytest.mark.parametrize(("release", "named"), [("0.18.2", ["5047"]), ("0.19.0", [])])
def test_the_weight_of_a_z_loss_is_named(release: str, named: list[str]) -> None:
    evidence = with_routers(aux_loss="none", z_loss_coeff=0.1, tp=2)
    for record in evidence.records.values():
        record.aux_scale = 0.5
    [row] = [check for check in CHECKS if check.name == "z_loss"]
    (found,) = row.findings(evidence)
    ran(evidence, release)
    assert numbers([item.known for item in with_known(evidence, [found]) if item.known]) == named


@pytest.mark.parametrize(
    ("path", "rows", "factor", "release", "named"),
    [
        ("unpacked", 2, 0.5, "0.18.2", ["5798"]),
        ("unpacked", 4, 0.25, "0.16.1", ["5798"]),
        ("unpacked", 2, 0.4, "0.18.2", []),
        ("unpacked", 2, 0.5, "0.15.3", []),
        ("unpacked", 2, 0.5, "0.19.0", []),
        ("reference", 2, 0.5, "0.18.2", []),
    ],
)
def test_the_weight_of_one_row_is_named(path: str, rows: int, factor: float, release: str, named: list[str]) -> None:
    evidence = with_routers(path, aux_loss="seq_aux_loss", micro_batch_size=rows)
    assert aux_weight(evidence, release, factor) == named


def raised(message: str) -> Finding:
    return Finding(lane=Lane.METADATA, check="completeness", message=f"rank 0 raised in the metadata leg: {message}")


@pytest.mark.parametrize(
    ("layout", "release", "named"),
    [
        ({"micro_batch_size": 2}, "0.18.2", ["Megatron-LM pull request 5454"]),
        ({"micro_batch_size": 2, "tp": 2}, "0.17.1", ["Megatron-LM pull requests 5454 and 5635"]),
        ({"tp": 2}, "0.17.1", []),
        ({"micro_batch_size": 2}, "0.19.0", []),
    ],
)
def test_rows_that_are_not_merged_are_named(layout: dict[str, int], release: str, named: list[str]) -> None:
    evidence = evidence_for(config_of("sft", **layout))
    ran(evidence, release)
    said = "RuntimeError: stack expects each tensor to be equal size, but got [3] at entry 0 and [4] at entry 1"
    (finding,) = with_known(evidence, [raised(said)])
    assert [finding.known.partition(",")[0]] * bool(finding.known) == named
    (other,) = with_known(evidence, [raised("KeyError: 'tokens'")])
    assert not other.known


@pytest.mark.parametrize(("release", "named"), [("0.1.0", ["1407"]), ("0.2.0", [])])
def test_an_empty_chunk_of_skyrl_is_named(release: str, named: list[str]) -> None:
    evidence = evidence_for(config_of("skyrl", cp=2))
    ran(evidence, release, "skyrl")
    said = "The expanded size of the tensor (1) must match the existing size (0) at non-singleton dimension 0."
    assert numbers([item.known for item in with_known(evidence, [raised(said)]) if item.known]) == named


@pytest.mark.parametrize(
    ("release", "name", "named"),
    [
        ("0.19.2", "decoder.layers.0.self_attention.core_attention.softmax_offset", ["7452"]),
        ("0.14.0", "decoder.layers.0.self_attention.core_attention.softmax_offset", []),
        ("0.19.2", "decoder.layers.0.self_attention.linear_qkv.weight", []),
    ],
)
def test_sinks_that_the_gradient_norm_leaves_out_are_named(release: str, name: str, named: list[str]) -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    ran(evidence, release)
    shards = [
        ParameterSeen(name=name, sharded=True, gradient=NO_GRADIENT, in_norm=counted) for counted in (True, False)
    ]
    for record, shard in zip(evidence.records.values(), shards):
        record.parameters = [shard]
    found = next(check.findings(evidence) for check in CHECKS if check.name == "norm_members")
    assert numbers([item.known for item in with_known(evidence, found) if item.known]) == named


def test_without_a_proof_of_the_release_nothing_is_named() -> None:
    evidence = evidence_for(config_of("sft", tp=2, pp=4))
    garbled(evidence, 1)
    assert known(evidence) == []


def test_the_report_names_the_issue() -> None:
    plan, found = run_of([config_of("sft", tp=2, pp=4)])
    *_, evidence = found.values()
    ran(evidence, "0.17.1")
    garbled(evidence, 1)
    report = build_report(plan, found.values(), today="2026-01-01", timing={})
    assert "  - known: Megatron-LM issue 4092, fixed in megatron-core 0.18.0" in render_markdown(report)


def test_releases_are_in_order() -> None:
    order = ["0.17.1", "0.18.0.dev1", "0.18.0", "0.18.2", "0.19.0rc2", "0.19.0", "1.0"]
    releases = [parse(name) for name in order]
    assert None not in releases
    assert [item and item[:3] for item in releases] == sorted(item[:3] for item in releases if item)
    assert releases == sorted(item for item in releases if item)
    assert parse("core_r0.18") is None


@pytest.mark.parametrize(
    ("packing", "pad", "release", "named"),
    [
        ("reference", 8, "0.19.2", "d8144e7712"),
        ("reference", None, "0.19.2", ""),
        ("sft", 8, "0.19.2", ""),  # its offsets are padded
        ("reference", 8, "0.15.3", ""),
    ],
)
def test_tokens_that_roll_between_real_offsets_of_padded_documents_are_named(
    packing: str, pad: int | None, release: str, named: str
) -> None:
    evidence = evidence_for(replace(config_of(packing), options=PackingOptions(pad_seq_to_mult=pad)))
    ran(evidence, release)
    counts = Finding(lane=Lane.NUMERICS, check="mtp_loss", message="22 tokens of document 2")
    raised = "IndexError: list index out of range, at megatron/core/transformer/multi_token_prediction.py:313 in roll"
    crash = Finding(lane=Lane.NUMERICS, check="ended", message=f"rank 3 raised in the canary leg order: {raised}")
    for found in with_known(evidence, [counts, crash]):
        assert named in found.known
        assert bool(named) == bool(found.known)


def test_every_link_is_one_of_the_matrices_or_the_catalogue(root: Path) -> None:
    text = "".join(path.read_text() for path in (root / "matrices").glob("*.yaml"))
    for issue in KNOWN_ISSUES:
        assert issue.link in text
        assert re.search(rf"\b{issue.link.rpartition('/')[2]}\b", issue.name)


def test_a_cell_with_an_injected_fault_names_no_issue() -> None:
    evidence = evidence_for(config_of("sft", tp=2, pp=4))
    ran(evidence, "0.17.1")
    garbled(evidence, 1)
    assert known(evidence)
    config = replace(evidence.cell.config, fault="middle-stage-tp-ranks-with-garbage")
    findings = judge(evidence).findings
    faulty = replace(evidence, cell=replace(evidence.cell, config=config))
    unnamed = [replace(finding, known="") for finding in findings]
    assert [finding.known for finding in with_known(faulty, unnamed)] == [""] * len(findings)
    assert [finding.known for finding in with_known(evidence, unnamed)] != [""] * len(findings)


# Issue -> the layout and the parts of the cell that fail together, and the check.
FEATURES = {
    "issue 7452, finding 1": ({"tp": 2}, {"train": {"label_smoothing": 0.1}}, "document_loss"),
    "issue 7452, finding 3": ({"cp": 2}, {"model": {"mtp": MtpConfig()}}, "parameter_gradients"),
    "multi_latent_attention.py": ({"tp": 2}, {"model": {"mla": MlaConfig()}}, "parameter_gradients"),
    "hybrid_model.py": ({}, {"model": {"pattern": "*-*-", "rotary_interleaved": True}}, "activations"),
    "quick-geglu": ({}, {"model": {"activation": "quick_geglu"}}, "reported"),
    "checkpointing.py": ({"dp": 2}, {"layout": {"ep": 2}}, "resumed"),
}


@pytest.mark.parametrize("name", FEATURES)
def test_two_features_that_fail_together_upstream_name_their_issue(name: str) -> None:
    layout, changed, check = FEATURES[name]
    plain = config_of("sft", **layout)
    both = replace(plain, **{part: replace(getattr(plain, part), **values) for part, values in changed.items()})
    other = replace(both, layout=config_of(pp=2).layout)
    for config, expected in ((both, True), (plain, False), (other, not layout)):
        evidence = evidence_for(config)
        ran(evidence, "0.19.2")
        message = "the number of floating-point operations differs, and the state of the random generators"
        (found,) = with_known(evidence, [Finding(lane=Lane.NUMERICS, check=check, message=message)])
        assert (name in found.known) is expected
