"""matrices/stages.yaml, whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.matrices.test_models import report_of

pytestmark = pytest.mark.train


def test_stages_of_unequal_size_pass(tmp_path: Path, root: Path) -> None:
    report = report_of(root, tmp_path, "stages.yaml")
    outcomes = {cell["id"]: cell["outcome"] for cell in report["cells"]}
    assert len(outcomes) == 21
    assert set(outcomes.values()) == {"PASS"}
