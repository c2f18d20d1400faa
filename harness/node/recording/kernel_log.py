"""Xid lines of the kernel log, if this user may read it: errors of a GPU's memory, bus, link or program."""

from __future__ import annotations

import os
import re
from pathlib import Path

KMSG = Path("/dev/kmsg")
_XID = re.compile(r"NVRM: Xid|NVRM: GPU .*fallen off the bus")
_RECORD = 8192  # maximum bytes of one record (Documentation/ABI/testing/dev-kmsg)


def xid_lines(since: float, source: Path = KMSG) -> list[str]:
    """Lines after `since` (seconds since boot, time.monotonic), formatted as by `dmesg`; empty if unreadable."""
    found = []
    for record in _records(source):
        head, _, text = record.partition(";")
        fields = head.split(",")
        line = text.split("\n", 1)[0]
        if len(fields) > 2 and fields[2].isdigit() and int(fields[2]) / 1e6 >= since and _XID.search(line):
            found.append(f"[{int(fields[2]) / 1e6:12.6f}] {line}")
    return found


def _records(source: Path) -> list[str]:
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return []
    records = []
    try:
        while data := os.read(descriptor, _RECORD):
            records += data.decode("utf-8", "replace").splitlines()
    except OSError:  # EAGAIN: end of the log; EPIPE: records were overwritten meanwhile
        pass
    finally:
        os.close(descriptor)
    return records
