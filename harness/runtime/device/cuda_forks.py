"""Keeps CUDA out of the process that forks ranks: driver queries run in a forked child instead.

torch refuses CUDA in the children of a process that has called into the driver, even just to count GPUs. With MIG names
in CUDA_VISIBLE_DEVICES, or without libnvidia-ml, torch.cuda.is_available() is such a call, and
torch.cuda.is_initialized() stays False after it. Only trying CUDA in a fresh fork catches all cases.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import torch

from harness.core.errors import DriverError, InfrastructureError

DRIVER_TIMEOUT_S = 120.0  # enough for a node with many GPUs and no persistence daemon
DRIVER = "libcuda.so.1"
_INTO_DRIVER = ("_cuda_init", "_cuda_getDeviceCount")  # functions of torch._C after which forks cannot use CUDA

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU that torch can use on this node."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int


def driver_installed() -> bool:
    """Return whether the driver's library can be loaded, which does not initialise CUDA."""
    try:
        ctypes.CDLL(DRIVER)
    except OSError:
        return False
    return True


@cache
def gpu_table() -> tuple[Gpu, ...]:
    """Return the GPUs of this node, looked up once. DriverError when the driver does not answer."""
    return tuple(in_child(_table, "counting the GPUs of this node")) if driver_installed() else ()


def _table() -> list[Gpu]:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    gpus = []
    for index in range(count):
        gpu = torch.cuda.get_device_properties(index)
        gpus.append(Gpu(name=gpu.name, capability=(gpu.major, gpu.minor), memory_bytes=gpu.total_memory))
    return gpus


def in_child(question: Callable[[], T], what: str) -> T:
    """Return the return value of a function run in a forked child. DriverError when it raises, crashes or hangs.

    `what` describes the query in errors.
    """
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_answer, args=(question, sender), daemon=True)
    child.start()
    # Otherwise this process holds the pipe open itself, and never sees the end of a child that crashed.
    sender.close()
    try:
        if not receiver.poll(DRIVER_TIMEOUT_S):
            raise DriverError(f"{what}: the driver has not answered for {DRIVER_TIMEOUT_S:.0f} s")
        answered, value = receiver.recv()
    except EOFError:
        child.join(DRIVER_TIMEOUT_S)
        raise DriverError(f"{what}: the child process ended with exit code {child.exitcode}") from None
    finally:
        receiver.close()
        child.join(1.0)
        if child.is_alive():  # a process that waits for the driver may survive even SIGKILL
            child.kill()
    if not answered:
        raise DriverError(f"{what}: {value}")
    result: T = value
    return result


def _answer(question: Callable[[], Any], sender: Connection) -> None:
    try:
        sender.send((True, question()))
    # The child must answer whatever happens, SystemExit included; the parent raises it as DriverError.
    except BaseException as error:
        sender.send((False, f"{type(error).__name__}: {error}"))


@contextmanager
def hidden_gpus() -> Iterator[None]:
    """Hide all GPUs from imports that query them."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        yield
    finally:
        # Removed first: an import may have set it in the meantime.
        del os.environ["CUDA_VISIBLE_DEVICES"]
        os.environ |= {} if shown is None else {"CUDA_VISIBLE_DEVICES": shown}


@contextmanager
def forks_protected(what: str) -> Iterator[None]:
    """Run imports with GPUs hidden, then check that ranks can still be forked.

    InfrastructureError names the module that called into the driver. Nothing is checked on a node without a GPU, where
    no rank needs CUDA.
    """
    gpus, imported = gpu_table(), set(sys.modules)
    with hidden_gpus(), _callers() as callers:
        try:
            yield
        except Exception as error:
            if not (gpus and callers):
                raise
            raise InfrastructureError(_cuda_started(what, callers[0], str(error))) from error
    new = sorted({name.partition(".")[0] for name in sys.modules.keys() - imported})
    if gpus and (callers or new) and (trouble := in_child(_trouble, "checking that ranks can be forked")):
        raise InfrastructureError(_cuda_started(what, callers[0] if callers else f"one of {', '.join(new)}", trouble))


def _trouble() -> str:
    """Return why CUDA cannot be used in this just forked process; empty when it can."""
    if torch.cuda._is_in_bad_fork():
        return "torch refuses CUDA in forked processes"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _cuda_started(what: str, caller: str, trouble: str) -> str:
    return (
        f"{what} initialised CUDA in the process that forks the ranks, called by {caller}: {trouble}. Remove that "
        "package from the stack, or use a release of it that initialises CUDA lazily"
    )


@contextmanager
def _callers() -> Iterator[list[str]]:
    """Collect the modules that call into the driver while the body runs, in order."""
    callers: list[str] = []
    originals = {name: getattr(torch._C, name) for name in _INTO_DRIVER if hasattr(torch._C, name)}
    for name, function in originals.items():
        setattr(torch._C, name, _noting(function, callers))
    try:
        yield callers
    finally:
        for name, function in originals.items():
            setattr(torch._C, name, function)


def _noting(function: Any, callers: list[str]) -> Any:
    def noted(*args: Any) -> Any:
        frame = sys._getframe(1)
        # The first frame outside torch: the caller that a user can do something about.
        while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("torch", "ctypes"):
            frame = frame.f_back
        callers.append(f"{frame.f_globals.get('__name__')} ({frame.f_code.co_filename}:{frame.f_lineno})")
        return function(*args)

    return noted
