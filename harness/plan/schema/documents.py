"""The `documents:` section: where document lengths come from, and lists of lengths by name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from harness.core.errors import InputError
from harness.core.packing.documents import MIXES, MODES, DocumentsConfig
from harness.core.stack import SAFE_NAME
from harness.plan.matrix.problems import KeyPath, Problems, shown
from harness.plan.schema.section import dataclass_of
from harness.plan.schema.sections import DOCUMENT_MODES, FileDocuments

LISTS = "lists"  # the key of lists by name
LengthsReader = Callable[[str], tuple[int, ...]]


def parse_documents(section: Any, problems: Problems, read_lengths: LengthsReader) -> DocumentsConfig | None:
    """The checked section; None after adding its problems.

    `read_lengths` returns the lengths in a file, or raises InputError.
    """
    path: KeyPath = ("documents",)
    values = problems.canonical(section, {}, path, "e.g. documents: {mode: adversarial}")
    if values is None:
        return None
    values.pop(LISTS, None)
    mode = values.get("mode", "adversarial")
    if not isinstance(mode, str) or mode not in DOCUMENT_MODES:
        problems.add((*path, "mode"), "unknown mode", found=shown(mode), allowed=", ".join(DOCUMENT_MODES))
        return None
    checked = problems.validate(DOCUMENT_MODES[mode], {**values, "mode": mode}, path)
    documents = dataclass_of(DocumentsConfig, checked) if checked else None
    if documents and not documents.min_seq_len <= documents.mean_seq_len <= documents.max_seq_len:
        sizes = f"{documents.min_seq_len}, {documents.mean_seq_len}, {documents.max_seq_len}"
        problems.add(path, "min_seq_len <= mean_seq_len <= max_seq_len does not hold", found=sizes)
    return _from_file(documents, problems, read_lengths) if documents and mode == "file" else documents


def parse_lists(
    section: Any, used: Mapping[str, int | None], problems: Problems, read_lengths: LengthsReader
) -> dict[str, DocumentsConfig]:
    """The lists of lengths that the section names, for the axis `documents`.

    `used`: the values of the axis, each with its line; an unused list and an unknown value are problems.
    """
    path: KeyPath = ("documents", LISTS)
    lists = section.get(LISTS, {}) if isinstance(section, Mapping) else {}
    if not isinstance(lists, Mapping):
        problems.add(path, "must be a mapping of names to lists of lengths, or to CSV files", found=shown(lists))
        return {}
    found: dict[str, DocumentsConfig] = {}
    for name, value in lists.items():
        where = (*path, str(name))
        if not isinstance(name, str) or not re.fullmatch(SAFE_NAME, name) or name in MODES:
            problems.add(
                where,
                "cannot be a name",
                hint=f"at most 64 letters, digits, '.', '_' and '-'; no mode: {', '.join(MODES)}",
            )
        elif name not in used:
            if not problems.within("matrix"):
                problems.add(where, "no row of the matrix uses this list", hint="add it to the axis 'documents'")
        else:
            key = "path" if isinstance(value, str) else "lengths"
            checked = problems.validate(FileDocuments, {"mode": "file", key: value}, where)
            documents = dataclass_of(DocumentsConfig, checked) if checked else None
            documents = _from_file(documents, problems, read_lengths, where) if documents else None
            found |= {name: replace(documents, name=name)} if documents else {}
    for name, line in used.items():
        if name not in lists and name not in MIXES:
            known = [*MIXES, *map(str, lists)]
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"define it under documents.{LISTS}"
            message = "no such mix, or list of lengths"
            problems.add_at(
                line, ("matrix", "documents"), message, found=repr(name), allowed=", ".join(known), hint=hint
            )
    return found


def _from_file(
    documents: DocumentsConfig, problems: Problems, read_lengths: LengthsReader, where: KeyPath = ("documents", "path")
) -> DocumentsConfig | None:
    """The configuration with the lengths of its file; None after adding its problems. `where`: the key of the file."""
    if (documents.path is None) == (not documents.lengths):
        problems.add(("documents",), "mode file needs either path or lengths", hint="give exactly one of them")
        return None
    if documents.path is None:
        return documents
    try:
        # Without the path: a cell's id depends on the lengths, not on where they are stored.
        return replace(documents, path=None, lengths=read_lengths(documents.path))
    except InputError as error:
        for problem in error.problems:
            message = f"{documents.path}{f' line {problem.line}' if problem.line else ''}: {problem.message}"
            details = {"found": problem.found, "allowed": problem.allowed, "hint": problem.hint}
            problems.add(where, message, **details)
        return None
