"""Helpers that turn values of a small matrix into a Matrix, an Expansion, names or problems."""

from __future__ import annotations

from typing import Any

import pytest

from harness.core.cell.identity import cell_name
from harness.core.errors import InputError, Problem
from harness.core.run.run_plan import Expansion
from harness.matrix.expansion.expand import expand
from harness.matrix.load import Matrix, load


def no_file(name: str) -> tuple[int, ...]:
    raise AssertionError(f"nothing should read {name}")


def matrix_of(values: dict[str, Any] | None = None, **sections: Any) -> Matrix:
    return load(values or {"name": "t", **sections}, file="t.yaml", lines={}, read_lengths=no_file)


def expand_axes(matrix: dict[str, Any], **sections: Any) -> Expansion:
    return expand(matrix_of(matrix=matrix, **sections))


def names(expansion: Expansion) -> list[str]:
    return [cell_name(cell.config) for cell in expansion.cells if cell.role == "cell"]


def problems_of(**sections: Any) -> list[Problem]:
    """All problems of a matrix; fails if it has none."""
    with pytest.raises(InputError) as caught:
        expand(matrix_of(**sections))
    return list(caught.value.problems)
