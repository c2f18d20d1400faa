"""Texts for speed figures."""

from __future__ import annotations

from harness.core.cell.timing import GpuState
from harness.reporting.summaries import share_text, state_text


def test_a_share_is_a_percentage_or_a_dash() -> None:
    assert (share_text(0.41256), share_text(None)) == ("41.3 %", "-")


def test_the_state_of_a_gpu_in_one_line() -> None:
    state = GpuState(
        when="after",
        sm_clock_mhz=1980,
        memory_clock_mhz=3201,
        power_w=412.4,
        power_limit_w=700.0,
        temperature_c=45,
        slowed_by=["software power cap"],
    )
    expected = "after: SM 1980 MHz, memory 3201 MHz, 412 of 700 W, 45 C, slowed by software power cap"
    assert state_text(state) == expected


def test_what_the_driver_did_not_report_is_left_out_with_the_reason() -> None:
    state = GpuState(when="before", power_w=90.0, slowed_by=[], missing="temperature: Not Supported")
    assert state_text(state) == "before: 90 W, not slowed, unknown: temperature: Not Supported"
