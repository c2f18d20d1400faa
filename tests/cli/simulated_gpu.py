"""Ranks that share a GPU, on a CPU: a plug-in, whose patches agents make when they load it.

Ranks are placed as on a GPU that they share, compute by the CPU stubs, and call a gloo that refuses what it refuses of
CUDA tensors. Tensors that the stubs of gloo make in host memory are there; all others count as on the GPU.
SIMULATED_LACK, a method of ProcessGroup, leaves one stub of gloo out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from harness.probe import run
from harness.runtime import refusals
from harness.runtime.device import cpu_stubs, gloo_stubs, uneven_collectives
from harness.runtime.device.cuda_forks import Gpu
from harness.runtime.device.placement import Device
from harness.runtime.recording import recorder

_BAD_ADDRESS = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:533] writev [127.0.0.1]:24413: Bad address"
_GLOO_SAYS = {
    "allreduce_coalesced": "ProcessGroupGloo::allreduce_coalesced: unsupported device type cuda",
    "send": _BAD_ADDRESS,
    "recv": _BAD_ADDRESS,
    "recv_anysource": _BAD_ADDRESS,
}
_host_like, _install = gloo_stubs._host_like, gloo_stubs.install
_environment, _forms = run._environment, recorder._forms


def _refusing(name: str) -> Callable[..., Any]:
    """A method of ProcessGroup that raises for tensors on the GPU."""
    call = getattr(dist.ProcessGroup, name)

    def method(group: Any, tensors: Iterable[Any], *rest: Any) -> Any:
        if not all(hasattr(tensor, "in_host_memory") for tensor in tensors):
            raise RuntimeError(_GLOO_SAYS[name])
        return call(group, tensors, *rest)

    return method


def _in_host_memory(tensor: torch.Tensor) -> Any:
    host: Any = _host_like(tensor)
    host.in_host_memory = True
    return host


_GLOO = {name: _refusing(name) for name in _GLOO_SAYS}


def _on_gpu() -> None:
    """In place of the check that a rank on a GPU has no CPU stubs."""
    cpu_stubs.install()
    dist.all_gather, dist.reduce_scatter = uneven_collectives._all_gather, uneven_collectives._reduce_scatter
    for name, method in _GLOO.items():
        setattr(dist.ProcessGroup, name, method)


def _stubs_of_gloo() -> list[str]:
    names = _install()
    if lack := os.environ.get("SIMULATED_LACK"):
        setattr(dist.ProcessGroup, lack, _GLOO[lack])
    return names


def activate() -> None:
    changes: dict[Any, dict[str, Any]] = {
        torch.cuda: {"get_device_name": lambda *_: "a GPU"},
        cpu_stubs: {"refuse": _on_gpu},
        gloo_stubs: {
            "_host_like": _in_host_memory,
            "_send": _GLOO["send"],
            "_recv": _GLOO["recv"],
            "install": _stubs_of_gloo,
        },
        refusals: {"gpu_table": lambda: (Gpu(name="a GPU", capability=(9, 0), memory_bytes=0),)},
        run: {
            "choose_device": lambda *_: Device(kind="cuda", backend="gloo", sharing=2),
            "capability": lambda _: (9, 0),
            "_environment": lambda *known: _environment(*known) | {"torch_device": "cuda:0"},
        },
        recorder: {
            "_forms": lambda seen: {name: replace(form, device="cuda:0") for name, form in _forms(seen).items()}
        },
    }
    for module, attributes in changes.items():
        for name, value in attributes.items():
            setattr(module, name, value)


activate()
