"""The adapters: what a stack must have, and what happens when it does not have it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import megatron.core.utils as upstream
import pytest
import torch

from harness.core.cell.identity import cell_id
from harness.core.outcomes import Rejection
from harness.core.packing.arithmetic import PAD
from harness.core.packing.options import PackingOptions
from harness.core.run.records import CellResult
from harness.core.run.run_dir import RunDir, write_json
from harness.core.serialization import from_jsonable, loads
from harness.probe.truth import StepTruth
from harness.upstreams.megatron_lm.node_sft import SftPath
from harness.upstreams.megatron_lm.node_sft_wheel import DATASET_MODULE, rows
from harness.upstreams.node_data_paths import ADAPTERS
from harness.upstreams.node_lookup import Unavailable
from harness.upstreams.table import DATA_PATHS
from tests.processes import HUNG_S
from tests.runtime.conftest import config


def test_every_data_path_that_the_harness_reads_has_an_adapter() -> None:
    assert list(ADAPTERS) == [name for name, path in DATA_PATHS.items() if not path.only_trained]


def fact(found: Unavailable) -> str:
    """The reason of a Rejection."""
    assert isinstance(found, Rejection)
    return found.reason


def test_a_release_without_one_of_the_functions_cannot_serve_sft(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SftPath.unavailable(config("sft")) is None
    monkeypatch.delattr(upstream, "get_batch_on_this_cp_rank")
    assert "megatron.core.utils.get_batch_on_this_cp_rank" in fact(SftPath.unavailable(config("sft")))
    monkeypatch.delattr(upstream, "get_batch_on_this_tp_rank")  # so it is checked as 0.17
    assert "megatron.training.utils.get_batch_on_this_tp_rank" in fact(SftPath.unavailable(config("sft")))


def test_a_release_without_the_dataset_cannot_serve_sft(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, DATASET_MODULE, None)  # as in wheels up to 0.16, which contain only megatron.core
    assert "has no megatron.training.datasets.sft_dataset" in fact(SftPath.unavailable(config("sft")))


@pytest.mark.parametrize("multiple", [None, 8])
@pytest.mark.parametrize("cp", [1, 2])
def test_upstreams_dataset_returns_the_rows_of_the_plan(cp: int, multiple: int | None) -> None:
    one = replace(config("sft", cp=cp), options=PackingOptions(pad_seq_to_mult=multiple))
    truth = StepTruth(one, 0, 0)
    found = list(rows(truth))
    assert len(found) == len(truth.micro_batches) > 1
    for micro, batch in zip(truth.micro_batches, found, strict=True):
        params = micro.plan.params()
        assert params is not None
        assert torch.unique(batch["cu_seqlens"][0]).tolist() == list(params.cu_seqlens_q)
        assert batch["max_seqlen"].tolist() == [params.max_seqlen_q]
        real = micro.owners[:, 0] != PAD
        assert torch.equal(batch["tokens"][0][real], micro.tokens[real])
        assert torch.equal(batch["position_ids"][0], micro.position_ids)
        assert torch.equal(batch["loss_mask"][0], micro.loss_mask)
        counted = micro.loss_mask > 0
        assert torch.equal(batch["labels"][0][counted], micro.labels[counted])


def test_rows_of_a_micro_batch_are_stacked_as_upstreams_loader_does() -> None:
    (first, *_) = rows(StepTruth(replace(config("sft"), micro_batch_size=2), 0, 0))
    assert first["tokens"].shape == (2, 64)
    assert first["cu_seqlens"].shape == (2, 65)
    assert first["max_seqlen"].shape == (2,)


@pytest.mark.train
def test_a_cell_whose_stack_does_not_have_the_path_is_rejected_with_the_reason_and_others_run(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    cells = {cell_id(one): one for one in (config("sft"), config("unpacked"))}
    for cell, one in cells.items():
        write_json(run.attempt(cell).config, one)
    order = {"cells": [{"cell": cell, "attempt": 1} for cell in cells], "parallel_ranks": 2}
    write_json(run.submission("local"), order)
    older = "import sys; sys.modules['megatron.training'] = None; import harness.runtime.agent as a; a.main()"
    command = [sys.executable, "-c", older, str(tmp_path), "local", "--attached-to", str(os.getpid())]
    subprocess.run(command, check=True, capture_output=True, timeout=HUNG_S)
    results = {
        one.data_path: from_jsonable(CellResult, loads(run.attempt(cell).result.read_text()))
        for cell, one in cells.items()
    }
    assert results["unpacked"].status == "completed"
    assert results["sft"].status == "rejected"
    assert results["sft"].rejection is not None
    assert "has no megatron.training.datasets.sft_dataset" in results["sft"].rejection.reason
