"""Attached to a training loop in the shape of megatron.training.training, it records what the harness's own loop does.

The loop is the test's; model, schedule and optimizer are Megatron's. The real loop: tests/app/matrices/test_trainer.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import sys, types, torch, torch.distributed as dist
from functools import partial
from pathlib import Path
from harness.node.device import cpu_stubs
from megatron.core.pipeline_parallel import get_forward_backward_func
from harness.core.cell.layout import Coordinates
from harness.core.run.records import RankRecord
from harness.node.data_paths.base import RankContext
from harness.node.data_paths.table import ADAPTERS
from harness.node.device.placement import Device
from harness.node.faults import fault_named
from harness.node.probe import run
from harness.node.probe.legs.metadata import metadata_leg
from harness.node.probe.model import gpt
from harness.node.probe.model.distributed_optimizer import build_optimizer
from harness.node.probe.truth import StepTruth
from harness.node.recording.recorder import Recorder
from harness.node.trainers.megatron.attach import Attached
from tests.node.conftest import config

trainer, root, wrong = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
cpu_stubs.install()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
device, cell = Device(kind="cpu", backend="gloo"), config()
gpt.initialize_parallel(cell, device)
place = Coordinates(tp=0, cp=0, dp=0, pp=0)
context = RankContext(config=cell, place=place, device=device, folder=root)
kept = Recorder(RankRecord(cell="cell", rank=0, place=place), root / "ranks" / "rank-00000.json")
path = ADAPTERS[cell.data_path](context)

def setup_model_and_optimizer():
    chunks = gpt.build_chunks(cell, gpt.transformer_config(cell), device)
    return chunks, build_optimizer(cell, chunks), None

def loss_func(mask, output, model=None):
    loss, tokens = (output.float() * mask).sum(), mask.sum().to(torch.int)
    return loss, tokens, {"lm loss": torch.stack([loss.detach(), tokens.float()])}

def forward_step(iterator, model):
    batch = path.fetch(next(iterator), 0)
    arguments = {"labels": batch.labels, "loss_mask": batch.loss_mask, "packed_seq_params": batch.params}
    return model(batch.tokens, batch.position_ids, None, **arguments), partial(loss_func, batch.loss_mask, model=model)

def train_step(forward_step_func, iterator, model, optimizer, count):
    for chunk in model:
        chunk.zero_grad_buffer()
    optimizer.zero_grad()
    losses = get_forward_backward_func()(
        forward_step_func=forward_step_func, data_iterator=iterator, model=model[0], num_microbatches=count,
        seq_length=cell.train.seq_length, micro_batch_size=1, forward_only=False,
    )
    if wrong == "no_update":
        return {}, 0, 1.0
    return {"lm loss": sum(one["lm loss"][0] for one in losses)}, 0, optimizer.step()[1]

def training_log(loss_dict, total_loss_dict, learning_rate, iteration, loss_scale, report, skipped_iter, grad_norm):
    pass

def by_upstream():
    training = types.SimpleNamespace(
        setup_model_and_optimizer=setup_model_and_optimizer, train_step=train_step, training_log=training_log,
        get_args=lambda: types.SimpleNamespace(consumed_train_samples=5),
    )
    Attached(training, context, kept)
    model, optimizer, _ = training.setup_model_and_optimizer()
    for step in range(cell.train.steps):
        truth = StepTruth(cell, step, 0)
        source, count = path.iterator(truth, 0), len(truth.plans)
        rows = iter([source] * count + [path.iterator(truth, 0)])
        loss, skipped, norm = training.train_step(
            forward_step, rows, model, optimizer, count + (wrong == "extra_micro_batch"))
        training.training_log(loss, {}, 0.001, step + 1, 1.0, False, skipped, norm)

if trainer == "harness":
    metadata_leg(path, context, fault_named(None), kept)
    training, _ = run._model_legs(context, path, fault_named(None), kept)
    training.run()
else:
    by_upstream()
kept.end("completed")
"""


def record(trainer: str, folder: Path, wrong: str = "") -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, trainer, str(folder), wrong], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads((folder / "ranks" / "rank-00000.json").read_text())
    return found


def steps(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps without their times."""
    return [{name: value for name, value in step.items() if not name.endswith("_s")} for step in found["steps"]]


pytestmark = pytest.mark.train


def folder(tmp_path: Path, name: str) -> Path:
    """An attempt's folder."""
    return tmp_path / "cells" / name / "attempt-1"


def test_it_records_the_same_as_the_harness_does_of_its_own_loop(tmp_path: Path) -> None:
    own, found = record("harness", folder(tmp_path, "own")), record("megatron", folder(tmp_path, "upstream"))
    assert steps(found) == steps(own)
    for name in ("parameters", "activations", "layers", "packed_params"):
        assert found[name] == own[name], name
    assert [batch for batch in found["batches"] if batch["step"] == 0] == own["batches"]
    assert {batch["step"] for batch in found["batches"]} == {0, 1}
    assert found["micro_batches"] == [step["micro_batches"] for step in own["steps"]]
    assert [(told["step"], told["consumed_samples"], told["learning_rate"]) for told in found["reported"]] == [
        (0, 5, 0.001),
        (1, 5, 0.001),
    ]
    for told, step in zip(found["reported"], own["steps"]):
        assert told["loss"] == pytest.approx(step["loss_sum"], rel=1e-6)


def test_a_micro_batch_too_many_is_counted(tmp_path: Path) -> None:
    found = record("megatron", folder(tmp_path, "extra"), "extra_micro_batch")
    own = record("harness", folder(tmp_path, "own"))
    assert found["micro_batches"] == [step["micro_batches"] + 1 for step in own["steps"]]
    assert [step["micro_batches"] for step in found["steps"]] == found["micro_batches"]


def test_a_step_without_an_update_is_recorded(tmp_path: Path) -> None:
    found, own = (
        record("megatron", folder(tmp_path, "none"), "no_update"),
        record("harness", folder(tmp_path, "own")),
    )
    assert steps(found)[0] == steps(own)[0]
    assert steps(found)[1] != steps(own)[1]  # the weights have not moved
    assert [step["step"] for step in found["steps"]] == [0, 1]
