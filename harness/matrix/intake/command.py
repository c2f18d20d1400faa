"""Shell text: from a pasted command or script to the words of the command that trains. Nothing is executed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

_COMMENT = re.compile(r"(?m)(^|\s)#.*$")
_ASSIGNED = re.compile(r"^(?:export\s+|local\s+|declare\s+(?:-\w+\s+)?)?([A-Za-z_]\w*)(\+?)=(.*)$", re.DOTALL)
_ARRAY = re.compile(r"\"?\$\{([A-Za-z_]\w*)\[[@*]\]\}\"?")
_NAME = r"[A-Za-z_]\w*|[0-9@*]"
_VARIABLE = re.compile(rf"\$(?:\{{({_NAME})(?::?-((?:[^{{}}]|\$\{{[^{{}}]*\}})*))?\}}|({_NAME}))")
_NUMBER = re.compile(r"-\.?\d")
_OPERATOR = re.compile(r"[|&;<>]+")
_COUNTS = ("nproc_per_node", "nnodes", "ntasks", "ntasks_per_node", "nodes")
_FIELD = re.compile(r"[+~]{0,2}[A-Za-z_][\w./@-]*=.*", re.DOTALL)  # an override of Hydra's


@dataclass
class Shell:
    """The assignments of a script so far; `missing` collects variables that nothing assigns."""

    variables: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, str] = field(default_factory=dict)
    missing: dict[str, None] = field(default_factory=dict)

    def expanded(self, text: str) -> str:
        """Return the text with its variables replaced, `${NAME:-default}` and arrays included."""
        for _ in range(20):  # a value may have variables itself
            replaced = _VARIABLE.sub(self._value, _ARRAY.sub(self._items, text))
            if replaced == text:
                break
            text = replaced
        return text

    def assign(self, name: str, value: str, *, add: bool) -> None:
        """Keep `NAME=value` or, for `NAME=(...)`, an array; `add`: it was written `+=`."""
        if value.startswith("("):
            items = value[1:].rstrip().removesuffix(")")
            self.arrays[name] = f"{self.arrays.get(name, '')} {items}" if add else items
            return
        plain = value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value
        plain = self.expanded(plain.split(" ")[0] if plain is value else plain)
        self.variables[name] = self.variables.get(name, "") + plain if add else plain

    def _items(self, found: re.Match[str]) -> str:
        if found[1] not in self.arrays:
            self.missing[found[1]] = None
            return ""
        return self.arrays[found[1]]

    def _value(self, found: re.Match[str]) -> str:
        name, default = found[1] or found[3], found[2]
        if name in self.variables:
            return self.variables[name]
        if name in self.arrays:
            return self.arrays[name]
        if default is not None:
            return default.strip("\"'")
        self.missing[name] = None
        return "0"


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command that trains, cut at its script."""

    launcher: tuple[str, ...]  # what stands in front, e.g. torchrun and its arguments
    script: str  # empty: the text begins with arguments
    words: tuple[str, ...]
    missing: tuple[str, ...] = ()  # shell variables in it that nothing assigns

    @property
    def ranks(self) -> int | None:
        """The world size, if the launcher says it in numbers."""
        counts = {}
        for word, after in zip(self.launcher, (*self.launcher[1:], "")):
            name, _, value = word.lstrip("-").replace("-", "_").partition("=")
            if word.startswith("--") and name in _COUNTS and (value or after).isdecimal():
                counts[name] = int(value or after)
        per_node = counts.get("nproc_per_node", counts.get("ntasks_per_node"))
        if per_node is None:
            return counts.get("ntasks")
        return per_node * counts.get("nnodes", counts.get("nodes", 1))


