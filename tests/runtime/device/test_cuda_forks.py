"""Packages that initialise CUDA when they are imported.

torch then refuses CUDA in forks even on a machine without a GPU, so only the table of GPUs is fake. Each case runs in a
fork of one program that has imported harness.runtime.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.runtime.device import cuda_forks

PACKAGES = {
    "starts_cuda": 'import torch\ntry:\n    torch.empty(1, device="cuda")\nexcept RuntimeError:\n    pass\n',
    "raises_without_gpu": "import torch\ntorch.cuda.get_device_capability()\n",
    "only_counts": "import torch\nCOUNT = torch._C._cuda_getDeviceCount()\n",
    "asks_politely": "import torch\nHAS = torch.cuda.is_available()\n",
    "asks_its_own_question": "import torch\nif torch.cuda.is_available():\n    torch.cuda.get_device_capability()\n",
}
PROGRAM = """
import importlib, json, os, sys, torch
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
from harness.runtime import load, refusals
from harness.runtime.device import cuda_forks
from harness.probe import built
from harness.core.cell.config import CellConfig
from harness.core.errors import InfrastructureError
from harness.core.cell.layout import Layout
os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"  # hidden while the lines above import, as load() hides them
h200 = cuda_forks.Gpu(name="H200", capability=(9, 0), memory_bytes=1)
torch.cuda.init = lambda: None  # called last by forks_protected; this machine may have no driver

def alone(package):
    with cuda_forks.forks_protected("importing the stack"):
        shown = os.environ["CUDA_VISIBLE_DEVICES"]
        importlib.import_module(package)
    return repr(shown)

def loaded(package):
    built.import_all = lambda: importlib.import_module(package)
    load.load()

def refused(package):
    late = staticmethod(lambda config: importlib.import_module(package) and None)
    refusals.ADAPTERS["sft"] = type("Late", (), {"unavailable": late})
    return str(refusals.refusal(CellConfig(layout=Layout(), data_path="sft"), 1))

def case(function, package, gpus):
    cuda_forks.gpu_table = refusals.gpu_table = lambda: (h200,) * gpus
    try:
        said = function(package)
        return f"kept {said} {os.environ.get('CUDA_VISIBLE_DEVICES')} {torch.cuda._is_in_bad_fork()}"
    except InfrastructureError as error:
        return f"refused: {error}"
    except Exception as error:
        return f"raised: {type(error).__name__}"

found = {}
for name, function, package, gpus in json.loads(sys.argv[1]):
    receiver, sender = os.pipe()
    if os.fork() == 0:
        os.write(sender, case(globals()[function], package, gpus).encode())
        os._exit(0)
    os.close(sender)
    found[name] = os.fdopen(receiver).read()
print(json.dumps(found))
"""


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_gpus_are_counted_in_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch refuses CUDA in the forks of a process that has counted them."""
    monkeypatch.setattr(cuda_forks, "driver_installed", lambda: True)
    monkeypatch.setattr(
        cuda_forks, "_table", lambda: [cuda_forks.Gpu(name=str(os.getpid()), capability=(9, 0), memory_bytes=1)]
    )
    cuda_forks.gpu_table.cache_clear()
    try:
        (gpu,) = cuda_forks.gpu_table()
    finally:
        cuda_forks.gpu_table.cache_clear()
    assert int(gpu.name) != os.getpid()


CASES = [
    ("starts", "alone", "starts_cuda", 8),
    ("raises", "alone", "raises_without_gpu", 8),
    ("counts", "alone", "only_counts", 8),
    ("polite", "alone", "asks_politely", 8),
    ("guarded", "alone", "asks_its_own_question", 8),
    ("counts, no gpu", "alone", "only_counts", 0),
    ("raises, no gpu", "alone", "raises_without_gpu", 0),
    ("at load", "loaded", "only_counts", 8),
    ("data path", "refused", "starts_cuda", 8),
    ("good data path", "refused", "asks_politely", 8),
]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("packages")
    for name, text in PACKAGES.items():
        (root / f"{name}.py").write_text(text)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(Path.cwd())]), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, json.dumps(CASES)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "doing", "where"),
    [
        ("starts", "importing the stack", "starts_cuda.py:3"),
        ("raises", "importing the stack", "raises_without_gpu.py:2"),
        ("counts", "importing the stack", "only_counts.py:2"),
        ("at load", "importing the stack under test", "only_counts.py:2"),
        ("data path", "importing data path sft", "starts_cuda.py:3"),
    ],
)
def test_a_package_that_calls_into_the_driver_is_named_before_any_rank_is_forked(
    case: str, doing: str, where: str, said: dict[str, str]
) -> None:
    module = where.partition(".")[0]
    assert said[case].startswith(f"refused: {doing} initialised CUDA in the process that forks the ranks, called by")
    assert f" {module} (" in said[case]
    assert f"{where})" in said[case]


@pytest.mark.parametrize("case", ["polite", "guarded"])
def test_gpus_are_hidden_from_a_package_that_asks_whether_there_are_any(case: str, said: dict[str, str]) -> None:
    assert said[case] == "kept '' 0,1 False"


def test_a_data_path_that_does_not_call_the_driver_is_accepted(said: dict[str, str]) -> None:
    assert said["good data path"] == "kept None 0,1 False"


def test_on_a_node_without_a_gpu_nothing_is_refused(said: dict[str, str]) -> None:
    assert said["counts, no gpu"] == "kept '' 0,1 False"
    assert said["raises, no gpu"] == "raised: RuntimeError"
