"""matrices/known_slow.yaml on the clone that HARNESS_MEGATRON_LM_REPO names: right numbers, and a slower commit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import harness, only_run, write_matrix
from tests.megatron_clone import CLONE, needs_clone

pytestmark = [pytest.mark.train, needs_clone]


def test_the_commit_that_slows_down_packs_of_many_documents_is_slower_than_its_parent_and_right(
    tmp_path: Path, root: Path
) -> None:
    text = (root / "matrices" / "known_slow.yaml").read_text().replace("../../Megatron-LM", CLONE)
    done = harness("run", write_matrix(tmp_path, text), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((only_run(tmp_path / "reports") / "report.json").read_text())
    good, bad = (
        next(cell for cell in report["cells"] if f"-reference-{stack}-" in cell["id"])
        for stack in ("rotary_good", "rotary_bad")
    )
    assert (good["outcome"], bad["outcome"]) == ("PASS", "XFAIL")
    assert bad["lanes"] == {"metadata": "pass", "numerics": "pass", "throughput": "fail"}
    verdicts = {ratio["what"]: ratio["verdict"] for ratio in bad["throughput"]["ratios"]}
    assert verdicts["rotary function, 256 documents over 4"] == "slower"
    assert verdicts["over stack rotary_good, interleaved"] == "slower"
