"""16 K tokens give the same results over context ranks as on one rank; rows of 128 K tokens arrive as planned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import harness, only_run

pytestmark = [pytest.mark.train, pytest.mark.long]  # short: bridge_long in test_releases.py
LIMIT_S = 1800  # Transformer Engine is compiled if this machine has no environment with it


def test_a_long_document_over_context_ranks_computes_what_one_rank_does(tmp_path: Path, root: Path) -> None:
    done = harness("run", root / "matrices" / "long_context.yaml", cwd=tmp_path, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((only_run(tmp_path / "reports") / "report.json").read_text())
    outcomes = {cell["id"].rpartition("-")[0]: cell["outcome"] for cell in report["cells"]}
    assert outcomes == {
        "tp1-pp1-cp1-unpacked-bridge062": "PASS",
        "tp1-pp1-cp1-bridge_long-bridge062": "PASS",
        "tp1-pp1-cp2-bridge_long-bridge062": "PASS",
    }
    assert report["rejected"] == []


def test_rows_of_128_k_tokens_arrive_on_context_ranks_as_planned(tmp_path: Path, root: Path) -> None:
    done = harness("run", root / "matrices" / "long_rows.yaml", cwd=tmp_path, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((only_run(tmp_path / "reports") / "report.json").read_text())
    assert {cell["outcome"] for cell in report["cells"]} == {"PASS"}
    assert {cell["lanes"]["numerics"] for cell in report["cells"]} == {"skip"}
    assert (len(report["cells"]), report["rejected"]) == (22, [])
