"""Stack frames of exceptions and stack dumps, from which the judge assigns blame."""

from __future__ import annotations

import errno
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

from harness.core.upstream import frame_text

_CRASH = "Fatal Python error"
MOST = 40  # innermost frames to keep
_HEAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$", re.M)
_FRAME = re.compile(r'^  File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<name>.+)$', re.M)
_TIMEOUT = re.compile(r"^Timeout \(\d+:\d\d:\d\d", re.M)
# Where a rank waits for others: torch's own collectives, and Megatron's point-to-point calls between stages.
_COLLECTIVE = re.compile(r"(?:distributed_c10d|_functional_collectives|p2p_communication)\.py:\d+ in (\w+)$")
_CALLEE = re.compile(r"^(?P<name>[A-Za-z_][\w.]*)\(\) (?:got|missing|takes)\b")


def frames_of(error: BaseException) -> list[str]:
    """Frames of an exception, innermost last.

    When a call does not match the signature of a harness function, Python raises the TypeError in the caller; that
    function is then added as the last frame.
    """
    roots = checkout_roots()
    found = [
        frame_text(item.filename, item.lineno or 0, item.name, sys.path, roots)
        for item in traceback.extract_tb(error.__traceback__)
    ]
    called = _CALLEE.match(str(error)) if isinstance(error, TypeError) else None
    function = _own_function(called["name"]) if called else None
    if function is not None:
        code = function.__code__
        found.append(frame_text(code.co_filename, code.co_firstlineno, function.__qualname__, sys.path))
    return found[-MOST:]


def checkout_roots() -> set[str]:
    """The folders of the module search path that are the root of a checkout of Megatron-LM, with its scripts."""
    folders = {path.rstrip("/") for path in sys.path if path}
    return {folder for folder in folders if Path(folder, "megatron", "core").is_dir() and not _installed(folder)}


def _installed(folder: str) -> bool:
    return Path(folder).name in ("site-packages", "dist-packages")


def _own_function(qualified: str) -> FunctionType | None:
    """The function of the harness with this qualified name, or None."""
    for name, module in list(sys.modules.items()):
        if not name.startswith("harness."):
            continue
        value: Any = module
        for part in qualified.split("."):
            value = vars(value).get(part) if hasattr(value, "__dict__") else None
        if isinstance(value, FunctionType) and value.__module__ == name:
            return value
    return None


def errno_of(error: BaseException) -> str:
    """errno name, e.g. "ESTALE", of the first OSError in an exception's chain; empty when there is none."""
    for item in _chain(error):
        if isinstance(item, OSError) and item.errno is not None:
            return errno.errorcode.get(item.errno, str(item.errno))
    return ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    item: BaseException | None = error
    while item is not None and id(item) not in seen:
        seen.add(id(item))
        yield item
        item = item.__cause__ or (None if item.__suppress_context__ else item.__context__)


def stack_of(log: str) -> list[str] | None:
    """Frames of one thread in a log's last stack dump, innermost last; None when there is no dump.

    The thread is one that waits in a collective, if any (on a GPU, backward has its own thread), else the main thread,
    which is last in a dump.
    """
    starts = [match.start() for match in _TIMEOUT.finditer(log)]
    text = (log[starts[-1] :] if starts else log).partition(_CRASH)[0]  # without the dump of a later crash
    roots = checkout_roots()
    threads = []
    heads = list(_HEAD.finditer(text))
    for head, following in zip(heads, [*heads[1:], None]):
        block = text[head.end() : following.start() if following else len(text)]
        frames = [
            frame_text(match["file"], int(match["line"]), match["name"], sys.path, roots)
            for match in _FRAME.finditer(block)
        ]
        threads.append(frames[:MOST][::-1])
    if not threads:
        return None
    return next((frames for frames in reversed(threads) if collective_in(frames)), threads[-1])


def collective_in(frames: list[str]) -> str | None:
    """The innermost collective or pipeline function of a stack; `frames` innermost last."""
    found = (_COLLECTIVE.search(frame) for frame in reversed(frames))
    return next((match[1] for match in found if match), None)
