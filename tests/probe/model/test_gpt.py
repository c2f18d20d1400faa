"""Process groups and weights of the probe's model."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import torch.distributed as dist

from harness.probe.model import gpt
from harness.runtime.device.placement import Device
from tests.runtime.conftest import config

CPU = Device(kind="cpu", backend="gloo")
TWO_RANKS = """
import json, os, sys, torch, torch.distributed as dist
from harness.runtime.device import cpu_stubs
from harness.runtime.device.placement import Device
from harness.probe.model import gpt as model
from harness.probe.weights import initialize, named_parameters
from tests.runtime.conftest import config
cpu_stubs.install()
child = os.fork()
rank = 0 if child else 1
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 2), rank=rank, world_size=2)
device = Device(kind="cpu", backend="gloo")
model.initialize_parallel(config(tp=2), device)
groups = model.first_collectives(device)

drawn = []
torch.nn.init.normal_ = torch.Tensor.normal_ = lambda *args, **more: drawn.append(1)
(chunk,) = model.build_chunks(config(tp=2), model.transformer_config(config(tp=2)), device)
items = list(named_parameters(model.unwrap(chunk), tp_rank=rank, tp_size=2))
with torch.no_grad():
    for item in items:
        item.parameter.fill_(float("nan"))
initialize(model.unwrap(chunk), seed=1, tp_rank=rank, tp_size=2)

layers = model.get_num_layers_to_build
model.get_num_layers_to_build = lambda *args, **more: layers(*args, **more) + 1
(tall,) = model.build_chunks(config(tp=2), model.transformer_config(config(tp=2)), device)
if child:
    os.waitpid(child, 0)
    finite = all(bool(item.parameter.isfinite().all()) for item in items)
    split = sorted({item.name.rpartition(".layers.")[2][2:] for item in items if item.shard.dim is not None})
    print(json.dumps({"groups": groups, "drawn": len(drawn), "finite": finite, "split": split,
                      "tall": len(model.unwrap(tall).decoder.layers)}))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    store = tmp_path_factory.mktemp("two") / "store"
    command = [sys.executable, "-W", "ignore", "-c", TWO_RANKS, str(store)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.slow
def test_every_group_of_several_ranks_is_used_once_before_upstream_needs_it(said: dict[str, Any]) -> None:
    assert said["groups"][0] == "WORLD"
    assert {"TENSOR_MODEL_PARALLEL_GROUP", "MODEL_PARALLEL_GROUP"} <= set(said["groups"])
    assert "PIPELINE_MODEL_PARALLEL_GROUP" not in said["groups"]  # it has one rank


def test_upstream_draws_no_weights_and_the_probe_sets_every_one(said: dict[str, Any]) -> None:
    assert (said["drawn"], said["finite"]) == (0, True)
    assert "mlp.linear_fc1.weight" in said["split"]  # without drawing, upstream still says how weights are split


def test_a_stage_that_upstream_gives_a_layer_too_many_is_built_for_the_checks(said: dict[str, Any]) -> None:
    """A crash of the harness would hide what upstream does wrong."""
    assert said["tall"] == config(tp=2).model.layers + 1


@pytest.mark.usefixtures("world_of_one")
def test_a_group_whose_all_reduce_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "all_reduce", lambda total, group=None: total.add_(1))
    with pytest.raises(RuntimeError, match="first all_reduce of ones in WORLD gave 2 instead of 1"):
        gpt.first_collectives(CPU)


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_groups_outlive_the_deadline_and_have_no_copies_over_gloo(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: dict[str, Any] = {}

    def upstream(distributed_timeout_minutes: int = 30, create_gloo_process_groups: bool = True, **more: Any) -> None:
        requested.update(minutes=distributed_timeout_minutes, copies=create_gloo_process_groups)

    monkeypatch.setattr(gpt.parallel_state, "initialize_model_parallel", upstream)
    monkeypatch.setattr(gpt.tensor_parallel, "model_parallel_cuda_manual_seed", lambda seed: None)
    gpt.initialize_parallel(config(deadline_s=3000.0), Device(kind="cuda", backend=backend, index=0))
    assert requested == {"minutes": 51, "copies": False}
