"""Whether the software under test has what a data path calls.

That a release does not have a module or a name is a fact about the release: Rejection. In a checkout it is a change
under test, as after a rename: Missing, an ERROR, unless the matrix says that the cell may be rejected. A project that
is not installed, or a module that cannot be imported, proves nothing about the code under test: Missing too.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from harness.core.outcomes import STACK_UNDER_TEST, Missing, Rejection
from harness.core.upstream import distribution_of

Unavailable = Rejection | Missing | None
_HOW = "add it to `packages` of the stack"
_INSTALLED = {"site-packages", "dist-packages"}


def not_in_release(reason: str, root: str = "") -> Rejection | Missing:
    """Return the verdict on a project that does not have what the data path needs; `reason` names its release.

    `root`: the project's top package, e.g. "megatron.core"; empty: a limit of the harness, or of a plug-in.
    """
    rejection = Rejection(rule="stack.data_path", reason=reason, source=STACK_UNDER_TEST)
    return lacking(root, rejection) if root else rejection


def lacking(root: str, rejection: Rejection) -> Rejection | Missing:
    """Return the verdict on the project with top package `root` if its code lacks something: what is absent in a wheel,
    its release does not have; what is absent in a checkout may have been renamed.
    """
    folder = checked_out(root)
    if folder is None:
        return rejection
    reason = f"{rejection.reason} (rule {rejection.rule}), looked for in the checkout {folder}"
    how = "if that code is too old or too new for this cell, list it under `may_reject` of the matrix"
    return Missing(reason=f"{reason}; {how}", rejection=rejection)


def checked_out(root: str) -> Path | None:
    """Return the folder that holds a project's top package; None if the package is installed, as a wheel is, or not
    there.
    """
    module = sys.modules.get(root)
    spec = (
        getattr(module, "__spec__", None) if module else importlib.util.find_spec(root) if is_installed(root) else None
    )
    file = getattr(module, "__file__", None) or getattr(spec, "origin", None)
    if file is None:  # a namespace package
        file = next(
            (f"{folder}/__init__.py" for folder in getattr(spec, "submodule_search_locations", None) or ()), None
        )
    if file is None:
        return None
    found = Path(file).resolve()  # links of a package manager lead out of the environment
    return None if _INSTALLED & {*Path(file).parts, *found.parts} else found.parents[root.count(".") + 1]


def module_unavailable(module: str, root: str, *names: str) -> Unavailable:
    """Import a module of the project with top package `root`, e.g. "megatron.bridge"; None when that works and the
    module has all `names`.
    """
    try:
        found = importlib.import_module(module)
    except Exception as error:
        return import_failure(module, root, error)
    absent = next((name for name in names if not hasattr(found, name)), None)
    return not_in_release(f"{release(root)} has no {module}.{absent}", root) if absent else None


def import_failure(module: str, root: str, error: Exception) -> Rejection | Missing:
    """Return the verdict on an import that raised `error`."""
    if not is_installed(root):
        return Missing(reason=f"{distribution_of(root)} is not installed in this stack, but {module} is needed; {_HOW}")
    absent = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
    if absent and absent != root and f"{module}.".startswith(f"{absent}.") and not root.startswith(f"{absent}."):
        return not_in_release(f"{release(root)} has no {module}", root)
    kind = type(error).__name__
    top = absent.partition(".")[0] if absent else ""
    hint = f"; install {top}: {_HOW}" if top and not is_installed(top) else ""
    return Missing(reason=f"{module} of {release(root)} cannot be imported: {kind}: {error}{hint}")


def none_of(*found: Rejection | Missing) -> Rejection | Missing:
    """Return the verdict when one of several modules is enough and none is there: a Rejection only if all are
    Rejections.
    """
    reason = "; ".join(dict.fromkeys(one.reason for one in found))
    if all(isinstance(one, Rejection) for one in found):
        return not_in_release(reason)
    known = [one if isinstance(one, Rejection) else one.rejection for one in found]
    allowed = next(iter(known)) if all(known) else None
    return Missing(reason=reason, rejection=allowed)


def takes(function: Callable[..., Any], name: str) -> bool:
    """Return whether a function takes an argument by this name, as one does that passes on all it is given."""
    known = inspect.signature(function).parameters
    return name in known or any(one.kind is inspect.Parameter.VAR_KEYWORD for one in known.values())


def is_installed(root: str) -> bool:
    """Return whether a package can be found; it is not imported."""
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
