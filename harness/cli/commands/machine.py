"""`harness doctor` checks this machine, or a cluster; `harness init` writes a first matrix for it.

Where there is a cluster, init also writes its profile.
"""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote

from harness.campaign.options import RUN_PARENT
from harness.core.errors import InputError, Problem
from harness.core.outcomes import EXIT_PASS, EXIT_UNDECIDED
from harness.infra import screen
from harness.infra.files import expanded

FIRST_MATRIX = "matrix.yaml"


def doctor(name: str, run_parent: Path | None, *, as_json: bool = False) -> int:
    """Check whether this machine can run cells under a profile; prints a line per check, returns 3 when one fails."""
    from harness.core.serialization import dumps
    from harness.inputs.cluster_file import read_cluster
    from harness.launch.doctor import FAIL, check_line, checks, probe

    profile, _ = read_cluster(name, Path(), Path(), Problem(message="", key="--cluster"))
    folder = run_parent or Path(profile.run_dir or RUN_PARENT)
    found = checks(profile, probe(profile, expanded(str(folder)).resolve()))
    if as_json:
        screen.json_data(dumps({"cluster": profile.name, "checks": found}, indent=2) + "\n")
    else:
        screen.out(screen.wrapped("\n".join(map(check_line, found))))
    return EXIT_UNDECIDED if any(check.level == FAIL for check in found) else EXIT_PASS


def init(folder: Path, source: str | None = None, *, execute: bool = False) -> int:
    """Write DIR/matrix.yaml and, where Slurm answers, DIR/clusters/NAME.yaml; InputError if one of them exists.

    `source`: the file with the training run that the matrix is for; "-" for stdin, "recipe:NAME" for a recipe of
    Megatron-Bridge. `execute`: it is a script to run.
    """
    from harness.cli.scaffold import look_at_machine, look_for_cluster, matrix_text, profile_text

    matrix = folder / FIRST_MATRIX
    _refuse_existing(matrix)
    cluster = look_for_cluster(next(one for one in (folder.resolve(), *folder.resolve().parents) if one.exists()))
    machine = look_at_machine()
    if source is None:
        texts = {matrix: matrix_text(machine, "first", matrix, cluster is not None)}
    else:
        from harness.cli.from_run import matrix_of_run

        texts = {matrix: matrix_of_run(source, machine, matrix, execute=execute)}
    if cluster is not None:
        profile = folder / "clusters" / f"{cluster.name}.yaml"
        _refuse_existing(profile)
        texts[profile] = profile_text(cluster, profile)
    for path, text in texts.items():
        _write_new(path, text)
        screen.out(f"wrote {path}")
    if source is not None:
        _say_cost(matrix)
    if cluster is None:
        screen.out(f"next: harness run {quote(str(matrix))}")
    else:
        screen.out(f"next: harness doctor --cluster {quote(str(profile))}")
        screen.out(f"then: harness run {quote(str(matrix))} --cluster {cluster.name}")
    return EXIT_PASS


def matrix_from(source: str, *, execute: bool = False) -> Path:
    """Write the matrix of a training run into the current folder, and return its path.

    A file that says the same already is taken as it is; InputError if it says anything else.
    """
    from harness.cli.from_run import RECIPE, STDIN, matrix_of_run
    from harness.cli.scaffold import look_at_machine

    stem = "your_run" if source == STDIN else Path(source.removeprefix(RECIPE)).name.partition(".")[0] or "your_run"
    path = Path(f"{stem}.matrix.yaml")
    text = matrix_of_run(source, look_at_machine(), path, execute=execute)
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return path
    if os.path.lexists(path):
        hint = f"run it as it is: harness run {quote(str(path))}; or remove it"
        raise InputError(Problem(message="exists already and says something else", file=str(path), hint=hint))
    _write_new(path, text)
    screen.out(f"wrote {path}")
    _say_cost(path)
    return path


def _say_cost(matrix: Path) -> None:
    """Print how many cells the matrix has, and about how long they take on this machine."""
    from harness.core.text import counted, duration
    from harness.inputs.matrix_file import read_matrix
    from harness.launch.allocations import estimate
    from harness.launch.local import cores
    from harness.matrix.expansion.expand import expand

    cost = estimate(expand(read_matrix(matrix)), cores=cores())
    time = f"about {duration(cost.seconds)} on this machine, once the environment is made"
    screen.out(f"  {counted(cost.cells, 'cell')} of up to {counted(cost.largest_world, 'rank')}: {time}")


def _refuse_existing(path: Path) -> None:
    if os.path.lexists(path):
        hint = "name another folder: harness init DIR; or remove the file"
        raise InputError(Problem(message="exists already, and init overwrites nothing", file=str(path), hint=hint))


def _write_new(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise InputError(Problem(message=f"cannot be written: {error.strerror}", file=str(path))) from error
