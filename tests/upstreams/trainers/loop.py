"""A training loop of the test in the shapes of megatron.training.training and of megatron.bridge.training.

Model, schedule and optimizer are Megatron's. The real loops: tests/matrices/test_trainer.py and
test_trainer_bridge.py.
"""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from tests import forked

PROGRAM = """
import sys, types, torch, torch.distributed as dist
from dataclasses import replace
from functools import partial
from pathlib import Path
from harness.runtime.device import cpu_stubs
from megatron.core.pipeline_parallel import get_forward_backward_func
from harness.core.cell.layout import Coordinates
from harness.core.run.records import RankRecord
from harness.upstreams.node_base import RankContext
from harness.upstreams.node_data_paths import ADAPTERS
from harness.runtime.device.placement import Device
from harness.faults.node_table import fault_named
from harness.probe import run
from harness.probe.legs.metadata import metadata_leg
from harness.probe.model import gpt
from harness.features.optimizer.node_distributed import build_optimizer, build_schedule
from harness.probe.truth import StepTruth
from harness.runtime.recording.recorder import Recorder
from harness.upstreams.megatron_bridge import node_attach as bridge
from harness.upstreams.megatron_lm import node_attach as megatron
from tests.runtime.conftest import config

trainer, root, wrong = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
cpu_stubs.install()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
device, cell = Device(kind="cpu", backend="gloo"), config()
cell = replace(cell, train=replace(cell.train, eval_interval=1))
gpt.initialize_parallel(cell, device)
place = Coordinates(tp=0, cp=0, dp=0, pp=0)
context = RankContext(config=cell, place=place, device=device, folder=root)
kept = Recorder(RankRecord(cell="cell", rank=0, place=place), root / "ranks" / "rank-00000.json")
if trainer != "harness":
    cell = replace(cell, trainer=trainer)
    context = replace(context, config=cell)
path = ADAPTERS[cell.data_path](context)

def setup_model_and_optimizer():
    chunks = gpt.build_chunks(cell, gpt.transformer_config(cell), device)
    optimizer = build_optimizer(cell, chunks)
    build_schedule(cell, optimizer)
    return chunks, optimizer, None

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

def evaluate(forward_step_func, iterator, model, count):
    for chunk in model:
        chunk.train(wrong == "evaluation_trains")
    with torch.no_grad():
        losses = get_forward_backward_func()(
            forward_step_func=forward_step_func, data_iterator=iterator, model=model[0], num_microbatches=count,
            seq_length=cell.train.seq_length, micro_batch_size=1, forward_only=True,
        )
    for chunk in model:
        chunk.train(wrong != "mode_left")
    return {"lm loss": sum(one["lm loss"][0] for one in losses)}, None, False

def passes_of(number):
    truth = StepTruth(cell, number, 0)
    return path.iterator(truth, 0), len(truth.plans)

def line(number):
    rest = f"consumed samples: {5:12d} | other: 1 | grad norm: 2.100 |"
    return f" [2026-08-01 10:00:00] iteration {number:8d}/{9:8d} | {rest}"

def training_log(loss_dict, total_loss_dict, learning_rate, iteration, loss_scale, report, skipped_iter, grad_norm,
        seqlen_squared_sum_in_batch=None, total_real_tokens_in_batch=None):
    training.num_floating_point_operations(None, 1)
    training.print_rank_last("another line | grad norm: 1 |")
    training.print_rank_last(line(iteration))

def older_log(loss_dict, total_loss_dict, learning_rate, iteration, loss_scale, report, skipped_iter, grad_norm):
    pass

def by_upstream():
    global training
    training = types.SimpleNamespace(
        setup_model_and_optimizer=setup_model_and_optimizer, train_step=train_step,
        training_log=older_log if wrong == "older" else training_log,
        evaluate=evaluate, print_rank_last=print, num_floating_point_operations=lambda args, batch_size: 70,
        get_args=lambda: types.SimpleNamespace(consumed_train_samples=5),
    )
    megatron.Attached(training, context, kept)
    model, optimizer, _ = training.setup_model_and_optimizer()
    for step in range(cell.train.steps):
        truth = StepTruth(cell, step, 0)
        source, count = path.iterator(truth, 0), len(truth.plans)
        rows = iter([source] * count + [path.iterator(truth, 0)])
        loss, skipped, norm = training.train_step(
            forward_step, rows, model, optimizer, count + (wrong == "extra_micro_batch"))
        training.num_floating_point_operations(None, 1)
        training.print_rank_last(line(8))  # not by training_log
        counted = {} if wrong == "older" else {
            "seqlen_squared_sum_in_batch": 90.0, "total_real_tokens_in_batch": 30.0 + step}
        training.training_log(loss, {}, 0.001, step + 1, 1.0, False, skipped, norm, **counted)
        for _ in range(cell.train.evaluated.count(step + 1)):
            source, count = passes_of(cell.train.steps + len(kept.record.evaluations))
            training.evaluate(forward_step, iter([source] * count), model, count)

def by_bridge():
    state = types.SimpleNamespace(step=0, consumed_train_samples=0, floating_point_operations_so_far=0.0)
    def setup():
        model, optimizer, _ = setup_model_and_optimizer()
        before = types.SimpleNamespace(train_state=state)
        return types.SimpleNamespace(model=model, optimizer=optimizer, scheduler=None, state=before)
    def get_batch(iterator, cfg):
        batch = path.fetch(next(iterator), 0)
        return batch.tokens, batch.labels, batch.loss_mask, None, batch.position_ids, batch.params
    def bridge_forward_step(iterator, model):
        tokens, labels, mask, attention_mask, positions, params = step.get_batch(iterator, None)
        if wrong == "no_params":
            params = None
        given = {"input_ids": tokens, "position_ids": positions, "attention_mask": attention_mask, "labels": labels}
        return model(**given, packed_seq_params=params), partial(loss_func, mask)
    def bridge_log(loss_dict, learning_rate, loss_scale, skipped_iter, grad_norm, global_state):
        log.print_rank_last(line(global_state.train_state.step))
    flops = types.SimpleNamespace(num_floating_point_operations=lambda cfg, *, seqlen_sum, seqlen_squared_sum: 70)
    log = types.SimpleNamespace(print_rank_last=print)
    pretrain, step = types.SimpleNamespace(setup=setup), types.SimpleNamespace(get_batch=get_batch)
    train = types.SimpleNamespace(train_step=train_step, training_log=bridge_log)
    def prepare(forward, state):
        return forward
    def bridge_evaluate(state, forward_step_func, iterator, model, count):
        return evaluate(evaluation.prepare_forward_step_func(forward_step_func, state), iterator, model, count)
    evaluation = types.SimpleNamespace(evaluate=bridge_evaluate, prepare_forward_step_func=prepare)
    bridge._module = {"pretrain": pretrain, "gpt_step": step, "train": train, "eval": evaluation,
        "utils.flop_utils": flops, "utils.train_utils": log}.__getitem__
    bridge.Attached(context, kept)
    made = pretrain.setup()
    for number in range(cell.train.steps):
        truth = StepTruth(cell, number, 0)
        source, count = path.iterator(truth, 0), len(truth.plans)
        loss, skipped, norm = train.train_step(
            bridge_forward_step, iter([source] * count), made.model, made.optimizer, count)
        state.step, state.consumed_train_samples = number + 1, 5
        state.floating_point_operations_so_far += flops.num_floating_point_operations(
            None, seqlen_sum=30 + number, seqlen_squared_sum=90)
        factor = 2 if wrong == "norm_doubled" else 1
        train.training_log(loss, 0.001, 1.0, skipped, norm * factor, types.SimpleNamespace(train_state=state))
        for _ in range(cell.train.evaluated.count(number + 1)):
            source, count = passes_of(cell.train.steps + len(kept.record.evaluations))
            evaluation.evaluate(state, bridge_forward_step, iter([source] * count), made.model, count)

if trainer == "harness":
    metadata_leg(path, context, fault_named(None), kept)
    training, _ = run._model_legs(context, path, fault_named(None), kept)
    training.run()
elif trainer == "megatron":
    by_upstream()
else:
    by_bridge()
kept.end("completed")
"""


def record(trainer: str, wrong: str = "") -> dict[str, Any]:
    """What is recorded of a trainer's loop, with something wrong in it."""
    found: dict[str, Any] = json.loads(recorded(PROGRAM, trainer, wrong))
    return found


@cache
def recorded(program: str, *arguments: str) -> str:
    """The record that a program leaves in a folder, which is its second argument."""
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "cells" / "cell" / "attempt-1"
        forked.run(program, *arguments[:1], str(folder), *arguments[1:])
        return (folder / "ranks" / "rank-00000.json").read_text()


def steps(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps without their times."""
    return [{name: value for name, value in step.items() if not name.endswith("_s")} for step in found["steps"]]
