"""Process groups that are passed explicitly, beside other global ones, on four ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.probe.model import groups

FOUR_RANKS = """
import json, os, sys, torch.distributed as dist
from dataclasses import replace
from megatron.core import parallel_state
from harness.runtime.device import cpu_stubs
from harness.runtime.device.placement import Device
from harness.probe.model import gpt
from tests.runtime.conftest import config
cpu_stubs.install()
children = []
rank = 0
for number in (1, 2, 3):
    child = os.fork()
    if not child:
        rank = number
        children = []
        break
    children.append(child)
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 4), rank=rank, world_size=4)
made = gpt.initialize_parallel(replace(config(tp=2, dp=2), groups="explicit"), Device(kind="cpu", backend="gloo"))

def tensor_ranks():
    return dist.get_process_group_ranks(parallel_state.get_tensor_model_parallel_group())

seen = {"own": tensor_ranks(), "model": dist.get_process_group_ranks(made.collection.tp)}
with made.hidden():
    seen["hidden"] = tensor_ranks()
    with made.shown():
        seen["shown"] = tensor_ranks()
    seen["again"] = tensor_ranks()
seen["after"] = tensor_ranks()
open(f"{sys.argv[1]}-{rank}", "w").write(json.dumps(seen))
for child in children:
    os.waitpid(child, 0)
os._exit(0)
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    store = tmp_path_factory.mktemp("four") / "store"
    command = [sys.executable, "-W", "ignore", "-c", FOUR_RANKS, str(store)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    files = {rank: Path(f"{store}-{rank}") for rank in range(4)}
    assert all(file.exists() for file in files.values()), done.stderr
    return {rank: json.loads(file.read_text()) for rank, file in files.items()}


@pytest.mark.slow
def test_the_model_has_the_groups_of_its_layout(seen: dict[int, dict[str, Any]]) -> None:
    for rank, wanted in enumerate(([0, 1], [0, 1], [2, 3], [2, 3])):
        assert [seen[rank][at] for at in ("own", "model", "shown", "after")] == [wanted] * 4


def test_while_upstream_runs_the_global_groups_have_other_ranks(seen: dict[int, dict[str, Any]]) -> None:
    for rank, wanted in enumerate(([0, 2], [1, 3], [0, 2], [1, 3])):
        assert [seen[rank][at] for at in ("hidden", "again")] == [wanted] * 2


def test_without_explicit_groups_nothing_changes() -> None:
    before = groups._read()
    with groups.GLOBAL.hidden(), groups.GLOBAL.shown():
        assert groups._read() == before
    assert groups.GLOBAL.arguments == {}


def test_this_release_takes_process_groups() -> None:
    assert groups.without_groups() == ""
