"""Which attention kernels the loads of the timing leg use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from harness.core.cell.timing import TimingConfig
from harness.core.run.records import RankRecord
from harness.probe.legs import timing
from harness.probe.legs.timing import Load, TimingLeg
from harness.runtime.device.placement import Device
from harness.runtime.recording.recorder import Recorder
from harness.upstreams.node_base import RankContext
from tests.runtime.conftest import config

pytestmark = pytest.mark.usefixtures("world_of_one")

MATH, FLASH = "_scaled_dot_product_attention_math", "_scaled_dot_product_flash_attention"


class _Passes:
    """What the leg reads of the probe's passes, without a model."""

    chunks = ()
    path = None

    def __init__(self, folder: Path, cell: Any) -> None:
        place = cell.layout.coordinates(0)
        self.context = RankContext(config=cell, place=place, device=Device(kind="cpu", backend="gloo"), folder=folder)
        self.recorder = Recorder(RankRecord(cell="cell", rank=0, place=place), folder / "ranks" / "rank-00000.json")


def _leg(folder: Path, **timed: Any) -> tuple[TimingLeg, Callable[[], str]]:
    cell = replace(config(deadline_s=900.0), timing=TimingConfig(documents=(2,), warmup=2, **timed))
    passes: Any = _Passes(folder, cell)
    return TimingLeg(passes), lambda: str(passes.recorder.record.environment.get("timed_attention"))


def _attends(backends: Callable[[], SDPBackend]) -> Callable[[], None]:
    query = torch.randn(1, 2, 8, 16)

    def run() -> None:
        with sdpa_kernel(backends()):
            torch.nn.functional.scaled_dot_product_attention(query, query, query)

    return run


def test_every_load_names_its_kernels_also_those_that_it_uses_only_later(tmp_path: Path) -> None:
    leg, found = _leg(tmp_path)
    calls: list[int] = []

    def changes() -> SDPBackend:
        calls.append(1)
        return SDPBackend.MATH if len(calls) < 6 else SDPBackend.FLASH_ATTENTION

    loads = [
        Load(name="step", documents=2, run=_attends(lambda: SDPBackend.MATH)),
        Load(name="step", documents=4, run=_attends(changes)),
        Load(name="rotary", documents=2, run=lambda: None),
        Load(name="rotary", documents=4, run=None),
    ]
    leg._rounds(loads)
    assert found() == f"none that torch reports (rotary 2); {MATH} (step 2); {MATH}, {FLASH} (step 4)"


def test_interleaved_loads_name_their_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Alone:
        """No other stack to wait for."""

        def __init__(self, context: RankContext) -> None: ...

        def wait(self, turn: int) -> bool:
            return True

        def over(self, turn: int) -> None: ...

    leg, found = _leg(tmp_path)
    load = Load(name="turn", documents=0, run=_attends(lambda: SDPBackend.MATH))
    monkeypatch.setattr(timing, "Interleaver", Alone)
    monkeypatch.setattr(leg, "load_of", lambda *_: load)
    leg._turns()
    assert found() == f"{MATH} (turn)"
