"""Names of upstream that the harness looks up and the stack does not have, as after a rename in a checkout.

| looked up by | recognised by |
|---|---|
| an import | the module and the name of the ImportError |
| an attribute of a module, a class or an object | the object of the AttributeError |
| a keyword argument | the function that the TypeError names |
| an attribute that upstream sets: of a parameter, of its command line | likewise |
| UnknownNameError | the other way round: upstream asks the harness for a name that it does not know |
| a call of the harness by upstream, with other arguments | the function that the TypeError names |

Otherwise only the harness's own look-ups count, which say nothing about what the code computes. One of upstream's is
its own error. A project that is not installed at all is a gap in the environment.
"""

from __future__ import annotations

import re
import sys
import traceback
from argparse import Namespace
from types import ModuleType

from harness.core.outcomes import STACK_UNDER_TEST, Missing, Rejection
from harness.core.upstream import CODE, CODE_PACKAGES, DISTRIBUTIONS, HARNESS, KERNEL, deciding, owner_of
from harness.node.data_paths.lookup import checked_out, is_installed, release
from harness.node.recording.frames import frames_of

_NAME = re.compile(r"cannot import name '(?P<name>\w+)' from '[\w.]+' \((?!most likely)")
_CALL = re.compile(r"(?P<function>[A-Za-z_][\w.<>]*)\(\) (?:missing|takes|got an unexpected|got multiple)\b")
_ARGUMENT = re.compile(r"(?P<function>[A-Za-z_][\w.]*)\(\) got an unexpected keyword argument '(?P<name>\w+)'")


class UnknownNameError(Exception):
    """Upstream asks the harness for a name that it does not know; the text says which, and why."""


def absent_name(error: BaseException) -> str:
    """What is absent, in which stack, and what in the harness needs it; empty for any other error."""
    if isinstance(error, UnknownNameError):
        return str(error)
    error = _first(error)
    frames = frames_of(error)
    owner, frame = deciding(frames)
    by_upstream = CODE in {owner_of(one) for one in frames[-2:]}  # the last one may be the function that was called
    if by_upstream and (called := _called_otherwise(error)):
        return called
    module, name = _looked_up(error)
    top = module.partition(".")[0]
    if owner not in (HARNESS, KERNEL) or top not in CODE_PACKAGES or not is_installed(top):
        return ""
    file = frame.partition(":")[0]
    root = next((root for root in DISTRIBUTIONS.values() if f"{module}.".startswith(f"{root}.")), "megatron.core")
    folder = checked_out(root)
    where = f", looked for in the checkout {folder}" if folder else ""
    return f"{release(root)} has no {name}{where}; {file} needs it ({_purpose(error, file)})"


def lacking_name(error: BaseException) -> Missing | None:
    """The verdict on cells that need an absent name; None for any other error."""
    reason = absent_name(error)
    if not reason:
        return None
    how = "if that code is too old or too new for the cell, list it under `may_reject` of the matrix"
    rejection = Rejection(rule="stack.data_path", reason=reason, source=STACK_UNDER_TEST)
    return Missing(reason=f"{reason}; {how}", rejection=rejection)


def _first(error: BaseException) -> BaseException:
    """The error that upstream raised again in other words, as its build_module does; otherwise the error itself."""
    cause = error.__context__
    again = cause is not None and type(cause) is type(error) and str(error).startswith(str(cause))
    return _first(cause) if cause is not None and again else error


def _called_otherwise(error: BaseException) -> str:
    """Upstream's call of one of the harness's wrappers, which take the arguments of what they wrap as upstream's own
    callers give them; empty for other errors.
    """
    found = _CALL.match(str(error)) if isinstance(error, TypeError) else None
    file = _own_file(found["function"]) if found and not _module_of(found["function"]) else ""
    return f"upstream calls {file} otherwise than the releases that it knows: {error}" if file else ""


def _own_file(function: str) -> str:
    """The file of the harness that defines a function or method, by its qualified name; empty for none."""
    first = function.partition(".")[0]
    for name, module in list(sys.modules.items()):
        known = vars(module).get(first) if name.startswith("harness.node.") else None
        if known is not None and getattr(known, "__module__", "") == name:
            return f"{name.replace('.', '/')}.py"
    return ""


def _looked_up(error: BaseException) -> tuple[str, str]:
    """The module that was asked, and what it has not, e.g. "megatron.core.utils.get_batch"; "" for other errors."""
    text = str(error)
    if isinstance(error, ModuleNotFoundError):
        return error.name or "", error.name or ""
    if isinstance(error, ImportError):
        found = _NAME.match(text)
        return (error.name or "", f"{error.name}.{found['name']}") if found else ("", "")
    if isinstance(error, AttributeError):
        asked = error.obj
        if type(asked).__module__.partition(".")[0] == "torch":  # not imported here: agents set its threads first
            return "megatron.core", f"attribute {error.name} of parameters"
        if isinstance(asked, Namespace):
            return "megatron.training", f"argument {error.name} of its command line"
        if isinstance(asked, ModuleType):
            return asked.__name__, f"{asked.__name__}.{error.name}"
        kind = asked if isinstance(asked, type) else type(asked)
        return kind.__module__, f"{kind.__module__}.{kind.__qualname__}.{error.name}"
    if isinstance(error, TypeError) and (found := _ARGUMENT.match(text)):
        module = _module_of(found["function"])
        return module, f"argument {found['name']} of {module}.{found['function'].removesuffix('.__init__')}"
    return "", ""


def _module_of(function: str) -> str:
    """The module under test that defines a function or method, by its qualified name; empty for none."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in CODE_PACKAGES:
            continue
        first = vars(module).get(function.partition(".")[0])
        if first is not None and getattr(first, "__module__", "") == name:
            return name
    return ""


def _purpose(error: BaseException, file: str) -> str:
    """The first sentence of the docstring of the harness's file that looked the name up, innermost."""
    own = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename.endswith(file)]
    doc = str(own[-1].f_globals.get("__doc__") or "") if own else ""
    return re.split(r"\.(?:\s|$)", doc.strip(), maxsplit=1)[0].replace("\n", " ")
