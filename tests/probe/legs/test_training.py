"""Inside a timed step the harness must neither wait for the GPU nor write the record."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests import forked

PROGRAM = """
import json, os, sys, time, torch, torch.distributed as dist
from pathlib import Path
from torch.overrides import TorchFunctionMode
from harness.runtime.device import cpu_stubs
from harness.runtime.recording import recorder
from harness.upstreams.node_base import RankContext
from harness.upstreams.node_data_paths import ADAPTERS
from harness.runtime.device.placement import Device
from harness.faults.node_table import fault_named
from harness.probe import passes, run
from harness.probe.legs import training
from harness.probe.model import gpt as model
from harness.core.cell.layout import Coordinates
from harness.core.run.records import RankRecord
from tests.runtime.conftest import config
torch.set_num_threads(1)
cpu_stubs.install()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
device, cell = Device(kind="cpu", backend="gloo"), config()
model.initialize_parallel(cell, device)
place = Coordinates(tp=0, cp=0, dp=0, pp=0)
context = RankContext(config=cell, place=place, device=device, folder=Path(sys.argv[1]))
kept = recorder.Recorder(RankRecord(cell="cell", rank=0, place=place), Path(sys.argv[1]) / "ranks/rank-00000.json")
recorder.needs_sync = lambda tensor: True  # as if they were on a GPU

READS = {"item", "tolist", "cpu", "__float__", "__int__", "__bool__", "numpy", "nonzero"}
found = {0: [], 1: []}

class Watched(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in READS:
            frame = sys._getframe(1)
            name = frame.f_globals.get("__name__", "")
            # Data paths are the code under test, and the reference attention needs its bounds on the host.
            if name.startswith("harness.") and "upstreams" not in name and "node_reference" not in name:
                found[step].append(f"{func.__name__} in {name}:{frame.f_lineno}")
        return func(*args, **(kwargs or {}))

flush, pass_run, timed, step = kept.flush, passes.Passes.run, False, 0

def flushed():
    if timed:
        found[step].append("flush")
    flush()

def watched(self, *args, **more):
    global timed, step
    step, timed = self.truth.step, True
    with Watched():
        pass_run(self, *args, **more)
    timed = False

kept.flush = flushed
passes.Passes.run = watched
leg, _ = run._model_legs(context, ADAPTERS[cell.data_path](context), fault_named(None), kept)
leg.run()
losses = [seen.loss_sum for seen in kept.record.steps]
layers = [seen.params for seen in kept.record.layers]
print(json.dumps({"found": found, "losses": losses, "layers": layers}))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    printed = forked.run(PROGRAM, str(tmp_path_factory.mktemp("step")))
    return dict(json.loads(printed.splitlines()[-1]))


def test_a_timed_step_neither_reads_from_the_gpu_nor_writes_the_record(said: dict[str, Any]) -> None:
    assert said["found"]["1"] == []


def test_step_0_leaves_its_record_before_each_micro_batch(said: dict[str, Any]) -> None:
    assert "flush" in said["found"]["0"]


def test_deferred_values_are_all_recorded(said: dict[str, Any]) -> None:
    assert all(loss > 0 for loss in said["losses"])
    assert len(said["losses"]) == 2
    assert said["layers"]
    assert None not in said["layers"]
