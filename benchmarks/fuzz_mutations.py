"""Mutations of input files: of bytes, of lines and words, of JSON values. The random generator determines them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

NUMBERS = (
    *("0", "-1", "1", "2", "7", "0.5", "1e308", "1e400", "-0.0", ".nan", ".inf", "1_000", "0x10", "1:30", "010"),
    *(str(10**12), str(10**17), str(2**31), str(2**63), str(2**64), "9" * 60, "9" * 5000, "0x" + "f" * 5000),
)
SECRET = "correct-horse-battery-staple"  # the value of a variable with a secret name, see fuzz_inputs.py
TEXTS = (
    *(SECRET, SECRET, f"DB_PASSWORD={SECRET}", "\n%YAML 1.2\n", "\n%TAG !a! b\n", "%YAML 1.2", "...\n%TAG ! b"),
    *("\n::stop-commands::x", "::add-mask::x", "##[error]x", "##vso[task.complete]x", "section_start:1:x", "n" * 256),
    *("", "null", "true", "auto", "all", "~", "~root/x", "~nobody-of-this-name/x", "/dev/zero", "/dev/stdin", "/", "."),
    *(
        "../../etc/passwd",
        "a" * 300,
        "a/" * 3000,
        "x" * 20_000,
        "%s%n{0}",
        "{{ 7 * 7 }}",
        "$(id)",
        "`id`",
        "-x",
        "--help",
    ),
    *('"\\0"', '"\\ud800"', '"\\x07"', "2026-99-99", "2026-01-01", "ext::sh -c id", "https://u:p@host/x", "!!binary x"),
    *("!!int x", "!!float x", "!!timestamp x", "!!set {a, b}", "!!omap [a: 1]", "? [a, b]", "<<: *a", "&a [*a]", "*a"),
    *(
        "tp * 99999999999",
        "stack * 99999999",
        "9 ** 9 ** 9",
        "(" * 250,
        "not " * 300 + "tp",
        "tp // 0",
        "'a' % tp",
        "world_size",
    ),
    *("*" * 40, "[!" * 20, "covering", "full", "fp8", "te", "cuda", "rules", "default", "file", "distribution"),
)
CHARACTERS = (
    "\x00",
    "\x07",
    "\x1b",
    "\u2028",
    "\ufeff",
    "\u202e",
    "\u0085",
    "\xa0",
    "\U0001f600",
    "\r",
    "\t",
    "\ud800",
)
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        10**6,
        10**12,
        2**63,
        2**64,
        int("9" * 400),
        0.5,
        -0.0,
        1e308,
        "",
        "x",
        "PASS",
        "latest",
    ),
    *([], {}, [[]], [None], {"": None}, {"$float": "nan"}, {"$float": "-inf"}, {"$float": "x"}, {"$float": [1]}),
    *(
        "\x00",
        "\x1b[31m",
        "\u202e",
        "a" * 300,
        "x" * 100_000,
        "../../x",
        "/dev/zero",
        "2026-99-99T00:00:00",
        "9999-12-31T23:59:59",
    ),
)
_WORD = re.compile(r"[A-Za-z_][\w.-]*|-?\d[\w.]*")


def mutate(content: bytes, others: Sequence[bytes], chance: random.Random, *, is_json: bool) -> bytes:
    """The content after one to four mutations. `others`: contents of the same kind, to take parts from."""
    for _ in range(chance.choice((1, 1, 1, 2, 3, 4))):
        if is_json and chance.random() < 0.8:
            content = _of_json(content, chance)
        elif chance.random() < 0.6:
            content = chance.choice(_OF_TEXT)(content.decode(errors="replace"), chance).encode(errors="surrogatepass")
        else:
            content = chance.choice(_OF_BYTES)(content, others, chance)
    return content


def _span(content: Sequence[Any], chance: random.Random, most: int) -> slice:
    start = chance.randrange(len(content) + 1)
    return slice(start, start + chance.randint(1, most))


def _flip(content: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 8))):
        if changed:
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _delete(content: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    span = _span(content, chance, chance.choice((1, 10, 100, 10_000)))
    return content[: span.start] + content[span.stop :]


def _repeat(content: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    span = _span(content, chance, chance.choice((1, 10, 100)))
    return content[: span.stop] + content[span] * chance.choice((1, 2, 100, 5000)) + content[span.stop :]


def _insert(content: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    at = chance.randrange(len(content) + 1)
    return content[:at] + chance.randbytes(chance.choice((1, 2, 16))) + content[at:]


def _splice(content: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    other = chance.choice(others)
    return content[: chance.randrange(len(content) + 1)] + other[chance.randrange(len(other) + 1) :]


def _word(text: str, chance: random.Random) -> str:
    """Replace a word or a number with another one of the text, or with an unusual one."""
    words = list(_WORD.finditer(text))
    if not words:
        return text + chance.choice(TEXTS)
    old = chance.choice(words)
    odd = chance.choice(NUMBERS) if old[0][-1].isdigit() and chance.random() < 0.8 else chance.choice(TEXTS)
    new = chance.choice(words)[0] if chance.random() < 0.3 else odd
    return text[: old.start()] + new + text[old.end() :]


def _character(text: str, chance: random.Random) -> str:
    at = chance.randrange(len(text) + 1)
    new: str = chance.choice((*CHARACTERS, *"{}[]:,&*!|>'\"%#-?@`\n"))
    return text[:at] + new + text[at:]


def _lines(text: str, chance: random.Random) -> str:
    """Remove, repeat, move or indent a line."""
    lines = text.split("\n")
    at = chance.randrange(len(lines))
    what = chance.randrange(4)
    if what == 0:
        del lines[at]
    elif what == 1:
        lines[at:at] = [lines[at]] * chance.choice((1, 2, 1000))
    elif what == 2:
        lines.insert(chance.randrange(len(lines)), lines.pop(at))
    else:
        lines[at] = " " * chance.randrange(6) + lines[at].lstrip()
    return "\n".join(lines)


def _grow(text: str, chance: random.Random) -> str:
    """Add something that grows large: a long list, deep nesting, aliases of aliases."""
    lines = [f"a0: &a0 [{', '.join('x' * 10)}]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, chance.randint(2, 12))]
    size = chance.choice((60, 1000, 30_000))
    large = ("\n".join(lines), f"[{'[' * size}", f"[{', '.join(map(str, range(1, size)))}]", "{a: " * size, "- " * size)
    chosen = chance.choice(large)
    keys = list(re.finditer(r":(?= |\n)", text))
    if not keys or chosen is large[0]:
        return f"{text}\n{chosen}\n"
    at = chance.choice(keys).end()
    return f"{text[:at]} {chosen}\n{text[at:].partition(chr(10))[2]}"


_OF_BYTES = (_flip, _delete, _repeat, _insert, _splice)
# What grows is read to its limit, up to a second each: one of twelve, so that a night holds many inputs of every kind.
_OF_TEXT: tuple[Callable[[str, random.Random], str], ...] = (*(_word,) * 6, *(_character,) * 2, *(_lines,) * 3, _grow)


def _of_json(content: bytes, chance: random.Random) -> bytes:
    """One value of a JSON document, or of a line of JSON lines, replaced, removed, doubled or moved."""
    lines = content.split(b"\n")
    number = chance.randrange(len(lines))
    try:
        value = json.loads(
            lines[number] if len(lines) > 2 and lines[0][:1] == b"{" and lines[0][-1:] == b"}" else content
        )
    except (ValueError, RecursionError):
        return content
    whole = not (len(lines) > 2 and lines[0][:1] == b"{" and lines[0][-1:] == b"}")
    changed = json.dumps(_changed(value, chance)).encode()
    return changed if whole else b"\n".join((*lines[:number], changed, *lines[number + 1 :]))


def _changed(value: Any, chance: random.Random) -> Any:
    """Follow a random path into the value and change what it leads to."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    if not keys or chance.random() < 0.1:
        return chance.choice((chance.choice(VALUES), [value], {"x": value}))
    key = chance.choice(keys)
    what = chance.random()
    if what < 0.1:
        del value[key]
    elif what < 0.2 and isinstance(value, dict):
        value[chance.choice(("x", "", "\x00", f"{key}2", "__class__"))] = value.pop(key)
    elif what < 0.2 and isinstance(value, list):
        value.extend([value[key]] * chance.choice((1, 100)))
    elif what < 0.3:
        value[key] = value[chance.choice(keys)]
    else:
        value[key] = _changed(value[key], chance)
    return value
