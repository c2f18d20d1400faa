"""Upstream issues that findings are recognised as: by check, field, stage and wording, and by the release of the stack.

The facts are those of the fault catalogue and of the matrices that show them (releases.yaml, real_faults.yaml).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.judge.evidence import CellEvidence
from harness.words.outcomes import Finding, Severity
from harness.words.records import RankRecord

_MEGATRON = "https://github.com/NVIDIA/Megatron-LM"
_RELEASE = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?(.*)")
Release = tuple[int, int, int, int]  # major, minor, micro, 0 before the release itself, else 1


@dataclass(frozen=True, kw_only=True)
class KnownIssue:
    name: str
    link: str
    check: str
    since: str  # first release of megatron-core that has it
    fixed: str = ""  # first release without it; empty: none is known
    data_path: str = ""  # empty: any
    stage: str = ""  # middle | last: every stage that the finding is about; empty: any
    ranks: str = ""  # "tp > 0": no rank that reads the data is concerned; empty: any
    fields: tuple[str, ...] = ()  # of packed params; empty: any
    says: str = ""  # in the finding's message

    @property
    def text(self) -> str:
        """E.g. "Megatron-LM issue 4092, fixed in megatron-core 0.18.0 (https://...)"."""
        release = f"fixed in megatron-core {self.fixed}" if self.fixed else "not fixed in any release known here"
        return f"{self.name}, {release} ({self.link})"


_TP_RANKS = KnownIssue(
    name="Megatron-LM issue 4092",
    link=f"{_MEGATRON}/issues/4092",
    check="params_agree_plan",
    since="0.17.0",
    fixed="0.18.0",
    data_path="sft",
    stage="middle",
    ranks="tp > 0",
    fields=("cu_seqlens_q", "cu_seqlens_kv", "max_seqlen_q", "max_seqlen_kv"),
)
KNOWN_ISSUES: tuple[KnownIssue, ...] = (
    _TP_RANKS,
    replace(_TP_RANKS, check="params_present", stage="last", fields=()),
    KnownIssue(
        name="Megatron-LM pull request 5243",
        link=f"{_MEGATRON}/pull/5243",
        check="segment_slope",
        since="0.19.0",
        says="the THD rotary function alone takes",
    ),
    KnownIssue(
        name="Megatron-LM pull request 5696",
        link=f"{_MEGATRON}/pull/5696",
        check="aux_loss",
        since="0.18.0",
        fixed="0.19.2",
        says="rows taken for one",
    ),
)


def with_known(evidence: CellEvidence, findings: Sequence[Finding]) -> list[Finding]:
    """The findings, those that an upstream issue explains naming it."""
    if not findings:
        return []
    release = release_of(evidence.records)
    return [_named(evidence, finding, release) for finding in findings]


def release_of(records: Mapping[int, RankRecord]) -> Release | None:
    """The release of megatron-core that every rank says it ran; None when they say nothing or differ."""
    said = {proof.version for record in records.values() for proof in record.imports if proof.module == "megatron.core"}
    return parse(next(iter(said))) if len(said) == 1 else None


def parse(version: str) -> Release | None:
    """ "0.18.0rc1+abc" comes before "0.18.0"; None where it is no release's name."""
    found = _RELEASE.fullmatch(version.partition("+")[0])
    if found is None:
        return None
    before = re.match(r"\.?(dev|a|b|rc)\d*", found[4]) is not None
    return int(found[1]), int(found[2]), int(found[3] or 0), int(not before)


def _named(evidence: CellEvidence, finding: Finding, release: Release | None) -> Finding:
    if release is None or finding.severity is not Severity.ERROR:
        return finding
    issue = next((issue for issue in KNOWN_ISSUES if _is(issue, evidence, finding, release)), None)
    return replace(finding, known=issue.text) if issue else finding


def _is(issue: KnownIssue, evidence: CellEvidence, finding: Finding, release: Release) -> bool:
    config, where = evidence.cell.config, finding.where
    since, fixed = parse(issue.since), parse(issue.fixed) if issue.fixed else None
    assert since is not None
    places = [evidence.layout.coordinates(rank) for rank in where.get("ranks", [])]
    stages = {"middle": range(1, evidence.last_stage), "last": (evidence.last_stage,)}.get(issue.stage)
    return (
        finding.check == issue.check
        and since[:3] <= release[:3]
        and (fixed is None or release < fixed)
        and issue.data_path in ("", config.data_path)
        and (not issue.fields or where.get("field") in issue.fields)
        and (stages is None or (bool(places) and all(place.pp in stages for place in places)))
        and (not issue.ranks or (bool(places) and all(place.tp > 0 for place in places)))
        and issue.says in finding.message
    )
