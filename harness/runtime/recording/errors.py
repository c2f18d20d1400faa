"""What an exception or a stack dump says: its frames, from which the judge assigns blame, and names that it is about.

Names of upstream that the harness looks up may be absent from the stack, as after a rename in a checkout:

| looked up by | recognised by |
|---|---|
| an import | the module and the name of the ImportError |
| an attribute of a module, a class or an object | the object of the AttributeError |
| a keyword argument | the function that the TypeError names |
| an attribute that upstream sets: of a parameter, of its command line | the object of the AttributeError |
| UnknownNameError | the other way round: upstream asks the harness for a name that it does not know |
| a call of the harness by upstream, with other arguments | the function that the TypeError names |

Otherwise only the harness's own look-ups count, which say nothing about what the code computes. One of upstream's is
its own error. A project that is not installed at all is a gap in the environment.

Upstream's parser or validation may refuse a configuration. The harness chose it, or `args` did, so a refusal says
nothing about the code that would have run:

| refused by | recognised by |
|---|---|
| a parser, which prints and exits | a frame of argparse |
| parse_args, validate_args and all else in Megatron-LM's arguments.py | the file |
| the norms of latent attention, which need Transformer Engine without a low-rank query | the file |
| a configuration, e.g. TransformerConfig.__post_init__, ConfigContainer.validate | the method and its class |
| a configuration with other fields than those that it is given | the TypeError of its __init__ |
| validate_cfg and the like | the function |
"""

from __future__ import annotations

import ast
import errno
import re
import sys
import traceback
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

from harness.core.outcomes import STACK_UNDER_TEST, Missing, Rejection
from harness.core.upstream import CODE, HARNESS, KERNEL, code_packages, deciding, distributions, frame_text, owner_of
from harness.upstreams.node_lookup import checked_out, is_installed, release

_LATER_CRASH = "Fatal Python error"
MAX_FRAMES = 40  # innermost frames to keep
_HEAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$", re.M)
_FRAME = re.compile(r'^  File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<name>.+)$', re.M)
_TIMEOUT = re.compile(r"^Timeout \(\d+:\d\d:\d\d", re.M)
# Where a rank waits for others: torch's own collectives, and Megatron's point-to-point calls between stages.
_COLLECTIVE = re.compile(r"(?:distributed_c10d|_functional_collectives|p2p_communication)\.py:\d+ in (\w+)$")
_CALLEE = re.compile(r"^(?P<name>[A-Za-z_][\w.]*)\(\) (?:got|missing|takes)\b")


def frames_of(error: BaseException) -> list[str]:
    """Return the frames of an exception, innermost last.

    When a call does not match the signature of a harness function, Python raises the TypeError in the caller; that
    function is then added as the last frame.
    """
    roots = checkout_roots()
    frames = [
        frame_text(summary.filename, summary.lineno or 0, summary.name, sys.path, roots)
        for summary in traceback.extract_tb(error.__traceback__)
    ]
    called = _CALLEE.match(str(error)) if isinstance(error, TypeError) else None
    function = _function_of_harness(called["name"]) if called else None
    if function is not None:
        code = function.__code__
        frames.append(frame_text(code.co_filename, code.co_firstlineno, function.__qualname__, sys.path))
    return frames[-MAX_FRAMES:]


def checkout_roots() -> set[str]:
    """Return the folders of the module search path that are the root of a checkout of Megatron-LM, with its scripts."""
    folders = {path.rstrip("/") for path in sys.path if path}
    return {folder for folder in folders if Path(folder, "megatron", "core").is_dir() and not _installed(folder)}


def _installed(folder: str) -> bool:
    return Path(folder).name in ("site-packages", "dist-packages")


def _function_of_harness(qualified: str) -> FunctionType | None:
    """Return the function of the harness with this qualified name, or None."""
    for name, module in list(sys.modules.items()):
        if not name.startswith("harness."):
            continue
        value: Any = module
        for part in qualified.split("."):
            value = vars(value).get(part) if hasattr(value, "__dict__") else None
        # The module must be the one that defines it: other modules that import the name would match too.
        if isinstance(value, FunctionType) and value.__module__ == name:
            return value
    return None


def errno_of(error: BaseException) -> str:
    """Return the errno name, e.g. "ESTALE", of the first OSError in an exception's chain; empty when there is none."""
    for cause in _chain(error):
        if isinstance(cause, OSError) and cause.errno is not None:
            return errno.errorcode.get(cause.errno, str(cause.errno))
    return ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    visited: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in visited:
        visited.add(id(link))
        yield link
        # As Python itself chains tracebacks: `raise ... from None` means that the context explains nothing.
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def stack_of(log: str) -> list[str] | None:
    """Return the frames of one thread in a log's last stack dump, innermost last; None when there is no dump.

    The thread is one that waits in a collective, if any (on a GPU, backward has its own thread), else the main thread,
    which is last in a dump.
    """
    starts = [match.start() for match in _TIMEOUT.finditer(log)]
    text = (log[starts[-1] :] if starts else log).partition(_LATER_CRASH)[0]  # without the dump of a later crash
    roots = checkout_roots()
    threads = []
    heads = list(_HEAD.finditer(text))
    for head, following in zip(heads, [*heads[1:], None]):
        block = text[head.end() : following.start() if following else len(text)]
        frames = [
            frame_text(match["file"], int(match["line"]), match["name"], sys.path, roots)
            for match in _FRAME.finditer(block)
        ]
        threads.append(frames[:MAX_FRAMES][::-1])
    if not threads:
        return None
    return next((frames for frames in reversed(threads) if collective_in(frames)), threads[-1])


