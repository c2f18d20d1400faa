"""Errors of each kind, raised in frames of each kind, recorded by the real recorder and classified by the judge."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.core.cell.layout import Coordinates
from harness.core.run.records import Failure, Progress, RankRecord
from harness.core.run.run_dir import write_json
from harness.core.serialization import from_jsonable, loads
from harness.faults.node_endings import ExceptionAtStep1
from harness.judge.failures.classification import blame_of
from harness.probe.hooks.layers import PredictionRecorder
from harness.runtime.device import cpu_stubs
from harness.runtime.recording.recorder import Recorder
from harness.upstreams.node_base import RankContext
from tests.runtime.conftest import config, upstream_module

PLACE = Coordinates(tp=1, cp=0, dp=0, pp=0)
UPSTREAM = """
def fails(error):
    raise error


def calls(function, *args, **kwargs):
    return function(*args, **kwargs)


def adds(left, right):
    return left + right


def chained(error):
    try:
        raise error
    except OSError as cause:
        raise ValueError("cannot read the index") from cause
"""


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return upstream_module(tmp_path_factory.mktemp("upstream"), UPSTREAM)


def recorded(tmp_path: Path, act: Callable[[], Any]) -> Failure:
    """The failure that the real recorder writes for what `act` raises, read back from its file."""
    recorder = Recorder(RankRecord(cell="cell", rank=1, place=PLACE), tmp_path / "ranks" / "rank-00001.json")
    with pytest.raises(BaseException) as caught:
        act()
    recorder.fail(caught.value)
    failure = from_jsonable(RankRecord, loads(recorder.path.read_text())).failure
    assert failure is not None
    return failure


def blamed(failure: Failure, leg: str = "training", phase: str = "forward") -> tuple[str, str]:
    found = blame_of(failure, Progress(leg=leg, phase=phase))
    return found.domain, found.pattern.name


def hook(watch: Any) -> Callable[..., Any]:
    """A hook of the harness, called without inputs."""
    return lambda: PredictionRecorder._before_output(watch, torch.nn.Identity(), (), {})


class Hooked:
    losses, depths = ["one"], 1
    state = type("State", (), {"first_step": True})


KINDS = {
    "programming error": (TypeError("unsupported operand"), "code", "python-exception"),
    "assertion": (AssertionError("64 != 32"), "code", "python-exception"),
    "no memory": (
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        "code",
        "gpu-out-of-memory",
    ),
    "NaN": (RuntimeError("found NaN in local grad norm"), "code", "non-finite"),
    "kernel": (RuntimeError("CUDA error: an illegal memory access was encountered"), "code", "gpu-memory-access"),
    "wrong path": (FileNotFoundError(errno.ENOENT, "No such file", "a.idx"), "code", "python-exception"),
    "import": (ModuleNotFoundError("No module named 'apex'"), "unknown", "import-or-version"),
    "lost peer": (RuntimeError("[gloo] Connection closed by peer [127.0.0.1]:8092"), "unknown", "lost-peer"),
    "closed store": (
        torch.distributed.DistNetworkError("Failed to recv, got 0 bytes. Connection was likely closed."),
        "unknown",
        "lost-peer",
    ),
    "aborted communicator": (
        torch.distributed.DistBackendError("NCCL communicator was aborted on rank 0."),
        "unknown",
        "lost-peer",
    ),
    "other communication": (torch.distributed.DistError("it did not work"), "unknown", "lost-peer"),
    "store time-out": (torch.distributed.DistStoreError("Socket Timeout"), "unknown", "gloo-timeout"),
    "full disk below NCCL": (
        torch.distributed.DistBackendError("NCCL error: failed to extend /dev/shm/nccl-x: No space left on device"),
        "infrastructure",
        "disk-full",
    ),
    "NCCL call with wrong arguments": (
        torch.distributed.DistBackendError(
            "NCCL error in: x.cpp:3\nncclInvalidArgument: Invalid value for an argument."
        ),
        "code",
        "python-exception",
    ),
    "killed worker": (
        RuntimeError("DataLoader worker (pid 4242) is killed by signal: Killed. "),
        "unknown",
        "killed",
    ),
    "ENOMEM": (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "unknown", "host-out-of-memory"),
    "mmap": (
        RuntimeError("unable to mmap 8589934592 bytes from file </torch_1>: Cannot allocate memory (12)"),
        "unknown",
        "host-out-of-memory",
    ),
    "refused request": (
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000000000000000 bytes."),
        "code",
        "host-out-of-memory",
    ),
    "gloo and CUDA": (
        RuntimeError("ProcessGroupGloo::allreduce_coalesced: unsupported device type cuda"),
        "harness",
        "gloo-device",
    ),
    "no GPU": (RuntimeError("No CUDA GPUs are available"), "infrastructure", "gpu-unavailable"),
    "NCCL system error": (RuntimeError("NCCL error: unhandled system error"), "infrastructure", "network-error"),
    "NCCL internal error": (
        RuntimeError("ncclInternalError: Internal check failed."),
        "infrastructure",
        "network-error",
    ),
    "busy GPU": (RuntimeError("CUDA error: device(s) is/are busy or unavailable"), "infrastructure", "gpu-unavailable"),
    "fabric": (RuntimeError("CUDA error: system not yet initialized"), "infrastructure", "gpu-unavailable"),
    "NVLink": (RuntimeError("Invalid access of peer GPU memory over nvlink or"), "infrastructure", "gpu-hardware"),
    "no route": (OSError(errno.EHOSTUNREACH, "No route to host"), "infrastructure", "network-error"),
    **{
        name: (OSError(getattr(errno, name), os.strerror(getattr(errno, name))), "infrastructure", row)
        for name, row in (
            ("ESTALE", "storage-error"),
            ("EIO", "storage-error"),
            ("EROFS", "storage-error"),
            ("EACCES", "storage-error"),
            ("ENOLCK", "storage-error"),
            ("ENOSPC", "disk-full"),
            ("EDQUOT", "disk-full"),
        )
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_in_the_code_under_test_is_blamed_on_it_unless_the_system_caused_it(
    kind: str, tmp_path: Path, upstream: Any
) -> None:
    error, domain, row = KINDS[kind]
    failure = recorded(tmp_path, lambda: upstream.fails(error))
    assert failure.frames[-1].startswith("skyrl/simulated.py:")
    assert blamed(failure) == (domain, row)
    assert blamed(failure, phase="setup") == (domain, row), "errors while the model is built count as the code's, too"


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_in_the_harness_is_never_blamed_on_the_code_under_test(kind: str, tmp_path: Path) -> None:
    """Except asynchronous errors of kernels, which may come from the code under test."""
    error, domain, _ = KINDS[kind]
    failure = Failure(
        type=type(error).__name__,
        message=str(error),
        traceback="",
        time=1.0,
        frames=["skyrl/simulated.py:7 in calls", "harness/probe/hooks/layers.py:41 in _before_output"],
        errno=errno.errorcode.get(error.errno, "") if isinstance(error, OSError) else "",
    )
    found, row = blamed(failure)
    if kind in ("NaN", "kernel"):
        assert found == "code"
    elif domain == "code" and kind == "wrong path":
        assert (found, row) == ("infrastructure", "storage-error"), "a file that the harness opens"
    elif domain == "code" and kind not in ("no memory", "refused request"):
        assert (found, row) == ("harness", "harness-defect")
    elif domain == "harness":
        assert (found, row) == ("harness", KINDS[kind][2])
    else:
        assert found in ("infrastructure", "unknown")


def test_a_hook_that_upstream_calls_in_another_way_is_a_defect_of_the_harness(tmp_path: Path, upstream: Any) -> None:
    failure = recorded(tmp_path, lambda: upstream.calls(hook(Hooked())))
    assert failure.type == "IndexError"
    assert failure.frames[-1].startswith("harness/probe/hooks/")
    assert blamed(failure) == ("harness", "harness-defect")


def test_a_hook_that_upstream_calls_otherwise_is_blamed_on_neither_side(tmp_path: Path, upstream: Any) -> None:
    """The exception is raised in upstream's frame, although upstream's call is right: a fork may call it so."""
    hook = PredictionRecorder._before_output
    failure = recorded(tmp_path, lambda: upstream.calls(hook, Hooked(), None, None, weight=None))
    assert failure.message.startswith("PredictionRecorder._before_output() got an unexpected keyword argument")
    assert blamed(failure) == ("unknown", "absent-name")
    assert "upstream calls harness/probe/hooks/layers.py with other arguments" in failure.absent


def test_a_wrong_argument_of_upstream_to_its_own_function_is_blamed_on_upstream(tmp_path: Path, upstream: Any) -> None:
    assert blamed(recorded(tmp_path, lambda: upstream.calls(upstream.adds, 1, 2, scale=3)))[0] == "code"


def test_an_error_that_torch_raises_is_blamed_on_its_caller(tmp_path: Path, upstream: Any) -> None:
    failure = recorded(tmp_path, lambda: upstream.adds(torch.zeros(2), torch.zeros(3)))
    assert blamed(failure) == ("code", "python-exception")


def test_a_cpu_stub_that_raises_is_a_limit_of_the_stub(tmp_path: Path, upstream: Any) -> None:
    stub = cpu_stubs._thd_get_partitioned_indices
    offsets = torch.tensor([0, 8])
    failure = recorded(tmp_path, lambda: upstream.calls(stub, offsets, 16, 2, 0))
    assert blamed(failure) == ("harness", "replacement-kernel")
    assert failure.message == "cu_seqlens ends at 8, the row has 16 tokens"


@pytest.mark.parametrize("offsets", [None, [0, 16], torch.tensor([0, 16, -1])])
def test_offsets_that_the_real_kernel_refuses_too_are_blamed_on_upstream(
    offsets: Any, tmp_path: Path, upstream: Any
) -> None:
    stub = cpu_stubs._thd_get_partitioned_indices
    assert blamed(recorded(tmp_path, lambda: upstream.calls(stub, offsets, 16, 2, 0)))[0] == "code"


def test_an_injected_fault_is_blamed_like_upstream(tmp_path: Path) -> None:
    context = RankContext(config=config(tp=2), place=PLACE, device=None, folder=tmp_path)  # type: ignore[arg-type]
    failure = recorded(tmp_path, lambda: ExceptionAtStep1().on_step(context, 1))
    assert blamed(failure) == ("code", "python-exception")


def test_a_storage_error_in_the_chain_of_an_exception_counts(tmp_path: Path, upstream: Any) -> None:
    failure = recorded(tmp_path, lambda: upstream.chained(OSError(errno.ESTALE, "Stale file handle")))
    assert (failure.type, failure.errno) == ("ValueError", "ESTALE")
    assert blamed(failure) == ("infrastructure", "storage-error")


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO, errno.EROFS, errno.EACCES, errno.ENOLCK, errno.ENOENT])
@pytest.mark.parametrize("place", ["progress", "flush", "record"])
def test_storage_errors_on_the_files_of_a_rank_are_infrastructure(
    place: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    recorder = Recorder(RankRecord(cell="cell", rank=0, place=PLACE), tmp_path / "own" / "rank-00000.json")
    acts: dict[str, Callable[[], Any]] = {
        "progress": lambda: recorder.progress("training", 1, 0, "forward"),
        "flush": recorder.flush,
        "record": lambda: write_json(tmp_path / "other.json", recorder.record),
    }
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", broken)
        patch.setattr(Path, "replace", broken)
        with pytest.raises(OSError) as caught:
            acts[place]()
    failure = recorded(tmp_path, lambda: _raise(caught.value))
    assert blamed(failure) == ("infrastructure", "storage-error")


def _raise(error: BaseException) -> None:
    raise error


def test_a_torch_error_during_initialisation_is_not_a_defect_of_the_harness() -> None:
    frames = ["harness/runtime/rank.py:70 in _run", "harness/probe/run.py:90 in _join"]
    unknown = Failure(type="RuntimeError", message="it did not work", traceback="", time=1.0, frames=frames)
    assert blamed(unknown, "start", "setup") == ("unknown", "setup-error")
    refused = Failure(type="DistNetworkError", message="connection refused", traceback="", time=1.0, frames=frames)
    assert blamed(refused, "start", "setup") == ("infrastructure", "store-unreachable")
    wrong = Failure(type="TypeError", message="unexpected", traceback="", time=1.0, frames=frames)
    assert blamed(wrong, "start", "setup") == ("harness", "harness-defect")
