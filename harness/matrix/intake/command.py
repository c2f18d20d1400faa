"""Shell text: from a pasted command or script to the words of the command that trains. Nothing is executed."""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

_COMMENT = re.compile(r"(?m)(^|\s)#.*$")
_ASSIGNED = re.compile(r"^(?:export\s+|local\s+|declare\s+(?:-\w+\s+)?)?([A-Za-z_]\w*)(\+?)=(.*)$", re.DOTALL)
_ARRAY = re.compile(r"\"?\$\{([A-Za-z_]\w*)\[[@*]\]\}\"?")
_NAME = r"[A-Za-z_]\w*|[0-9@*]"
_VARIABLE = re.compile(rf"\$(?:\{{({_NAME})(?::?[-=]((?:[^{{}}]|\$\{{[^{{}}]*\}})*))?\}}|({_NAME}))")
_DEFAULTED = re.compile(r"^:\s+\"?\$\{([A-Za-z_]\w*):?=(.*)\}\"?$", re.DOTALL)  # : "${NAME:=default}"
_ARITHMETIC = re.compile(r"\$\(\(([^()$]*(?:\([^()$]*\)[^()$]*)*)\)\)")
_SUBSTITUTION = re.compile(r"\$\((?!\()[^()]*\)|`[^`]*`")
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}
_OF_THE_USER = {"HOME": "~", "PWD": ".", "USER": "user", "@": "", "*": ""}  # paths and names, and no more arguments
# Signs that are operators in a command, but not in the value of a variable, such as "<path of the model>".
_NO_OPERATORS = {ord(sign): 0xE000 + index for index, sign in enumerate("|&;<>")}
_OPERATORS_AGAIN = {stand_in: sign for sign, stand_in in _NO_OPERATORS.items()}
_LONGEST_TEXT = 40  # lines of a text in quotes
_PRINTED = re.compile(r"^printf\s+-v\s+([A-Za-z_]\w*)\s")
_NUMBER = re.compile(r"-\.?\d")
_OPERATOR = re.compile(r"[|&;<>]+")
_COUNTS = ("nproc_per_node", "nnodes", "ntasks", "ntasks_per_node", "nodes")
_FIELD = re.compile(r"[+~]{0,2}[A-Za-z_][\w./@-]*=.*", re.DOTALL)  # an override of Hydra's


_UNKNOWN = re.compile("«([^»]*)»")


def unknown(name: str) -> str:
    """Return what stands in words for a variable that nothing assigns."""
    return f"«{name}»"


def _unrun(command: re.Match[str]) -> str:
    """Return what stands for the output of a command."""
    return unknown(re.sub(r"[\s\"'|&;<>]+", " ", command[0])).replace(" ", "_")


@dataclass
class Shell:
    """The assignments of a script so far."""

    variables: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, str] = field(default_factory=dict)
    sources: bool = False  # a file that is not read here, which may assign more

    def expanded(self, text: str) -> str:
        """Return the text with its variables replaced, `${NAME:-default}` and arrays included."""
        text = text.replace('"$@"', "").replace('"${@}"', "")  # no word, where an empty variable in quotes is one
        for _ in range(20):  # a value may have variables itself
            replaced = _VARIABLE.sub(self._value, _ARRAY.sub(self._items, _ARITHMETIC.sub(self._number, text)))
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
        plain = self.expanded(_first_word(plain).strip("\"'") if plain is value else plain)
        plain = _SUBSTITUTION.sub(_unrun, plain)
        self.variables[name] = self.variables.get(name, "") + plain if add else plain

    def _number(self, found: re.Match[str]) -> str:
        """Return the value of `$((...))`; the text as it is where it is none of whole numbers."""
        text = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda name: self.variables.get(name[1], name[0]), found[1])
        try:
            return str(_arithmetic(ast.parse(text.strip(), mode="eval").body))
        except (SyntaxError, ValueError, ZeroDivisionError):
            return found[0]

    def _items(self, found: re.Match[str]) -> str:
        if found[1] not in self.arrays:
            return unknown(f"{found[1]}[@]") if self.sources else ""
        return self.arrays[found[1]]

    def _value(self, found: re.Match[str]) -> str:
        name, default = found[1] or found[3], found[2]
        if name in self.variables:
            return self.variables[name].translate(_NO_OPERATORS)
        if name in self.arrays:
            return self.arrays[name]
        if default is not None:
            return default.strip("\"'")
        if name in _OF_THE_USER:
            return _OF_THE_USER[name]
        return unknown(name)


def _first_word(text: str) -> str:
    """Return the text up to the first blank that is in neither quotes nor brackets."""
    depth, quote = 0, ""
    for index, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'`":
            quote = sign
        elif sign in "({":
            depth += 1
        elif sign in ")}":
            depth -= 1
        elif sign.isspace() and depth <= 0:
            return text[:index]
    return text


