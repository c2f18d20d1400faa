from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.core.run.records import RankRecord
from harness.faults.node_table import fault_named
from harness.probe.legs.metadata import metadata_leg
from harness.runtime.device.placement import Device
from harness.runtime.recording.recorder import Recorder, last_progress
from harness.upstreams.builtin.node_reference import ReferencePath
from harness.upstreams.node_base import RankContext
from tests.runtime.conftest import config


class Refusing(ReferencePath):
    """A data path that cannot make a step's iterator, like upstream's scheduler with too few documents."""

    def iterator(self, truth: Any, chunk: int) -> Any:
        raise ValueError("Not enough samples to move")


def test_a_data_path_that_makes_no_iterator_failed_in_the_metadata_leg(tmp_path: Path) -> None:
    """Exceptions before that leg do not count against the code under test."""
    one = config()
    place = one.layout.coordinates(0)
    recorder = Recorder(RankRecord(cell="c", rank=0, place=place), tmp_path / "rank.json")
    context = RankContext(config=one, place=place, device=Device(kind="cpu", backend="gloo"))
    with pytest.raises(ValueError, match="Not enough samples"):
        metadata_leg(Refusing(context), context, fault_named(None), recorder)
    progress = last_progress(tmp_path / "rank.json")
    assert progress is not None and (progress.leg, progress.phase) == ("metadata", "start")
