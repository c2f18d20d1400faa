"""The adapters: what a stack must have, and what happens when it has not."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import megatron.core.utils as upstream
import pytest

from harness.edge.run_dir import RunDir, write_json
from harness.node.data_paths.sft import _NEEDED, SftPath, _samples
from harness.node.data_paths.table import DATA_PATHS
from harness.node.probe.truth import StepTruth
from harness.words.cell import DATA_PATHS as NAMES
from harness.words.cell import cell_id
from harness.words.jsonable import from_jsonable, loads
from harness.words.records import CellResult
from tests.node.conftest import config


def test_every_data_path_of_the_packing_axis_has_an_adapter() -> None:
    assert set(DATA_PATHS) == set(NAMES)


@pytest.mark.parametrize("missing", _NEEDED)
def test_a_release_without_one_of_the_functions_cannot_serve_sft(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert SftPath.unavailable() is None
    monkeypatch.delattr(upstream, missing)
    assert missing in (SftPath.unavailable() or "")


def test_sft_samples_have_the_form_of_upstreams_dataset() -> None:
    for micro in StepTruth(config("sft", cp=2), 0, 0).micro_batches:
        for sample in _samples(micro):
            offsets = sample["cu_seqlens"].tolist()
            assert {len(sample[name]) for name in ("tokens", "labels", "loss_mask", "position_ids")} == {64}
            assert (len(offsets), offsets[0], offsets[-1]) == (65, 0, 64)
            assert offsets == sorted(offsets)
            lengths = [b - a for a, b in itertools.pairwise(offsets)]
            assert sample["max_seqlen"].item() == max(lengths)
            assert all(length % 4 == 0 for length in lengths)


@pytest.mark.train
def test_a_cell_whose_stack_lacks_the_path_is_rejected_with_the_reason_and_others_run(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    cells = {cell_id(one): one for one in (config("sft"), config("unpacked"))}
    for cell, one in cells.items():
        write_json(run.attempt(cell).config, one)
    order = {"cells": [{"cell": cell, "attempt": 1} for cell in cells], "parallel_ranks": 2}
    write_json(run.submission("local"), order)
    older = "import megatron.core.utils as u; del u.get_batch_on_this_tp_rank; import harness.node.agent as a; a.main()"
    command = [sys.executable, "-c", older, str(tmp_path), "local", "--attached-to", str(os.getpid())]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    results = {
        one.data_path: from_jsonable(CellResult, loads(run.attempt(cell).result.read_text()))
        for cell, one in cells.items()
    }
    assert results["unpacked"].status == "completed"
    assert results["sft"].status == "rejected"
    assert results["sft"].rejection is not None
    assert "get_batch_on_this_tp_rank" in results["sft"].rejection.reason
