"""matrices/trainer_hybrid.yaml on the clone HARNESS_MEGATRON_LM_REPO: upstream's own script trains hybrid models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import harness, only_run, write_matrix
from tests.megatron_clone import CLONE, needs_clone

pytestmark = [pytest.mark.train, needs_clone]


def test_the_shipped_matrix_passes_and_the_known_fault_is_named(tmp_path: Path, root: Path) -> None:
    text = (root / "matrices" / "trainer_hybrid.yaml").read_text().replace("../../Megatron-LM", CLONE)
    done = harness("run", write_matrix(tmp_path, text), cwd=tmp_path, timeout=3600)
    report = json.loads((only_run(tmp_path / "reports") / "report.json").read_text())
    odd = {cell["id"]: cell["findings"][:1] for cell in report["cells"] if cell["outcome"] not in ("PASS", "XFAIL")}
    assert (done.returncode, odd) == (0, {})
    known = [cell["findings"][0] for cell in report["cells"] if cell["outcome"] == "XFAIL"]
    assert "replica_gradients" in [first["check"] for first in known]
    assert len([cell for cell in report["cells"] if cell["axes"]["trainer"] == "megatron"]) >= 12
