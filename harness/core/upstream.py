"""The upstream code that a stack puts under test: its distributions, its modules, and its frames in stacks.

The owner of the code in a frame alone decides what an error is blamed on. As text, a frame is
"megatron/core/utils.py:12 in name": the file relative to the folder of its package, so that records of two machines can
be compared and contain no local paths. A script in the root of a checkout is "./train_rl.py:12 in name".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from harness.upstreams.table import PROJECTS

_BESIDE = {"transformer-engine": "transformer_engine", "torch": "torch"}
# Modules of the wheel and of checkouts of Megatron-LM that no distribution is named after.
TRAINING_MODULES = ("megatron.training", "pretrain_gpt")
# The norm of Megatron's local layers.
TORCH_NORM = "megatron.core.transformer.torch_norm.WrappedTorchNorm"
# Matrices run releases from 0.14 and commits of 0.13; of older ones some data paths do not run, others crash.
OLDEST_CORE = (0, 13)


def distributions() -> dict[str, str]:
    """Return distribution -> its top module, of every project, those of plug-ins too.

    In the order in which they say what was under test, the most specific first.
    """
    return {project.distribution: project.modules[0] for project in PROJECTS.values()} | _BESIDE


def heads() -> tuple[str, ...]:
    """Return the modules whose version and file every rank records."""
    return (*distributions().values(), *TRAINING_MODULES)


def code_packages() -> tuple[str, ...]:
    """Return the top-level modules of the code under test."""
    modules = (module for project in PROJECTS.values() for module in project.modules)
    return tuple(dict.fromkeys(name.partition(".")[0] for name in (*modules, _BESIDE["transformer-engine"])))


def distribution_of(module: str) -> str:
    """Return the distribution of a top module, e.g. "megatron-bridge" of "megatron.bridge"."""
    named = {top: name for name, top in distributions().items()}
    return named.get(module, module.replace("_", "-"))


def why_unsupported(core: Path, what: str = "the harness", first: tuple[int, int] = OLDEST_CORE) -> str:
    """Return why the megatron.core in a folder is too old for `what`, which supports `first` and later; empty if it is
    not.

    The version is read, not imported: the modules of an old release may not even be imported.
    """
    info = core / "package_info.py"
    text = info.read_text(encoding="utf-8", errors="replace") if info.is_file() else ""
    numbers = [re.search(rf"^{part} *= *(\d+)", text, re.M) for part in ("MAJOR", "MINOR", "PATCH")]
    version = [int(found[1]) for found in numbers if found]
    if len(version) < 3 or tuple(version[:2]) >= first:
        return ""
    oldest = ".".join(map(str, first))
    return f"{core} is megatron-core {'.'.join(map(str, version))}, and {what} supports {oldest} and later"


CODE = "code"  # the code under test
HARNESS = "harness"
KERNEL = "kernel"  # the harness's replacement of a kernel: it may refuse what the real one accepts
UNOWNED = "unowned"  # torch, the standard library, other packages: what they raise is blamed on their caller

_FAULT = re.compile(r"harness/(faults/node_|\w+/\w+/node_faults)")  # injected faults count as upstream code
_KERNELS = (
    "harness/runtime/device/cpu_stubs.py:",
    "harness/features/attention/node_reference.py:",
)
# What the real kernel does not take either: tests in cpu_stubs.py.
_NO_KERNEL_TAKES = "harness/runtime/device/cpu_stubs.py:", (" in _require_ascending", " in _require_tensor")
# Wheels contain no pretrain_gpt: these functions copy the release's get_batch line by line, with its assertions.
_FOLLOWS_UPSTREAM = "harness/upstreams/megatron_lm/node_sft_wheel.py:"
_FOLLOWERS = (" in _of_iterator", " in _of_batch", " in _params")
_FORWARDS = (  # calls of torch, with another device or through host memory
    "harness/runtime/device/cpu_factories.py:",
    "harness/runtime/device/gloo_stubs.py:",
)
_PACKAGES = ("/site-packages/", "/dist-packages/")
_ROOT = "./"  # before the name of a script in the root of a checkout


def frame_text(file: str, line: int, function: str, paths: Sequence[str], roots: Collection[str] = ()) -> str:
    """Return the frame as text. `file` is absolute; `paths`: the folders of the module search path; `roots`: of
    checkouts.
    """
    folder, _, name = file.rpartition("/")
    return f"{f'{_ROOT}{name}' if folder in roots else _relative(file, paths)}:{line} in {function}"


def owner_of(frame: str) -> str:
    """Return the owner of a frame's code: CODE, HARNESS, KERNEL or UNOWNED."""
    if frame.startswith(_FORWARDS):
        return UNOWNED
    follows = frame.startswith(_FOLLOWS_UPSTREAM) and frame.endswith(_FOLLOWERS)
    if follows or frame.startswith(_ROOT) or _FAULT.match(frame):
        return CODE
    if frame.startswith(_KERNELS):
        return KERNEL
    top = frame.partition(":")[0].partition("/")[0].removesuffix(".py")
    return CODE if top in code_packages() else HARNESS if top == "harness" else UNOWNED


def deciding(frames: Iterable[str]) -> tuple[str, str]:
    """(owner, frame) of the innermost frame that has an owner; (UNOWNED, "") if none has.

    `frames`: innermost last. What no kernel takes is not the replacement's limit, but its caller's.
    """
    frames = list(frames)
    file, functions = _NO_KERNEL_TAKES
    if frames and frames[-1].startswith(file) and frames[-1].endswith(functions):
        frames = [frame for frame in frames if owner_of(frame) != KERNEL]
    owned = [(owner, frame) for frame in frames if (owner := owner_of(frame)) != UNOWNED]
    return owned[-1] if owned else (UNOWNED, "")


def _relative(file: str, paths: Sequence[str]) -> str:
    for mark in _PACKAGES:
        if mark in file:
            return file.rpartition(mark)[2]
    parents = [path.rstrip("/") for path in paths if path and file.startswith(f"{path.rstrip('/')}/")]
    return file[len(max(parents, key=len)) + 1 :] if parents else file.rpartition("/")[2]
