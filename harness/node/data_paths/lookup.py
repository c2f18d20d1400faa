"""Whether the software under test has what a data path calls.

A release without a module or a name is a fact about that release: Rejection. A project that is not installed, or whose
module fails on import, says nothing about the code under test: Missing, an ERROR.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.metadata import PackageNotFoundError, version

from harness.core.outcomes import Missing, Rejection
from harness.core.upstream import distribution_of

Lack = Rejection | Missing | None
_HOW = "add it to `packages` of the stack"


def lacks(reason: str) -> Rejection:
    """The release does not have what the data path needs; `reason` names the release."""
    return Rejection(rule="stack.data_path", reason=reason, source="the stack under test")


def module_lack(module: str, root: str) -> Lack:
    """Import a module of the project whose top package is `root`, e.g. "megatron.bridge"; None when that works."""
    try:
        importlib.import_module(module)
    except Exception as error:
        return why_not(module, root, error)
    return None


def why_not(module: str, root: str, error: Exception) -> Rejection | Missing:
    """What an import that raised means."""
    if not is_there(root):
        return Missing(reason=f"{distribution_of(root)} is not installed in this stack, and {module} is needed; {_HOW}")
    absent = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
    if absent and absent != root and f"{module}.".startswith(f"{absent}.") and not root.startswith(f"{absent}."):
        return lacks(f"{release(root)} has no {module}")
    kind = type(error).__name__
    needs = f"; install {absent.split('.')[0]}: {_HOW}" if absent else ""
    return Missing(reason=f"{module} of {release(root)} cannot be imported: {kind}: {error}{needs}")


def either(*lacking: Rejection | Missing) -> Rejection | Missing:
    """For modules of which one is enough: a Rejection only when every one of them is."""
    reason = "; ".join(dict.fromkeys(one.reason for one in lacking))
    return lacks(reason) if all(isinstance(one, Rejection) for one in lacking) else Missing(reason=reason)


def is_there(root: str) -> bool:
    """Whether a package can be found, without importing it."""
    try:
        return importlib.util.find_spec(root) is not None
    except (ImportError, ValueError):
        return root in sys.modules


def release(root: str) -> str:
    """E.g. "megatron-bridge 0.5.0"."""
    own = getattr(sys.modules.get(root), "__version__", None)
    try:
        return f"{distribution_of(root)} {own or version(distribution_of(root))}"
    except PackageNotFoundError:
        return f"this checkout of {distribution_of(root)}"
