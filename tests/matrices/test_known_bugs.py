"""matrices/known_bugs.yaml on the clone that HARNESS_MEGATRON_LM_REPO names: bad commits fail as known, others pass."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import harness, only_run, write_matrix
from tests.megatron_clone import CLONE, needs_clone

pytestmark = [pytest.mark.train, needs_clone]


def test_every_bad_commit_fails_where_it_is_known_to_and_every_good_one_passes(tmp_path: Path, root: Path) -> None:
    text = (root / "matrices" / "known_bugs.yaml").read_text().replace("../../Megatron-LM", CLONE)
    done = harness("run", write_matrix(tmp_path, text), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((only_run(tmp_path / "reports") / "report.json").read_text())
    found = {cell["id"].rpartition("-")[0]: cell["outcome"] for cell in report["cells"] if cell["role"] == "cell"}
    wrong = ("bad", "none", "crash", "tail", "core017", "core017-recompute-full", "core018-recompute-full")
    assert found == {name: "XFAIL" if name.endswith(wrong) else "PASS" for name in found}
    assert len(found) == 22
