"""The `documents:` section: where document lengths come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from harness.core.errors import InputError
from harness.core.packing.documents import DocumentsConfig
from harness.plan.matrix.problems import KeyPath, Problems, shown
from harness.plan.schema.section import dataclass_of
from harness.plan.schema.sections import DOCUMENT_MODES

LengthsReader = Callable[[str], tuple[int, ...]]


def parse_documents(section: Any, problems: Problems, read_lengths: LengthsReader) -> DocumentsConfig | None:
    """The checked section; None after adding its problems.

    `read_lengths` returns the lengths in a file, or raises InputError.
    """
    path: KeyPath = ("documents",)
    values = problems.canonical(section, {}, path)
    if values is None:
        return None
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


def _from_file(documents: DocumentsConfig, problems: Problems, read_lengths: LengthsReader) -> DocumentsConfig | None:
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
            problems.add(("documents", "path"), message, **details)
        return None