def _arithmetic(node: ast.expr) -> int:
    """Return the value of an expression of whole numbers. ValueError for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_arithmetic(node.left), _arithmetic(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_arithmetic(node.operand)
    raise ValueError("not whole numbers")


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command that trains, cut at its script."""

    launcher: tuple[str, ...]  # the words before the script, e.g. torchrun and its arguments
    script: str  # empty: the text begins with arguments
    words: tuple[str, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        """Shell variables in its words that nothing assigns."""
        return tuple(dict.fromkeys(name for word in self.words for name in _UNKNOWN.findall(word)))

    @property
    def ranks(self) -> int | None:
        """The world size, if the launcher says it in numbers."""
        counts = {}
        for word, after in zip(self.launcher, (*self.launcher[1:], "")):
            name, _, value = word.lstrip("-").replace("-", "_").partition("=")
            given = value or after if word.startswith("--") else value  # a flag, or a variable of the environment
            if name.lower() in _COUNTS and given.isdecimal():
                counts[name.lower()] = int(given)
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
        shell.sources |= statement.startswith(("source ", ". "))
        if defaulted := _DEFAULTED.match(statement):
            if defaulted[1] not in shell.variables:
                shell.assign(defaulted[1], defaulted[2], add=False)
            continue
        assigned = _ASSIGNED.match(statement)
        if assigned and not _has_command(statement):
            shell.assign(assigned[1], assigned[3], add=bool(assigned[2]))
            continue
        if printed := _PRINTED.match(statement):
            shell.variables[printed[1]] = unknown(printed[1])
            continue
        try:
            words = _split(_SUBSTITUTION.sub(_unrun, shell.expanded(statement)))
        except ValueError:
            if any(name in statement for name in names):
                raise
            continue  # a part of a text of several lines
        script = next((index for index in range(len(words)) if _is_script(words, index, names)), None)
        if script is not None:
            found = _cut(words, script)
        elif words and found is None and (words[0].startswith("--") or _is_override(words[0])):
            found = Command(launcher=(), script="", words=tuple(words))
    if found is None:
        known = ", ".join(names)
        raise ValueError(f"has no training command: no word ends with {known}, and it does not begin with an argument")
    return found


def _is_override(word: str) -> bool:
    """Return whether a word is an override, and no variable of the environment."""
    return bool(_FIELD.fullmatch(word)) and not word.partition("=")[0].isupper()


def _is_script(words: Sequence[str], index: int, names: tuple[str, ...]) -> bool:
    """Return whether a word is a training script; of a name of two words, such as `megatron sft`, both must fit."""
    if words[index].endswith(tuple(name for name in names if " " not in name)) and "=" not in words[index]:
        return True
    return " ".join(words[index : index + 2]) in names


def _cut(words: Sequence[str], script: int) -> Command:
    """Cut the words at the script and at the end of its command; `2>` comes as two words."""
    ends = (index for index in range(script, len(words)) if _OPERATOR.fullmatch(words[index]))
    end = next(ends, len(words))
    if end < len(words) and words[end].startswith(">") and words[end - 1] in ("1", "2"):
        end -= 1
    name = words[script]
    if name == "megatron":  # ms-swift's command, which a word follows
        name, script = f"{name} {words[script + 1]}", script + 1
        launcher = words[: script - 1]
    else:
        launcher = words[:script]
    return Command(launcher=tuple(launcher), script=name, words=tuple(words[script + 1 : end]))


def _has_command(statement: str) -> bool:
    """Return whether words follow an assignment, as in `OMP_NUM_THREADS=1 torchrun ...`."""
    value = _ASSIGNED.match(statement)
    if value is None or value[3].startswith("("):
        return False
    try:
        words = shlex.split(value[3])
    except ValueError:
        return False
    return len(words) > 1 and any(word.endswith((".py", "torchrun", "python", "python3", "megatron")) for word in words)


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
    return [word.translate(_OPERATORS_AGAIN) for word in flat]


def statements(text: str) -> list[str]:
    """Return the statements of shell text: lines joined where they go on, comments removed."""
    lines = _COMMENT.sub(r"\1", text.replace("\\\r\n", " ").replace("\\\n", " ")).splitlines()
    found: list[str] = []
    depth = 0
    for line in _with_whole_texts(lines):
        opened = depth > 0
        depth = max(0, depth + _open(line))
        if opened:
            found[-1] += f" {line.strip()}"
        elif line.strip():
            found.append(line.strip())
    return found


def _with_whole_texts(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines, those of a text in quotes as one; a quote that nothing closes soon is one in a sentence."""
    start = 0
    while start < len(lines):
        ends = range(start + 1, min(start + _LONGEST_TEXT, len(lines)) + 1) if _is_open(lines[start]) else range(0)
        end = next((end for end in ends if not _is_open(" ".join(lines[start:end]))), start + 1)
        yield " ".join(lines[start:end])
        start = end


def _is_open(text: str) -> bool:
    """Return whether a quote in the text is not closed."""
    quote, escaped = "", False
    for sign in text:
        if escaped:
            escaped = False
        elif sign == "\\" and quote != "'":
            escaped = True
        elif quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
    return bool(quote)


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
