"""Attached to a worker in the shape of SkyRL's, it records what that worker trains on and what it reports.

Model, schedule and optimizer are Megatron's. The real worker: tests/matrices/test_trainer_skyrl.py.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.upstreams.trainers.loop import record as own_record
from tests.upstreams.trainers.loop import recorded

pytestmark = pytest.mark.train

PROGRAM = """
import sys, torch, torch.distributed as dist
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from harness.runtime.device import cpu_stubs
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.pipeline_parallel import get_forward_backward_func
from harness.core.cell.layout import Coordinates
from harness.core.run.records import RankRecord
from harness.upstreams.node_base import RankContext
from harness.runtime.device.placement import Device
from harness.probe.model import gpt
from harness.features.optimizer.node_distributed import build_optimizer, build_schedule
from harness.runtime.recording.recorder import Recorder
from harness.upstreams.skyrl import node_attach as attach
from harness.upstreams.skyrl.node_documents import examples
from tests.runtime.conftest import config

root, wrong = Path(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
cpu_stubs.install()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
device = Device(kind="cpu", backend="gloo")
cell = replace(config("skyrl"), trainer="skyrl", micro_batch_size=2)
gpt.initialize_parallel(cell, device)
place = Coordinates(tp=0, cp=0, dp=0, pp=0)
context = RankContext(config=cell, place=place, device=device, folder=root)
kept = Recorder(RankRecord(cell="cell", rank=0, place=place), root / "ranks" / "rank-00000.json")
# The mean over tokens comes from the loss mask.
plain = replace(cell, options=replace(cell.options, calculate_per_token_loss=False))

def apply(logits, labels, *rest):
    return -torch.nn.functional.cross_entropy(logits[0], labels[0], reduction="none")[None]

def by_document(logits, data):
    starts, mask = data["starts"], data["attention_mask"]
    stream = data["sequences"][mask]
    labels = torch.cat([stream[a:b].roll(-1) for a, b in zip(starts, starts[1:])])
    labels[0] += wrong == "label"
    scores = scoring.DistributedLogprob.apply(logits, labels[None])
    rows = torch.zeros(mask.shape[0], mask.shape[1] - 1)
    for row, (a, b) in enumerate(zip(starts, starts[1:])):
        if wrong == "gathered":
            a, b = a + 1, b + 1
        rows[row, rows.shape[1] - (b - a - 1):] = scores[0, a:b - 1]
    return rows

def loss_func(logits, *, data):
    rows = model_wrapper.from_parallel_logits_to_logprobs_packed_sequences(logits.float(), data)
    loss = -(rows[:, -data["loss_mask"].shape[1]:] * data["loss_mask"]).sum()
    return loss * data["count"], {"loss": loss.item()}

def forward_step(iterator, model):
    data = next(iterator)
    mask = data["attention_mask"]
    offsets = torch.tensor(data["starts"], dtype=torch.int32)
    longest = int(mask.sum(1).max())
    params = PackedSeqParams(qkv_format="thd", cu_seqlens_q=offsets, cu_seqlens_kv=offsets, max_seqlen_q=longest,
        max_seqlen_kv=longest, cu_seqlens_q_padded=offsets, cu_seqlens_kv_padded=offsets)
    given = None if wrong == "no_params" else params
    return model(data["sequences"][mask][None], None, None, packed_seq_params=given), partial(loss_func, data=data)

kernel = SimpleNamespace(apply=apply)
scoring = SimpleNamespace(DistributedLogprob=kernel, ChunkedDistributedLogprob=kernel)
model_wrapper = SimpleNamespace(get_forward_backward_func=get_forward_backward_func,
    from_parallel_logits_to_logprobs_packed_sequences=by_document)

class Worker:
    mesh_rank = SimpleNamespace(dp=0, dp_size=1)
    def __init__(self):
        self.actor_module = gpt.build_chunks(plain, gpt.transformer_config(plain), device)
        self.optimizer = build_optimizer(plain, self.actor_module)
        build_schedule(plain, self.optimizer)
    def get_lr(self):
        return self.optimizer.param_groups[0]["lr"]
    def forward_backward(self, batch, loss_fn, return_per_token_outputs):
        assert (loss_fn, return_per_token_outputs) == ("cross_entropy", False)
        run = model_wrapper.get_forward_backward_func()
        done = run(forward_step_func=forward_step, data_iterator=iter(batch.micro), model=self.actor_module,
            num_microbatches=len(batch.micro), seq_length=64, micro_batch_size=2, forward_only=False)
        lr = torch.tensor(self.get_lr()).item()
        factor = 2 if wrong == "loss_doubled" else 1
        return SimpleNamespace(metrics={"loss": factor * sum(one["loss"] for one in done), "policy_lr": lr})
    def optim_step(self):
        norm = self.optimizer.step()[1]
        for chunk in self.actor_module:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        return norm

class Batch:
    def __init__(self, step):
        found = examples(cell, step)
        tokens = sum(sum(one["loss_mask"]) for one in found)
        width = max(len(one["input_ids"]) for one in found)
        columns = max(one["num_actions"] for one in found)
        ids, mask = torch.zeros(len(found), width, dtype=torch.int64), torch.zeros(len(found), width, dtype=torch.bool)
        loss = torch.zeros(len(found), columns)
        for row, one in enumerate(found):
            ids[row, width - len(one["input_ids"]):] = torch.tensor(one["input_ids"])
            mask[row, width - len(one["input_ids"]):] = True
            loss[row, columns - one["num_actions"]:] = torch.tensor(one["loss_mask"]).float()
        loss = loss / tokens * (2 if wrong == "mask_doubled" else 1)
        self.size = len(found)
        self.micro = []
        for at in range(0, len(found), 2):
            starts = [0, *mask[at:at + 2].sum(1).cumsum(0).tolist()]
            self.micro.append({"sequences": ids[at:at + 2], "attention_mask": mask[at:at + 2],
                "loss_mask": loss[at:at + 2], "starts": starts, "count": len(found) // 2})
    def __len__(self):
        return self.size

attach._module = {"workers.megatron.megatron_model_wrapper": model_wrapper,
    "distributed.megatron.model_utils": scoring}.__getitem__
attached = attach.Attached(context, kept)
worker = Worker()
attached.built(worker.actor_module, worker.optimizer)
for step in range(cell.train.steps):
    attached.train(worker, Batch(step))
kept.end("completed")
"""


def record(wrong: str = "") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(recorded(PROGRAM, "skyrl", wrong))
    return found


def test_it_records_the_losses_of_the_harness_own_loop() -> None:
    own, found = own_record("harness"), record()
    for step, right in zip(found["steps"], own["steps"], strict=True):
        assert step["token_count"] == right["token_count"]
        assert [step[name] for name in ("loss_sum", "grad_norm")] == pytest.approx(
            [right[name] for name in ("loss_sum", "grad_norm")], rel=1e-4
        )
        assert step["documents"].keys() == right["documents"].keys()
    for seen in found["batches"]:
        assert seen["position_ids"] is None
        fields = ("tokens", "labels", "loss_mask", "log_probs")
        assert [seen[name]["mismatches"] for name in fields] == [0] * 4, seen
    told = [(one["step"], one["learning_rate"], one["skipped"], one["loss_scale"]) for one in found["reported"]]
    assert told == [(0, 0.001, 0, 1.0), (1, 0.001, 0, 1.0)]
    assert [one["consumed_samples"] for one in found["reported"]] == [8, 16]
    means = [step["loss_sum"] / step["token_count"] for step in found["steps"]]
    assert [one["loss"] for one in found["reported"]] == pytest.approx(means)


@pytest.mark.parametrize(("wrong", "field"), [("label", "labels"), ("mask_doubled", "loss_mask")])
def test_a_wrong_field_differs_from_the_plan(wrong: str, field: str) -> None:
    found = record(wrong)
    wrong_fields = {
        name for seen in found["batches"] for name in seen if (seen[name] or 0) != 0 and _differs(seen[name])
    }
    assert wrong_fields == {field}


def _differs(seen: Any) -> bool:
    return isinstance(seen, dict) and seen["mismatches"] > 0


def test_log_probabilities_of_other_slots_are_recorded_as_they_return() -> None:
    found = record("gathered")
    seen = found["batches"][0]
    assert seen["labels"]["mismatches"] == 0 and seen["log_probs"]["mismatches"] > 0
    document, position, slot, other = seen["log_probs"]["first"]
    assert (document, position, slot, other) == (0, 0, 0, 1)


def test_what_the_worker_does_not_pass_on_is_not_in_the_record() -> None:
    found = record("no_params")
    assert {seen["params"] for seen in found["batches"] + found["layers"]} == {None}


def test_a_loss_is_recorded_as_the_worker_tells_it() -> None:
    found = record("loss_doubled")
    step, told = found["steps"][0], found["reported"][0]
    assert told["loss"] == pytest.approx(2 * step["loss_sum"] / step["token_count"])
