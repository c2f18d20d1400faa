"""Goldens, and the report of a run with failures."""

from tests.judge.conftest import broken_report, golden

__all__ = ["broken_report", "golden"]
