from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from harness.core.outcomes import Lane, LaneVerdict, Outcome
from harness.judge.checks.table import CHECKS
from tests.judge.simulator import config_of, evidence_for, judge
from tests.sample_report import sample_report
from tests.two_runs import earlier_report, later_report

LAYOUTS: list[dict[str, Any]] = [
    {},
    {"tp": 2, "pp": 4},
    {"tp": 2, "pp": 2, "cp": 2},
    {"tp": 2, "sp": False},
    {"cp": 2, "dp": 2},
    {"pp": 2, "vpp": 2},
    {"tp": 2, "micro_batch_size": 2},
]


@pytest.mark.parametrize("data_path", ["unpacked", "reference", "sft"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_clean_records_give_no_finding(data_path: str, layout: dict[str, Any]) -> None:
    verdict = judge(evidence_for(config_of(data_path, **layout)))
    assert verdict.findings == []
    assert verdict.outcome is Outcome.PASS
    assert [lane.value for lane in verdict.lanes.values()] == ["pass", "pass", "skip"]


def test_the_reference_cell_is_judged_by_the_checks_that_need_no_reference() -> None:
    control = evidence_for(config_of()).control
    assert control is not None
    assert judge(control).outcome is Outcome.PASS
    control.records[0].steps[1].token_count = 3
    verdict = judge(control)
    assert verdict.outcome is Outcome.FAIL
    assert [finding.check for finding in verdict.findings] == ["token_count"]


def test_the_page_lists_the_checks_of_the_table_in_its_order(root: Path) -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", (root / "docs" / "checks.md").read_text(), re.M)
    lanes = {lane.value for lane in Lane}
    assert [row for row in rows if row[1] in lanes] == [(check.name, check.lane.value) for check in CHECKS]


def test_findings_carry_the_name_and_lane_of_their_check() -> None:
    evidence = evidence_for(config_of(tp=2, pp=4))
    for record in evidence.records.values():
        for layer in record.layers:
            layer.params = None
    lanes = {check.name: check.lane for check in CHECKS}
    verdict = judge(evidence)
    assert verdict.findings
    assert all(finding.lane is lanes[finding.check] for finding in verdict.findings)
    assert verdict.lanes[verdict.findings[0].lane] is LaneVerdict.FAIL


def test_sample_reports_name_only_checks_that_there_are_in_their_lanes() -> None:
    """Renderers and goldens show these reports, so no page shows a check by an outdated name."""
    lanes = {check.name: check.lane for check in CHECKS}
    reports = (sample_report(), earlier_report(), later_report())
    findings = [finding for report in reports for cell in report.cells for finding in cell.findings]
    assert len(findings) > 15
    assert {(item.check, item.lane) for item in findings if lanes.get(item.check) is not item.lane} == set()
