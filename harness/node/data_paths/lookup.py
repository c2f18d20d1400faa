"""Whether the software under test has what a data path calls.

That a release does not have a module or a name is a fact about the release: Rejection. A project that is not installed,
or a module that cannot be imported, proves nothing about the code under test: Missing, an ERROR.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.metadata import PackageNotFoundError, version

from harness.core.outcomes import STACK_UNDER_TEST, Missing, Rejection
from harness.core.upstream import distribution_of

Unavailable = Rejection | Missing | None
_HOW = "add it to `packages` of the stack"


def not_in_release(reason: str) -> Rejection:
    """The Rejection for a release that does not have what the data path needs; `reason` names the release."""
    return Rejection(rule="stack.data_path", reason=reason, source=STACK_UNDER_TEST)


def module_unavailable(module: str, root: str) -> Unavailable:
    """Import a module of the project with top package `root`, e.g. "megatron.bridge"; None when that works."""
    try:
        importlib.import_module(module)
    except Exception as error:
        return import_failure(module, root, error)
    return None


def import_failure(module: str, root: str, error: Exception) -> Rejection | Missing:
    """The verdict on an import that raised `error`."""
    if not is_installed(root):
        return Missing(reason=f"{distribution_of(root)} is not installed in this stack, but {module} is needed; {_HOW}")
    absent = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
    if absent and absent != root and f"{module}.".startswith(f"{absent}.") and not root.startswith(f"{absent}."):
        return not_in_release(f"{release(root)} has no {module}")
    kind = type(error).__name__
    hint = f"; install {absent.split('.')[0]}: {_HOW}" if absent else ""
    return Missing(reason=f"{module} of {release(root)} cannot be imported: {kind}: {error}{hint}")


def none_of(*lacking: Rejection | Missing) -> Rejection | Missing:
    """The verdict when one of several modules is enough and none is there: a Rejection only if all are Rejections."""
    reason = "; ".join(dict.fromkeys(one.reason for one in lacking))
    return not_in_release(reason) if all(isinstance(one, Rejection) for one in lacking) else Missing(reason=reason)


def is_installed(root: str) -> bool:
    """Whether a package can be found; it is not imported."""
    try:
        return importlib.util.find_spec(root) is not None
    except (ImportError, ValueError):
        return root in sys.modules


def release(root: str) -> str:
    """Name and version of a project, e.g. "megatron-bridge 0.5.0"."""
    own = getattr(sys.modules.get(root), "__version__", None)
    try:
        return f"{distribution_of(root)} {own or version(distribution_of(root))}"
    except PackageNotFoundError:
        return f"this checkout of {distribution_of(root)}"
