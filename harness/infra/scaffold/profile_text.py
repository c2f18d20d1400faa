"""The profile of a cluster, from what Slurm says of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from harness.infra.scaffold.slurm import Cluster
from harness.infra.templating import environment

_NODES = 4
_MINUTES = 60
_RANKS = 8


def profile_text(cluster: Cluster, path: Path) -> str:
    """The file's text; `path`: as the user would name it."""
    first = cluster.partitions[0]
    values = {
        "cluster": cluster,
        "path": path,
        "first": first,
        "nodes": min(_NODES, first.nodes),
        "ranks": min(_RANKS, first.cores),
        "time": min(_MINUTES, first.minutes or _MINUTES),
        "runtimes": " and ".join(
            name for name, there in (("pyxis", cluster.pyxis), ("Apptainer", cluster.apptainer)) if there
        ),
    }
    templates = environment(Path(__file__).parent / "templates", autoescape=False, finalize=str)
    templates.filters["scalar"] = _scalar
    return templates.get_template("cluster.yaml.j2").render(values)


def _scalar(text: str) -> str:
    """The text as YAML; quoted where YAML might read it as a number or a reserved word, e.g. 1234 or null."""
    plain = re.fullmatch(r"[A-Za-z_][\w.-]*", text) and text.lower() not in ("null", "true", "false")
    return text if plain else json.dumps(text)