def collective_in(frames: list[str]) -> str | None:
    """Return the innermost collective or pipeline function of a stack; `frames` innermost last."""
    matches = (_COLLECTIVE.search(frame) for frame in reversed(frames))
    return next((match[1] for match in matches if match), None)


_NOT_IMPORTED = re.compile(r"cannot import name '(?P<name>\w+)' from '[\w.]+' \((?!most likely)")
_CALLED = re.compile(r"(?P<function>[A-Za-z_][\w.<>]*)\(\) (?:missing|takes|got an unexpected|got multiple)\b")
_UNEXPECTED_ARGUMENT = re.compile(
    r"(?P<function>[A-Za-z_][\w.]*)\(\) got an unexpected keyword argument '(?P<name>\w+)'"
)


class UnknownNameError(Exception):
    """Upstream asks the harness for a name that it does not know; the text says which, and why."""


def absent_name(error: BaseException) -> str:
    """Return what is absent, in which stack, and what in the harness needs it; empty for any other error."""
    if isinstance(error, UnknownNameError):
        return str(error)
    error = _first_raised(error)
    frames = frames_of(error)
    owner, frame = deciding(frames)
    by_upstream = CODE in {
        owner_of(innermost) for innermost in frames[-2:]
    }  # the last may be the function that was called
    if by_upstream and (called := _called_otherwise(error)):
        return called
    module, name = _looked_up(error)
    top = module.partition(".")[0]
    # Only a look-up by the harness is about the stack; one inside upstream is a bug there, and a project that is absent
    # is another error.
    if owner not in (HARNESS, KERNEL) or top not in code_packages() or not is_installed(top):
        return ""
    file = frame.partition(":")[0]
    root = next((root for root in distributions().values() if f"{module}.".startswith(f"{root}.")), "megatron.core")
    folder = checked_out(root)
    where = f", looked for in the checkout {folder}" if folder else ""
    return f"{release(root)} has no {name}{where}; {file} needs it ({_purpose(error, file)})"


def lacking_name(error: BaseException) -> Missing | None:
    """Return the verdict on cells that need an absent name; None for any other error."""
    reason = absent_name(error)
    if not reason:
        return None
    how = "if that code is too old or too new for the cell, list it under `may_reject` of the matrix"
    rejection = Rejection(rule="stack.data_path", reason=reason, source=STACK_UNDER_TEST)
    return Missing(reason=f"{reason}; {how}", rejection=rejection)


def _first_raised(error: BaseException) -> BaseException:
    """Return the error that upstream raised again in other words, as its build_module does.

    Otherwise the error itself.
    """
    cause = error.__context__
    again = cause is not None and type(cause) is type(error) and str(error).startswith(str(cause))
    return _first_raised(cause) if cause is not None and again else error


def _called_otherwise(error: BaseException) -> str:
    """Return upstream's call of one of the harness's wrappers, which take the arguments of what they wrap as upstream's
    own callers give them; empty for other errors.
    """
    called = _CALLED.match(str(error)) if isinstance(error, TypeError) else None
    file = _file_of_harness(called["function"]) if called and not _module_of(called["function"]) else ""
    return f"upstream calls {file} with other arguments than the releases that it knows: {error}" if file else ""


def _file_of_harness(function: str) -> str:
    """Return the file of the harness that defines a function or method, by its qualified name; empty for none."""
    first = function.partition(".")[0]
    for name, module in list(sys.modules.items()):
        defined = vars(module).get(first) if name.startswith("harness.") else None
        if defined is not None and getattr(defined, "__module__", "") == name:
            return f"{name.replace('.', '/')}.py"
    return ""


def _looked_up(error: BaseException) -> tuple[str, str]:
    """Return the module that was asked, and what it has not, e.g. "megatron.core.utils.get_batch".

    "" for other errors.
    """
    text = str(error)
    if isinstance(error, ModuleNotFoundError):
        return error.name or "", error.name or ""
    if isinstance(error, ImportError):
        match = _NOT_IMPORTED.match(text)
        return (error.name or "", f"{error.name}.{match['name']}") if match else ("", "")
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
    if isinstance(error, TypeError) and (match := _UNEXPECTED_ARGUMENT.match(text)):
        module = _module_of(match["function"])
        return module, f"argument {match['name']} of {module}.{match['function'].removesuffix('.__init__')}"
    return "", ""


