"""`harness init`: writes a first matrix, and the profile of the cluster where there is one."""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote

from harness.core.errors import InputError, Problem
from harness.core.outcomes import EXIT_PASS
from harness.infra import screen

MATRIX = "matrix.yaml"


def init(folder: Path) -> int:
    """Write DIR/matrix.yaml and, where Slurm answers, DIR/clusters/NAME.yaml; InputError if one of them exists."""
    from harness.infra.scaffold import machine, slurm
    from harness.infra.scaffold.matrix_text import matrix_text
    from harness.infra.scaffold.profile_text import profile_text

    matrix = folder / MATRIX
    _refuse(matrix)
    cluster = slurm.look(next(one for one in (folder.resolve(), *folder.resolve().parents) if one.exists()))
    texts = {matrix: matrix_text(machine.look(), "first", matrix, cluster is not None)}
    if cluster is not None:
        profile = folder / "clusters" / f"{cluster.name}.yaml"
        _refuse(profile)
        texts[profile] = profile_text(cluster, profile)
    for path, text in texts.items():
        _write(path, text)
        screen.out(f"wrote {path}")
    if cluster is None:
        screen.out(f"next: harness run {quote(str(matrix))}")
    else:
        screen.out(f"next: harness doctor --cluster {quote(str(profile))}")
        screen.out(f"then: harness run {quote(str(matrix))} --cluster {cluster.name}")
    return EXIT_PASS


def _refuse(path: Path) -> None:
    if os.path.lexists(path):
        hint = "name another folder: harness init DIR; or remove the file"
        raise InputError(Problem(message="exists already, and init overwrites nothing", file=str(path), hint=hint))


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise InputError(Problem(message=f"cannot be written: {error.strerror}", file=str(path))) from error
