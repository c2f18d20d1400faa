"""Locations of the data files that come with the harness: matrices, cluster profiles, job templates."""

from __future__ import annotations

import difflib
from pathlib import Path

import harness
from harness.core.errors import InputError, Problem
from harness.infra.inputs.text_file import exists, is_file

_PACKAGE = Path(harness.__file__).resolve().parent
_INSTALLED = _PACKAGE / "shipped"


def checkout() -> Path | None:
    """The checkout that the harness runs from; None where a wheel is installed."""
    return None if _INSTALLED.is_dir() else _PACKAGE.parent


def shipped(name: str) -> Path:
    """The folder `matrices` or `sbatch_templates`: of the checkout, or within the package where a wheel is installed.

    pyproject.toml puts the checkout's folders into the wheel, so there is one copy of each file.
    """
    return (checkout() or _INSTALLED) / name


def matrix_path(name: str) -> Path:
    """A matrix file by its path or, where there is no such file, a shipped one by its name."""
    path = Path(name)
    found = shipped("matrices") / (name if name.endswith(".yaml") else f"{name}.yaml")
    return found if "/" not in name and not exists(path) and is_file(found) else path


def matrix_word(path: Path) -> str:
    """What `matrix_path` reads as this file: a shipped one by its name, since it lies elsewhere on other machines."""
    return path.stem if path.parent == shipped("matrices") else str(path)


def require_matrix(path: Path) -> None:
    """InputError, with the nearest name, when there is no such matrix file."""
    try:
        path.stat()
    except FileNotFoundError:
        pass
    except (OSError, ValueError):  # read_text says what is wrong
        return
    else:
        return
    beside = [file.name for file in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
    names = {file.stem for file in shipped("matrices").glob("*.yaml")} if path.parent == Path() else set()
    near = difflib.get_close_matches(path.name, [*beside, *sorted(names)], n=1)
    hint = f"did you mean {near[0]}?" if near else None
    raise InputError(Problem(message="no such file", file=str(path), hint=hint))
