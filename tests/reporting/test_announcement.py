from __future__ import annotations

import json
from dataclasses import replace

from harness.core.run.report import CellSince, ChangeKind, Since
from harness.core.serialization import dumps
from harness.reporting.announcement import announcement
from tests.sample_report import big_report, hostile_report, passing_report, sample_report


def test_a_red_run_has_the_first_findings_and_what_changed() -> None:
    cell = CellSince(
        id="tp2-pp4-cp1-sft-74e8308c",
        change=ChangeKind.NEWLY_FAILING,
        since="tonight",
        since_run="b",
        good="",
        good_run="",
    )
    report = replace(sample_report(), since=Since(run_id="a", started="yesterday", cells=[cell]))
    value = json.loads(dumps(announcement(report, exit_code=1, directory="reports/b")))
    assert (value["verdict"], value["exit_code"], value["counts"]["FAIL"]) == ("fail", 1, 2)
    assert value["first"][0]["check"] == "params_present"
    assert value["first"][0]["place"].startswith("rank 3, stage 1, tp 1")
    assert value["since"]["cells"][0]["change"] == "newly failing"
    lines = value["text"].splitlines()
    assert lines[0].startswith("*FAIL* smoke: ")
    assert lines[1].startswith("- FAIL tp2-pp4-cp1-sft-74e8308c: no packed metadata reached this rank")
    assert "Since run a of yesterday: 1 newly failing." in lines
    assert lines[-1] == f"run {report.run_id} in reports/b"


def test_a_green_run_is_two_lines() -> None:
    value = announcement(passing_report(), exit_code=0, directory="reports/a")
    assert value["text"].splitlines()[0] == "*PASS* smoke: 4 PASS"
    assert (len(value["text"].splitlines()), value["first"]) == (2, [])


def test_markup_of_chat_systems_is_escaped_and_the_text_is_short() -> None:
    value = announcement(hostile_report(), exit_code=1, directory="x")
    assert "<script>" not in value["text"]
    assert "&lt;script&gt;" in value["text"]
    many = announcement(big_report(100), exit_code=1, directory="x")
    assert len(many["text"]) <= 3000
    assert "- and 9 more" in many["text"]
