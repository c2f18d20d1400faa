from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.judge.evidence import CellEvidence
from harness.judge.known_issues import KNOWN_ISSUES, parse
from harness.judge.render_markdown import render_markdown
from harness.judge.report_build import build_report
from harness.words.records import ImportProof, SeenParams
from tests.judge.simulator import alter_params, at, config_of, drop_params, evidence_for, judge, run_of

ISSUE = "Megatron-LM issue 4092, fixed in megatron-core 0.18.0 (https://github.com/NVIDIA/Megatron-LM/issues/4092)"


def ran(evidence: CellEvidence, release: str) -> None:
    for record in evidence.records.values():
        record.imports = [ImportProof(module="megatron.core", version=release, path="megatron/core/__init__.py")]


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
def test_other_places_and_data_paths_are_another_matter(stage: int, tp: int, path: str) -> None:
    evidence = evidence_for(config_of(path, tp=2, pp=4))
    ran(evidence, "0.17.1")
    garbled(evidence, stage, tp)
    assert len(judge(evidence).findings) == 1
    assert known(evidence) == []


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


def test_every_link_is_one_of_the_matrices_or_the_catalogue(root: Path) -> None:
    text = "".join(path.read_text() for path in (root / "matrices").glob("*.yaml"))
    for issue in KNOWN_ISSUES:
        assert issue.link in text
        assert re.search(rf"\b{issue.link.rpartition('/')[2]}\b", issue.name)
