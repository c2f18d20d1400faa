"""Finds and reads the profile of a cluster, by name or by path."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from harness.core.errors import InputError, Problem
from harness.infra.files import expanded, is_file, read_text, shipped
from harness.infra.screen import environment_secrets
from harness.inputs import yaml_file
from harness.matrix.cluster import LOCAL, ClusterProfile, load_profile
from harness.matrix.load import Matrix
from harness.matrix.problems import refuse_secrets

FOLDERS_VARIABLE = "HARNESS_CLUSTERS"
KEYS = tuple(item.name for item in fields(ClusterProfile))


def cluster_of(matrix: Matrix, requested: str | None = None) -> tuple[ClusterProfile, Path | None]:
    """Return the profile that `--cluster` names, else the matrix's, with its file (None for the built-in `local`).

    A path in a matrix is relative to the matrix file, one from the command line to the current folder. InputError when
    there is none, when it has errors, or when the matrix wants more time than it allows.
    """
    beside = Path(matrix.file).parent
    if requested is not None:
        origin, base = Problem(message="", key="--cluster"), Path()
    else:
        origin, base = Problem(message="", file=matrix.file, line=matrix.lines.get(("cluster",)), key="cluster"), beside
    profile, file = read_cluster(matrix.cluster if requested is None else requested, base, beside, origin)
    limit = matrix.launch.time_limit_min
    if profile.kind == "slurm" and limit is not None and limit > profile.time:
        raise InputError(
            Problem(
                message=f"more minutes than cluster {profile.name} allows",
                file=matrix.file,
                line=matrix.lines.get(("launch", "time_limit_min")),
                key="launch.time_limit_min",
                found=str(limit),
                allowed=f"at most {profile.time} ({file})",
            )
        )
    return profile, file


def read_cluster(name: str, base: Path, beside: Path, origin: Problem) -> tuple[ClusterProfile, Path | None]:
    """Return the profile of this name, or at this path below `base`; `origin`: where the name was written."""
    if "/" in name or name.endswith((".yaml", ".yml")):
        path = base / expanded(name)
        if not is_file(path):
            raise InputError(_problem(origin, "no such profile file", found=repr(str(path))))
        return read_profile(path), path
    for folder in folders(beside):
        path = folder / f"{name}.yaml"
        if is_file(path):
            return read_profile(path), path
    if name == LOCAL.name:
        return LOCAL, None
    known = sorted({path.stem for folder in folders(beside) for path in folder.glob("*.yaml")} | {LOCAL.name})
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"profiles are searched in {_listed(folders(beside))}"
    raise InputError(_problem(origin, "no such cluster profile", found=repr(name), allowed=", ".join(known), hint=hint))


def folders(beside: Path) -> list[Path]:
    """Folders searched for profiles: HARNESS_CLUSTERS, beside the matrix, matrices/clusters here, the shipped one."""
    own = [expanded(part) for part in os.environ.get(FOLDERS_VARIABLE, "").split(os.pathsep) if part]
    places = [*own, beside / "clusters", Path("matrices/clusters"), shipped("matrices") / "clusters"]
    return list({place.resolve(): place for place in reversed(places) if place.is_dir()}.values())[::-1]


def read_profile(path: Path) -> ClusterProfile:
    """Read one profile file; InputError with every problem, each with file and line.

    A matrix may name any file of the reader, so of one that is no profile nothing is shown.
    """
    text = read_text(path, yaml_file.MAX_BYTES)
    try:
        source = yaml_file.parsed(text, str(path))
    except InputError as error:
        if not error.problems[0].message.startswith(yaml_file.INVALID):
            raise
        raise InputError(_no_profile(path, yaml_file.INVALID, error.problems[0].line)) from None
    if source.values is not None:
        names = [str(name).replace("-", "_") for name in source.values] if isinstance(source.values, dict) else []
        known = sum(name in KEYS for name in names)
        if not known or 2 * known < len(names):
            raise InputError(_no_profile(path, "it is no mapping of keys of a profile", None))
        if source.values.get("kind") not in ("local", "slurm"):  # files of other programs have kinds and names, too
            raise InputError(_no_profile(path, "kind must be local or slurm", source.lines.get(("kind",))))
    refuse_secrets(source.values, environment_secrets(), file=source.file, lines=source.lines)
    return load_profile(source.values, file=source.file, lines=source.lines)


def template_of(profile: ClusterProfile, file: Path | None) -> Path:
    """Return the profile's template: a path relative to the profile, or the name of a file in sbatch_templates."""
    if "/" in profile.template or profile.template.endswith(".j2"):
        path = (file.parent if file else Path()) / expanded(profile.template)
    else:
        path = shipped("sbatch_templates") / f"{profile.template}.sbatch.j2"
    if not is_file(path):
        there = shipped("sbatch_templates").glob("*.sbatch.j2")
        known = ", ".join(sorted(item.name.removesuffix(".sbatch.j2") for item in there))
        problem = Problem(
            message="no such template",
            file=str(file) if file else None,
            key="template",
            found=repr(profile.template),
            allowed=f"{known}, or a path beside the profile that ends in .j2",
        )
        raise InputError(problem)
    return path


def _listed(places: Sequence[Path]) -> str:
    return ", ".join(str(place) for place in places)


def _no_profile(path: Path, why: str, line: int | None) -> Problem:
    hint = f"docs/clusters.md lists its keys, such as {', '.join(KEYS[:4])}"
    return Problem(message=f"is not a cluster profile: {why}", file=str(path), line=line, hint=hint)


def _problem(origin: Problem, message: str, **details: str | None) -> Problem:
    return Problem(message=message, file=origin.file, line=origin.line, key=origin.key, **details)
