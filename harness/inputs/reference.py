"""The tables of the documentation as entries by name: rules, checks, failure classes, faults, terms, known bugs.

The pages are the ones in docs/, which the wheel contains; tests compare their tables with the code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from harness.infra.files import shipped

PAGES = (
    "rules.md",
    "checks.md",
    "failures.md",
    "generated/faults.md",
    "glossary.md",
    "generated/keys.md",
    "data_paths.md",
    "trainers.md",
    "generated/scoreboard.md",
)
_LINK = re.compile(r"\[([^]]+)]\([^)]*\)")
_NAME = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*|^ ([A-F][0-9]+) $")  # the last: a bug of the corpus
_CELL_END = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One row of a table: the name in its first column, and what the other columns say."""

    name: str
    page: str
    section: str
    fields: tuple[tuple[str, str], ...]  # (column, text), without empty ones

    @property
    def names(self) -> tuple[str, str]:
        """Its name, alone and as a key of a section of the matrix: train.seq_length."""
        return self.name, f"{self.section}.{self.name}"

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Heads of equal width and their texts; first the name and where it is documented."""
        width = max((len(column) for column, _ in self.fields), default=0)
        first = (f"{self.name}  ", f"({self.section}; docs/{self.page})")
        return [first, *((f"  {column:<{width}}  ", said) for column, said in self.fields)]

    @property
    def text(self) -> str:
        return "\n".join(f"{head}{said}" for head, said in self.rows)


def reference() -> list[Entry]:
    """Return every entry of every page, in the order of the pages."""
    found: list[Entry] = []
    for page in PAGES:
        found += _entries(page, (shipped("docs") / page).read_text(encoding="utf-8"))
    return found


def _entries(page: str, text: str) -> Iterator[Entry]:
    section, columns = page, list[str]()
    for line in text.splitlines():
        if line.startswith("#"):
            section = line.lstrip("# ")
        if not line.startswith("|"):
            columns = []
            continue
        cells = [_plain(cell) for cell in _CELL_END.split(line)[1:-1]]
        if not columns:
            columns = cells
        elif set(line) - set("|- :"):
            fields = tuple((column, said) for column, said in zip(columns[1:], cells[1:]) if said)
            for names in _NAME.findall(_CELL_END.split(line)[1]):
                yield Entry(name="".join(names), page=page, section=section, fields=fields)


def _plain(cell: str) -> str:
    """Return a cell of a table without Markdown."""
    return _LINK.sub(r"\1", cell).replace("\\|", "|").replace("**", "").replace("`", "").replace("*", "").strip()
