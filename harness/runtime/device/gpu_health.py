"""Whether the GPUs of a failed cell still compute, and what the kernel log says of them.

They are tested in a new process: the agent never initialises CUDA. Xid lines, if this user may read the kernel log,
name errors of a GPU's memory, bus, link or program.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from harness.core.cell.config import CellConfig
from harness.core.errors import DriverError
from harness.core.hardware import shown_gpus
from harness.core.run.records import CellResult
from harness.core.run.run_dir import AttemptDir, text_of
from harness.core.serialization import from_jsonable, loads
from harness.runtime.coordination.rendezvous import NodeResult, NodeShare, node_file, read

SIZE = 256  # rows of the test matrices: enough for a kernel, a copy and a synchronisation


def trouble_after(attempt: AttemptDir, config: CellConfig, share: NodeShare) -> str:
    """Return why the GPUs that a failed cell had on this node are unusable; empty when they work.

    The GPUs of cells that run beside it are not tested.
    """
    if config.device == "cpu" or _completed(attempt, share.node):
        return ""
    from harness.runtime.device.cuda_forks import gpu_table  # imports torch

    indices = range(min(share.size, len(gpu_table()))) if share.gpus is None else share.gpus
    return broken_gpus(indices)


def _completed(attempt: AttemptDir, node: int) -> bool:
    """Return whether, according to this node's files, every rank completed or none was started."""
    if attempt.result.exists():
        result = from_jsonable(CellResult, loads(text_of(attempt.result)))
        return result.status in ("completed", "rejected")
    here = read(NodeResult, node_file(attempt, node))
    return here is not None and all(rank.ended == "completed" for rank in here.ranks)


def broken_gpus(part: Sequence[int]) -> str:
    """Return why GPUs of this node are unusable; empty when they work. `part`: indices into CUDA_VISIBLE_DEVICES."""
    if not part:
        return ""
    from harness.runtime.device.cuda_forks import in_child

    def use() -> None:
        # In the child, before CUDA starts: the driver reads it once.
        os.environ["CUDA_VISIBLE_DEVICES"] = shown_gpus(part, os.environ.get("CUDA_VISIBLE_DEVICES"))
        for index in range(len(part)):
            compute(f"cuda:{index}")

    try:
        names = ("GPU " if len(part) == 1 else "GPUs ") + ", ".join(map(str, part))
        in_child(use, f"using {names} after a cell failed there")
    except DriverError as error:
        return str(error)
    return ""


def compute(device: str) -> None:
    """Compute a product whose result is known. RuntimeError when it is wrong; CUDA errors are passed on."""
    import torch

    ones = torch.ones(SIZE, SIZE, device=device)
    # Whole numbers up to 2**24, so that float32 is exact and any other sum is a broken GPU.
    total = float((ones @ ones).sum())
    if total != float(SIZE**3):
        raise RuntimeError(f"{device} computed {total:g} instead of {SIZE**3}")


KMSG = Path("/dev/kmsg")
_XID = re.compile(r"NVRM: Xid|NVRM: GPU .*fallen off the bus")
_MAX_RECORD = 8192  # maximum bytes of one record (Documentation/ABI/testing/dev-kmsg)


def xid_lines(since: float, source: Path = KMSG) -> list[str]:
    """Return the lines after `since` (seconds since boot, time.monotonic), formatted as by `dmesg`.

    Empty if unreadable.
    """
    lines = []
    for record in _kernel_records(source):
        head, _, text = record.partition(";")
        fields = head.split(",")
        line = text.split("\n", 1)[0]
        if len(fields) > 2 and fields[2].isdigit() and int(fields[2]) / 1e6 >= since and _XID.search(line):
            lines.append(f"[{int(fields[2]) / 1e6:12.6f}] {line}")
    return lines


def _kernel_records(source: Path) -> list[str]:
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return []
    records = []
    try:
        while data := os.read(descriptor, _MAX_RECORD):
            records += data.decode("utf-8", "replace").splitlines()
    except OSError:  # EAGAIN: end of the log; EPIPE: records were overwritten meanwhile
        pass
    finally:
        os.close(descriptor)
    return records
