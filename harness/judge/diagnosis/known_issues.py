"""Known upstream issues, matched to findings by check, field, stage, message and the release of the stack.

The facts are those of the fault catalogue and of the matrices that show them (releases.yaml, real_faults.yaml,
known_bugs.yaml, issue_7452.yaml). An issue is listed only if its finding differs from those of other faults of the same
release.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.core.cell.config import CellConfig
from harness.core.outcomes import Finding, Severity
from harness.core.run.records import RankRecord
from harness.core.upstream import distributions
from harness.judge.diagnosis.ratios import stated_ratio
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.upstreams.issue import KnownIssue
from harness.upstreams.megatron_bridge.issues import BRIDGE_ISSUES
from harness.upstreams.megatron_lm.issues import MEGATRON_ISSUES
from harness.upstreams.skyrl.issues import SKYRL_ISSUES

_RELEASE = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?(.*)")
Release = tuple[int, int, int, int]  # major, minor, micro, 0 before the release itself, else 1
KNOWN_ISSUES: tuple[KnownIssue, ...] = MEGATRON_ISSUES + BRIDGE_ISSUES + SKYRL_ISSUES


def with_known(evidence: CellEvidence, findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings; those that match a known upstream issue name it, unless a fault was injected."""
    if not findings or evidence.cell.config.fault:
        return list(findings)
    releases = {package: release_of(evidence.records, package) for package in {issue.package for issue in KNOWN_ISSUES}}
    return [_named(evidence, finding, releases) for finding in findings]


def release_of(records: Mapping[int, RankRecord], package: str = "megatron-core") -> Release | None:
    """Return the release of a package that all ranks recorded; None if none did or they differ."""
    module = distributions()[package]
    versions = {proof.version for record in records.values() for proof in record.imports if proof.module == module}
    return parse(next(iter(versions))) if len(versions) == 1 else None


def parse(version: str) -> Release | None:
    """Return the release of a version: "0.18.0rc1+abc" sorts before "0.18.0". None for any other text."""
    match = _RELEASE.fullmatch(version.partition("+")[0])
    if match is None:
        return None
    before = re.match(r"\.?(dev|a|b|rc)\d*", match[4]) is not None
    return int(match[1]), int(match[2]), int(match[3] or 0), int(not before)


def _named(evidence: CellEvidence, finding: Finding, releases: Mapping[str, Release | None]) -> Finding:
    if finding.severity is not Severity.ERROR:
        return finding
    issue = next((issue for issue in KNOWN_ISSUES if _matches(issue, evidence, finding, releases[issue.package])), None)
    return replace(finding, known=issue.text) if issue else finding


def _matches(issue: KnownIssue, evidence: CellEvidence, finding: Finding, release: Release | None) -> bool:
    since, fixed = parse(issue.since), parse(issue.fixed) if issue.fixed else None
    assert since is not None
    return (
        release is not None
        and finding.check == issue.check
        and since[:3] <= release[:3]
        and (fixed is None or release < fixed)
        and _in_cell(issue, evidence)
        and (not issue.fields or finding.where.get("field") in issue.fields)
        and issue.part in ("", finding.where.get("part"))
        and _at_places(issue, evidence, finding)
        and issue.message_contains in finding.message
        and _has_ratio(issue, evidence, finding)
    )


def _in_cell(issue: KnownIssue, evidence: CellEvidence) -> bool:
    config = evidence.cell.config
    return (
        issue.data_path in ("", config.data_path)
        and issue.tp in ("", "above 1" if config.layout.tp > 1 else "1")
        and (not issue.cp or config.layout.cp > 1)
        and _has_feature(issue, config)
        and (not issue.rows or config.micro_batch_size > 1)
        and (
            not issue.padded
            or (config.style.packed and config.style.real_lengths and config.style.document_multiple > 1)
        )
        and issue.per_token in (None, config.options.calculate_per_token_loss)
        and issue.layer in config.model.pattern
        and issue.aux_loss in ("", config.model.moe.aux_loss if config.model.moe else "")
    )


def _has_feature(issue: KnownIssue, config: CellConfig) -> bool:
    features = {
        "": True,
        "ep": config.layout.ep > 1,
        "label_smoothing": config.train.label_smoothing > 0,
        "mla": config.model.mla is not None,
        "mtp": config.model.mtp is not None,
        "quick_geglu": config.model.activation == "quick_geglu",
        "rotary_interleaved": config.model.rotary_interleaved,
    }
    return features[issue.feature]


def _at_places(issue: KnownIssue, evidence: CellEvidence, finding: Finding) -> bool:
    places = [evidence.layout.coordinates(rank) for rank in finding.where.get("ranks", [])]
    middle = range(1, evidence.last_stage)
    stages = {"middle": middle, "last": (evidence.last_stage,)}.get(issue.stage)
    if stages is not None and not (places and all(place.pp in stages for place in places)):
        return False
    if issue.ranks == "tp > 0":
        return bool(places) and all(place.tp > 0 for place in places)
    return issue.ranks != "middle tp 0" or any(place.tp == 0 and place.pp in middle for place in places)


def _has_ratio(issue: KnownIssue, evidence: CellEvidence, finding: Finding) -> bool:
    """Return whether the number is wrong by exactly the factor that the issue causes."""
    layout = evidence.layout
    if issue.ratio == "1/rows":  # with tp or cp above 1, the factors of other issues multiply with it
        wanted = stated_ratio(1 / evidence.cell.config.micro_batch_size)
        return layout.tp == layout.cp == 1 and wanted in finding.message
    if not issue.ratio:
        return True
    split = [name for name in ("cp", "tp") if name in issue.ratio and getattr(layout, name) > 1]
    factor = split[0] if len(split) == 1 else f"({' '.join(split)})"
    ratio = str(finding.where.get("ratio", ""))
    return bool(split) and ratio.startswith("x 1/") and factor in ratio.removeprefix("x 1/").split(" or ")