def command_in(text: str, is_script: Iterable[str]) -> Command:
    """Return the last command in the text whose script's name ends with one of `is_script`; else, arguments alone.

    Assignments in front of it count. ValueError, with what to do, if the text has neither.
    """
    shell, found = Shell(), None
    names = tuple(is_script)
    for statement in statements(text):
        assigned = _ASSIGNED.match(statement)
        if assigned and not _has_command(statement):
            shell.assign(assigned[1], assigned[3], add=bool(assigned[2]))
            continue
        before = dict(shell.missing)
        shell.missing.clear()
        words = _split(shell.expanded(statement))
        script = next((index for index, word in enumerate(words) if word.endswith(names)), None)
        if script is not None:
            found = _cut(words, script, tuple(shell.missing))
        elif words and (words[0].startswith("--") or _FIELD.fullmatch(words[0])) and found is None:
            found = Command(launcher=(), script="", words=tuple(words), missing=tuple(shell.missing))
        shell.missing = before
    if found is None:
        known = ", ".join(names)
        raise ValueError(f"has no training command: no word ends with {known}, and it does not begin with an argument")
    return found


def _cut(words: Sequence[str], script: int, missing: tuple[str, ...]) -> Command:
    """Cut the words at the script and at the end of its command; `2>` comes as two words."""
    ends = (index for index in range(script, len(words)) if _OPERATOR.fullmatch(words[index]))
    end = next(ends, len(words))
    if end < len(words) and words[end].startswith(">") and words[end - 1] in ("1", "2"):
        end -= 1
    return Command(
        launcher=tuple(words[:script]), script=words[script], words=tuple(words[script + 1 : end]), missing=missing
    )


def _has_command(statement: str) -> bool:
    """Return whether words follow an assignment, as in `OMP_NUM_THREADS=1 torchrun ...`."""
    value = _ASSIGNED.match(statement)
    if value is None or value[3].startswith("("):
        return False
    try:
        words = shlex.split(value[3])
    except ValueError:
        return False
    return len(words) > 1 and any(word.endswith((".py", "torchrun", "python", "python3")) for word in words)


def _split(statement: str) -> list[str]:
    lexer = shlex.shlex(statement, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError as error:
        raise ValueError(f"is not a command line: {error}") from error
    flat: list[str] = []
    for word in words:  # an array may hold "--name value" in one word; upstream's examples do
        flat += shlex.split(word) if word.startswith("--") and " " in word else [word]
    return flat


def statements(text: str) -> list[str]:
    """Return the statements of shell text: lines joined where they go on, comments removed."""
    lines = _COMMENT.sub(r"\1", text.replace("\\\r\n", " ").replace("\\\n", " ")).splitlines()
    found: list[str] = []
    depth = 0
    for line in lines:
        opened = depth > 0
        depth = max(0, depth + _open(line))
        if opened:
            found[-1] += f" {line.strip()}"
        elif line.strip():
            found.append(line.strip())
    return found


def _open(line: str) -> int:
    """Return how many arrays the line opens, less those it closes."""
    bare = re.sub(r"\$\([^()]*\)|\$\(\([^()]*\)\)|\"[^\"]*\"|'[^']*'", "", line)
    return bare.count("(") - bare.count(")")


def flags_of(words: Sequence[str]) -> dict[str, Any]:
    """Return arguments in argparse's style by name, with underscores: True for a switch, a text, or a list.

    ValueError for a word that belongs to no argument.
    """
    settings: dict[str, Any] = {}
    name = ""
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, joined, value = word[2:].partition("=")
            name = name.replace("-", "_")
            settings[name] = value if joined else True
        elif not name or (word.startswith("-") and not _NUMBER.match(word)):
            raise ValueError(f"{word!r} does not belong to an argument; allowed: --name, --name value, --name=value")
        else:
            before = settings[name]
            settings[name] = word if before is True else [*(before if isinstance(before, list) else [before]), word]
    return settings


def overrides_of(words: Sequence[str]) -> dict[str, Any]:
    """Return overrides in Hydra's style by name: `a.b=1`, `+a.b=1`; words without `=` are left out."""
    pairs = [word.lstrip("+~").partition("=") for word in words if _FIELD.fullmatch(word)]
    return {name: value for name, _, value in pairs}
