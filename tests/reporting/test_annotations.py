from __future__ import annotations

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from harness.reporting.announcement import MOST, annotation_lines
from tests.sample_report import big_report, hostile_report, passing_report, sample_report
from tests.two_runs import changed

COMMAND = re.compile(r"::(error|notice) ((?:[a-z]+=[^:,\r\n]*,)*[a-z]+=[^:,\r\n]*)::([^\r\n]*)")


def test_failures_come_first_and_point_to_the_line_of_the_matrix() -> None:
    report = changed(sample_report(), "tp2-pp4-cp1-sft", line=21)
    lines = annotation_lines(report, "matrices/smoke.yaml")
    assert [line.split("title=")[1].split("::")[0] for line in lines] == [
        "FAIL tp2-pp4-cp1-sft-74e8308c",
        "FAIL tp1-pp2-cp2-reference-0ba5ad52",
        "ERROR tp2-pp2-cp2-sft-a520015d",
    ]
    assert lines[0].startswith(
        "::error file=matrices/smoke.yaml,line=21,title=FAIL tp2-pp4-cp1-sft-74e8308c::metadata, "
    )
    assert "stage 1, tp 1" in lines[0]
    assert "%0Areproduce: harness run" in lines[0]
    assert "node n17 was lost" in lines[2]


def test_at_most_ten_errors_and_a_line_that_counts_the_rest() -> None:
    lines = annotation_lines(big_report(100), "big.yaml")
    assert [line.startswith("::error ") for line in lines] == [True] * MOST + [False]
    assert lines[-1] == "::notice file=big.yaml::4 more cells failed or are undecided"


def test_a_green_run_has_no_annotations() -> None:
    assert annotation_lines(passing_report(), "smoke.yaml") == []


@given(st.text(), st.text())
def test_no_text_breaks_out_of_its_place(message: str, name: str) -> None:
    report = sample_report()
    bad = next(cell for cell in report.cells if cell.outcome.value == "FAIL")
    finding = replace(bad.findings[0], message=message)
    report = replace(report, cells=[replace(bad, id=name, findings=[finding])])
    (line,) = annotation_lines(report, f"a,b:c%\n{name}.yaml")
    assert COMMAND.fullmatch(line)
    assert line.count("::") - line.partition("title=")[2].partition("::")[2].count("::") == 2


def test_escapes_are_those_of_the_format() -> None:
    report = sample_report()
    bad = next(cell for cell in report.cells if cell.outcome.value == "ERROR")
    report = replace(report, cells=[replace(bad, id="a:b,c", line=12, reason="100%\r\nof: it,", reproduce="x")])
    assert annotation_lines(report, "a,b:c.yaml") == [
        "::error file=a%2Cb%3Ac.yaml,line=12,title=ERROR a%3Ab%2Cc::100%25%0Aof: it,%0Areproduce: x"
    ]


def test_hostile_reports_stay_one_line_each() -> None:
    assert all(COMMAND.fullmatch(line) for line in annotation_lines(hostile_report(), "smoke.yaml"))