def _module_of(function: str) -> str:
    """Return the module under test that defines a function or method, by its qualified name; empty for none."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in code_packages():
            continue
        first = vars(module).get(function.partition(".")[0])
        if first is not None and getattr(first, "__module__", "") == name:
            return name
    return ""


def _purpose(error: BaseException, file: str) -> str:
    """Return the first sentence of the docstring of the harness's file that looked the name up, innermost."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename.endswith(file)]
    doc = str(frames[-1].f_globals.get("__doc__") or "") if frames else ""
    return re.split(r"\.(?:\s|$)", doc.strip(), maxsplit=1)[0].replace("\n", " ")


_ARGUMENT_FILES = ("arguments.py", "argument_utils.py", "yaml_arguments.py", "mla_qk_norm_config.py")
_VALIDATING_FUNCTIONS = re.compile(r"(parse|validate|check)_(\w+_)?(args|arguments|cfg|config)")
_VALIDATING_METHODS = ("__post_init__", "validate", "finalize")
_CONFIG_CLASSES = re.compile(r"\w*(Config|ConfigContainer|Args|Arguments)")
_OTHER_FIELDS = re.compile(rf"(?P<name>{_CONFIG_CLASSES.pattern})\.__init__\(\) (got an unexpected|missing)")
_LONGEST = 80  # characters of a value


def words_of(error: BaseException) -> str:
    """Return what the exception says: its text, or what upstream's parser printed before it exited."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if _parser_ends(frame):
            # argparse prints its message and raises SystemExit(2), whose text is "2".
            return str(frame.f_locals.get("message", error))
    return str(error)


def refusal_of(error: BaseException) -> str:
    """Return the arguments that upstream refused, e.g. "upstream needs --lr, which is not set".

    Empty for other exceptions.

    Also empty if upstream's validation called the harness, e.g. a CPU stub, which raised.
    """
    # Python raises it in the caller, so that no frame of the configuration shows in the traceback.
    if isinstance(error, TypeError) and (called := _OTHER_FIELDS.match(str(error))):
        return f"upstream's {called['name']} has other fields"
    if deciding(frames_of(error))[0] != CODE:
        return ""
    steps = list(traceback.walk_tb(error.__traceback__))
    first = next((number for number, (frame, _) in enumerate(steps) if _validates(frame)), None)
    if first is None:
        return ""
    # Innermost first: validation calls helpers, and the one that raised knows which arguments it read.
    for frame, line in reversed(steps[first:]):
        if values := dict(_values_read(frame, line)):
            return _refusal_text(values)
    return "upstream refuses the configuration"


def _validates(frame: FrameType) -> bool:
    code = frame.f_code
    if _parser_ends(frame):
        return True
    if owner_of(frame_text(code.co_filename, 0, code.co_name, sys.path, checkout_roots())) != CODE:
        return False
    if Path(code.co_filename).name in _ARGUMENT_FILES or _VALIDATING_FUNCTIONS.fullmatch(code.co_name):
        return True
    return code.co_name in _VALIDATING_METHODS and bool(
        _CONFIG_CLASSES.fullmatch(type(frame.f_locals.get("self")).__name__)
    )


def _parser_ends(frame: FrameType) -> bool:
    return frame.f_code.co_name == "error" and Path(frame.f_code.co_filename).name == "argparse.py"


def _values_read(frame: FrameType, line: int) -> Iterator[tuple[str, Any]]:
    """Yield (argument or field, value) of each one that the condition or statement at a line reads, in its order."""
    try:
        tree = ast.parse(Path(frame.f_code.co_filename).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return
    attributes = [node for node in ast.walk(_condition(tree, line)) if isinstance(node, ast.Attribute)]
    for node in sorted(attributes, key=lambda node: (node.lineno, node.col_offset)):
        root, *path = ast.unparse(node).split(".")
        value = frame.f_locals.get(root)
        # Other objects have attributes too, but only these two kinds hold what a user can set.
        if not (isinstance(value, Namespace) or is_dataclass(value)):
            continue
        flag = f"--{'.'.join(path).replace('_', '-')}" if isinstance(value, Namespace) else ".".join(path)
        for name in path:
            value = vars(value).get(name, ...) if hasattr(value, "__dict__") else ...
        if value is None or isinstance(value, (bool, int, float, str)):
            yield flag, value


def _condition(tree: ast.AST, line: int) -> ast.AST:
    """Return what decided at a line: the test of an assertion, or of the `if` around a `raise`; else the statement."""
    around: list[ast.AST] = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    around.sort(key=lambda node: getattr(node, "lineno", 0))
    tests = [node for node in around if isinstance(node, (ast.Assert, ast.If))]
    if tests and tests[-1].lineno == tests[-1].end_lineno:  # `if` and its body on one line
        return tests[-1]
    if around and isinstance(around[-1], (ast.Raise, ast.Assert, ast.If)) and tests:
        return tests[-1].test
    return around[-1] if around else tree


def _refusal_text(values: dict[str, Any]) -> str:
    unset = [name for name, value in values.items() if value is None]
    others = ", ".join(f"{name} {str(value)[:_LONGEST]}" for name, value in values.items() if value is not None)
    if not unset:
        return f"upstream refuses {others}"
    needed = f"upstream needs {' or '.join(unset)}, which {'is' if len(unset) == 1 else 'are'} not set"
    return f"{needed}, with {others}" if others else needed
