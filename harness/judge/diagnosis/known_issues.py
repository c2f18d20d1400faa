"""Known upstream issues, matched to findings by check, field, stage, message and the release of the stack.

The facts are those of the fault catalogue and of the matrices that show them (releases.yaml, real_faults.yaml,
known_bugs.yaml, issue_7452.yaml). An issue is listed only if its finding differs from those of other faults of the same
release.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from harness.core.cell.config import CellConfig
from harness.core.layer_pattern import GATED_DELTA, MAMBA
from harness.core.outcomes import Finding, Severity
from harness.core.packing.fields import LONGEST, OFFSETS
from harness.core.run.records import RankRecord
from harness.core.upstream import DISTRIBUTIONS
from harness.judge.diagnosis.ratios import stated_ratio
from harness.judge.evidence.cell_evidence import CellEvidence

_MEGATRON = "https://github.com/NVIDIA/Megatron-LM"
_BRIDGE = "https://github.com/NVIDIA-NeMo/Megatron-Bridge"
_SKYRL = "https://github.com/NovaSky-AI/SkyRL"
ROWS_AS_ONE = "rows taken for one"  # in a message of the check aux_loss
_RELEASE = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?(.*)")
Release = tuple[int, int, int, int]  # major, minor, micro, 0 before the release itself, else 1


@dataclass(frozen=True, kw_only=True)
class KnownIssue:
    name: str
    link: str
    check: str
    package: str = "megatron-core"  # the package of `releases`, a key of DISTRIBUTIONS
    since: str  # first release that has it
    fixed: str = ""  # first release without it; empty: none is known
    data_path: str = ""  # empty: any
    stage: Literal["", "middle", "last"] = ""  # the stage of every rank in the finding; empty: any
    ranks: str = ""  # "tp > 0": none that reads the data; "middle tp 0": at least one that does, on a middle stage
    tp: Literal["", "1", "above 1"] = ""  # of the cell; empty: any
    cp: bool = False  # only with cp above 1
    feature: Literal["", "label_smoothing", "mla", "mtp"] = ""  # that the cell has; empty: any
    rows: bool = False  # only with several rows in a micro-batch
    padded: bool = False  # only in packed rows with real offsets of padded documents
    per_token: bool | None = None  # calculate_per_token_loss; None: either
    ratio: Literal["", "1/cp", "1/(cp tp)", "1/rows"] = ""  # the factor that the number is wrong by; empty: any
    fields: tuple[str, ...] = ()  # of packed params; empty: any
    part: str = ""  # what a timing leg timed, by the finding; empty: any
    aux_loss: str = ""  # of the cell's model; empty: any
    layer: str = ""  # letter of a layer that the model's pattern has; empty: any
    message_contains: str = ""  # text of upstream, or a constant that the check's message shares

    @property
    def text(self) -> str:
        """E.g. "Megatron-LM issue 4092, fixed in megatron-core 0.18.0 (https://...)"."""
        release = f"fixed in {self.package} {self.fixed}" if self.fixed else "no release with a fix is known"
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
    fields=(*OFFSETS, *LONGEST),
)
_NO_MIDDLE = KnownIssue(
    name="Megatron-LM pull request 3564",
    link=f"{_MEGATRON}/pull/3564",
    check="params_present",
    since="0.16.0",
    fixed="0.17.0",
    data_path="sft",
    ranks="middle tp 0",
)
_ROWS = KnownIssue(
    name="Megatron-LM pull request 5454",
    link=f"{_MEGATRON}/pull/5454",
    check="completeness",
    since="0.17.0",
    fixed="0.19.0",
    data_path="sft",
    tp="1",
    rows=True,
    message_contains="stack expects each tensor to be equal size",
)
_AUX_WEIGHT = KnownIssue(
    name="Megatron-LM pull request 2237",
    link=f"{_MEGATRON}/pull/2237",
    check="aux_loss",
    since="0.14.0",
    fixed="0.16.0",
    per_token=False,
    ratio="1/cp",
)
_ROUTER_WEIGHT = replace(
    _AUX_WEIGHT,
    name="Megatron-LM pull request 5047",
    link=f"{_MEGATRON}/pull/5047",
    fixed="0.19.0",
    per_token=True,
    ratio="1/(cp tp)",
)
KNOWN_ISSUES: tuple[KnownIssue, ...] = (
    _TP_RANKS,
    replace(_TP_RANKS, check="params_present", stage="last", fields=()),
    _NO_MIDDLE,
    replace(_NO_MIDDLE, check="params_form", ranks="", fields=("shape",)),
    _ROWS,
    replace(_ROWS, name="Megatron-LM pull requests 5454 and 5635", link=f"{_MEGATRON}/pull/5635", tp="above 1"),
    _AUX_WEIGHT,
    _ROUTER_WEIGHT,
    replace(_ROUTER_WEIGHT, check="z_loss"),
    KnownIssue(
        name="Megatron-LM pull request 5798",
        link=f"{_MEGATRON}/pull/5798",
        check="aux_loss",
        since="0.16.0",
        fixed="0.19.0",
        data_path="unpacked",
        rows=True,
        per_token=True,
        ratio="1/rows",
        aux_loss="seq_aux_loss",
    ),
    KnownIssue(
        name="Megatron-LM pull request 5243",
        link=f"{_MEGATRON}/pull/5243",
        check="segment_slope",
        since="0.19.0",
        part="rotary",
    ),
    KnownIssue(
        name="Megatron-LM pull request 5696",
        link=f"{_MEGATRON}/pull/5696",
        check="aux_loss",
        since="0.18.0",
        fixed="0.19.0",
        message_contains=ROWS_AS_ONE,
    ),
    KnownIssue(
        name="Megatron-LM issue 7452, finding 8",
        link=f"{_MEGATRON}/issues/7452",
        check="norm_members",
        since="0.15.0",
        tp="above 1",
        message_contains=".core_attention.softmax_offset on tp rank",
    ),
    KnownIssue(
        name="Megatron-LM issue 7452, finding 1",
        link=f"{_MEGATRON}/issues/7452",
        check="document_loss",
        since="0.15.0",
        tp="above 1",
        feature="label_smoothing",
    ),
    KnownIssue(
        name="Megatron-LM issue 7452, finding 3",
        link=f"{_MEGATRON}/issues/7452",
        check="parameter_gradients",
        since="0.17.0",
        cp=True,
        feature="mtp",
    ),
    KnownIssue(
        name="Megatron-LM's multi_latent_attention.py, keys' rotary part over tp",
        link=f"{_MEGATRON}/blob/core_v0.19.0/megatron/core/transformer/multi_latent_attention.py",
        check="parameter_gradients",
        since="0.16.0",
        tp="above 1",
        feature="mla",
    ),
    KnownIssue(
        name="Megatron-LM commit d8144e7712",
        link=f"{_MEGATRON}/commit/d8144e7712",
        check="mtp_loss",
        since="0.16.0",
        padded=True,
    ),
    KnownIssue(
        name="Megatron-LM commit d8144e7712",
        link=f"{_MEGATRON}/commit/d8144e7712",
        check="ended",
        since="0.16.0",
        padded=True,
        message_contains="list index out of range, at megatron/core/transformer/multi_token_prediction.py",
    ),
    KnownIssue(
        name="Megatron-LM issue 3643",
        link=f"{_MEGATRON}/issues/3643",
        check="ended",
        since="0.16.0",
        fixed="0.18.0",
        message_contains="save_for_backward can only save variables",
    ),
    KnownIssue(
        name="Megatron-Bridge issue 2952",
        link=f"{_BRIDGE}/issues/2952",
        package="megatron-bridge",
        check="params_present",
        since="0.4.0",
        fixed="0.5.0",
        data_path="bridge_offline",
        stage="middle",
    ),
    KnownIssue(
        name="SkyRL pull request 1407",
        link=f"{_SKYRL}/pull/1407",
        package="skyrl",
        check="completeness",
        since="0.1.0",
        fixed="0.2.0",
        data_path="skyrl",
        message_contains="must match the existing size (0)",
    ),
    KnownIssue(
        name="SkyRL pull request 2056",
        link=f"{_SKYRL}/pull/2056",
        package="skyrl",
        check="activations",
        since="0.1.0",
        fixed="0.4.0",
        data_path="skyrl",
        layer=MAMBA,
        message_contains="document boundary",
    ),
    KnownIssue(
        name="Megatron-LM issue 7452, finding 11",
        link=f"{_MEGATRON}/issues/7452",
        check="replica_gradients",
        since="0.18.0",
        tp="above 1",
        layer=GATED_DELTA,
        message_contains="self_attention.out_norm.weight",
    ),
)


def with_known(evidence: CellEvidence, findings: Sequence[Finding]) -> list[Finding]:
    """The findings; those that match a known upstream issue name it, unless a fault was injected into the cell."""
    if not findings or evidence.cell.config.fault:
        return list(findings)
    releases = {package: release_of(evidence.records, package) for package in {issue.package for issue in KNOWN_ISSUES}}
    return [_named(evidence, finding, releases) for finding in findings]


def release_of(records: Mapping[int, RankRecord], package: str = "megatron-core") -> Release | None:
    """The release of a package that all ranks recorded; None if none did or they differ."""
    module = DISTRIBUTIONS[package]
    found = {proof.version for record in records.values() for proof in record.imports if proof.module == module}
    return parse(next(iter(found))) if len(found) == 1 else None


def parse(version: str) -> Release | None:
    """The release of a version: "0.18.0rc1+abc" sorts before "0.18.0". None for any other text."""
    found = _RELEASE.fullmatch(version.partition("+")[0])
    if found is None:
        return None
    before = re.match(r"\.?(dev|a|b|rc)\d*", found[4]) is not None
    return int(found[1]), int(found[2]), int(found[3] or 0), int(not before)


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
        "label_smoothing": config.train.label_smoothing > 0,
        "mla": config.model.mla is not None,
        "mtp": config.model.mtp is not None,
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
    """Whether the number is wrong by exactly the factor that the issue causes."""
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
