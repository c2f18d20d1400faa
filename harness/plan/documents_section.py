"""The `documents:` section: where document lengths come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.plan.problems import KeyPath, Problems, shown
from harness.plan.sections import DOCUMENT_MODES, DistributionDocuments, FileDocuments
from harness.words.documents import DocumentsConfig
from harness.words.errors import InputError

LengthsReader = Callable[[str], tuple[int, ...]]


def parse_documents(section: Any, problems: Problems, read_lengths: LengthsReader) -> DocumentsConfig | None:
    """The section; None after adding all its problems. `read_lengths`: of a file named in it, or InputError."""
    path: KeyPath = ("documents",)
    values = problems.canonical(section, {}, path)
    if values is None:
        return None
    mode = values.get("mode", "adversarial")
    if not isinstance(mode, str) or mode not in DOCUMENT_MODES:
        problems.add((*path, "mode"), "unknown mode", found=shown(mode), allowed=", ".join(DOCUMENT_MODES))
        return None
    checked = problems.validate(DOCUMENT_MODES[mode], {**values, "mode": mode}, path, {})
    if isinstance(checked, DistributionDocuments):
        if not checked.min_seq_len <= checked.mean_seq_len <= checked.max_seq_len:
            sizes = f"{checked.min_seq_len}, {checked.mean_seq_len}, {checked.max_seq_len}"
            problems.add(path, "min_seq_len <= mean_seq_len <= max_seq_len does not hold", found=sizes)
        return DocumentsConfig(**checked.model_dump())
    if isinstance(checked, FileDocuments):
        return _file_documents(checked, problems, read_lengths)
    return DocumentsConfig(mode=mode) if checked else None


def _file_documents(checked: FileDocuments, problems: Problems, read_lengths: LengthsReader) -> DocumentsConfig | None:
    if (checked.path is None) == (checked.lengths is None):
        problems.add(("documents",), "mode file needs either path or lengths", hint="give exactly one of them")
        return None
    if checked.path is None:
        return DocumentsConfig(mode="file", lengths=tuple(checked.lengths or ()))
    try:
        # Without the path: a cell's id depends on the lengths, not on where they were kept.
        return DocumentsConfig(mode="file", lengths=read_lengths(checked.path))
    except InputError as error:
        for problem in error.problems:
            message = f"{checked.path}{f' line {problem.line}' if problem.line else ''}: {problem.message}"
            details = {"found": problem.found, "allowed": problem.allowed, "hint": problem.hint}
            problems.add(("documents", "path"), message, **details)
        return None
