"""Devices and tensor factories: the CPU where upstream asks for CUDA, and nothing is pinned.

Wrappers of the functions rather than a TorchFunctionMode: a mode costs about 1.5 microseconds of every torch operation,
a seventh of the time of matrices/smoke.yaml, is switched off in backward passes and knows only the thread that entered
it.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils import _device as default_device

_DEVICE = torch.device
CPU = _DEVICE("cpu")
# Beside those that torch itself lists for torch.set_default_device.
_MORE = ("normal", "empty_like", "full_like", "ones_like", "rand_like", "randint_like", "randn_like", "zeros_like")
_OF_TENSORS = ("to", "new", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros")


def _is_cuda(value: Any) -> bool:
    kind = type(value)
    return (kind is _DEVICE and value.type == "cuda") or (kind is str and value.startswith("cuda"))


class _IsDevice(type):
    # Upstream asks isinstance(x, torch.device) of devices that torch's own C++ code made.
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, _DEVICE)


class Device(metaclass=_IsDevice):
    """In place of torch.device: makes and recognises torch's devices, and for CUDA's the CPU. Upstream compares devices
    and makes them of strings such as f"cuda:{torch.cuda.current_device()}".
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return CPU if any(map(_is_cuda, (*args, *kwargs.values()))) else _DEVICE(*args, **kwargs)


Device.__module__ = "torch"  # devices are pickled by this name
Device.__name__ = Device.__qualname__ = "device"


def _on_cpu(factory: Any) -> Any:
    """Return the factory with device="cuda" and pin_memory=True rewritten, in whatever place they are given."""

    @functools.wraps(factory)
    def on_cpu(*args: Any, **kwargs: Any) -> Any:
        # A loop instead of a comprehension: this runs at every tensor that is made, and hardly any call names a device
        # by position.
        for arg in args:
            if _is_cuda(arg):
                args = tuple(CPU if _is_cuda(arg) else arg for arg in args)
                break
        if kwargs:
            if _is_cuda(kwargs.get("device")):
                kwargs["device"] = CPU
            if kwargs.get("pin_memory"):
                kwargs["pin_memory"] = False
        return factory(*args, **kwargs)

    return on_cpu


def rows() -> list[tuple[Any, str, Any]]:
    """Return, for cpu_stubs.replace, the factories of torch and of torch.Tensor, and the default device."""
    listed = {id(factory) for factory in default_device._device_constructors()}
    owners = (torch, torch.fft, torch.nested)
    of_torch = [(owner, name) for owner in owners for name, value in vars(owner).items() if id(value) in listed]
    places: list[tuple[Any, str]] = [*of_torch, *((torch, name) for name in _MORE)]
    places += [(torch.Tensor, name) for name in _OF_TENSORS]
    # torch.set_default_device("cuda"), `with torch.device("cuda")`: the mode calls the factory inside the wrapper.
    places.append((default_device.DeviceContext, "__init__"))
    wrapped = [(owner, name, _on_cpu(getattr(owner, name))) for owner, name in places if hasattr(owner, name)]
    return [*wrapped, (torch, "device", Device)]
