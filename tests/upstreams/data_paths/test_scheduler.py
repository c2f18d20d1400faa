from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.cell.layout import Coordinates
from harness.core.packing.arithmetic import Workload
from harness.core.packing.documents import Document
from harness.probe.truth import StepTruth
from harness.runtime.device.placement import choose_device
from harness.upstreams.megatron_lm import node_scheduler
from harness.upstreams.megatron_lm.node_scheduler import MODULE, SchedulerPath, share
from harness.upstreams.node_base import RankContext
from tests.runtime.conftest import config
from tests.upstreams.data_paths.test_table import fact


def _accepts_all(*_: Any, **__: Any) -> None: ...


def test_a_release_without_the_scheduler_cannot_serve_it() -> None:
    assert f"has no {MODULE}.wrap_data_iterator" in fact(SchedulerPath.unavailable(config("scheduler")))


def test_the_scheduler_of_branch_dev_is_called_by_its_script_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, MODULE, SimpleNamespace(**dict.fromkeys(node_scheduler._NEEDED, _accepts_all)))
    for on_dev, found in ((True, "use trainer: megatron"), (False, "None")):
        monkeypatch.setattr(node_scheduler, "schedules", lambda on_dev=on_dev: on_dev)
        assert found in str(SchedulerPath.unavailable(config("scheduler")))
    monkeypatch.setattr(node_scheduler, "schedules", lambda: True)
    assert SchedulerPath.unavailable(replace(config("scheduler"), trainer="megatron")) is None


def test_a_renamed_argument_of_the_scheduler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    renamed = dict.fromkeys(node_scheduler._NEEDED, lambda iterator, predicts_here: None)
    monkeypatch.setitem(sys.modules, MODULE, SimpleNamespace(**renamed))
    expected = "has no get_batch_on_this_rank_for_sequence_packing(mtp_on_this_rank)"
    assert expected in fact(SchedulerPath.unavailable(config("scheduler")))


@given(count=st.integers(0, 30), dp=st.integers(1, 5))
def test_replicas_together_read_every_document_once_and_in_order(count: int, dp: int) -> None:
    documents = [Document(index=index, length=1, original_length=1) for index in range(count)]
    assert [one for replica in range(dp) for one in share(documents, dp, replica)] == documents


def test_the_counts_of_upstream_are_recorded_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong counts of a scheduler must reach the judge: they are not corrected, and do not raise."""
    module = SimpleNamespace(wrap_data_iterator=lambda source, config, count: ("batches", 7, 1.0, 2.0))
    monkeypatch.setattr(node_scheduler, "importlib", SimpleNamespace(import_module=lambda name: module))
    cell = config("scheduler", dp=2)
    place = Coordinates(tp=0, cp=0, dp=1, pp=0)
    path = SchedulerPath(RankContext(config=cell, place=place, device=choose_device(0, 1)))
    assert path.workload is None
    assert path.iterator(StepTruth(cell, 0, 1), 0) == "batches"
    assert path.workload == Workload(micro_batches=7, tokens=1.0, squares=2.0)
