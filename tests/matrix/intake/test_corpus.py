"""Public configurations of seven projects: what `harness init --from` makes of them, and that every cell can run.

tests/corpus has their settings as facts: names and numbers, as far as the layout, the model's structure and the packing
depend on them, with the file and the commit that they were read from. `cells` are those that the written matrix plans
with controls, on a machine with eight cores; `refused` is what the command says of a run that it does not test.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.cli.from_run import matrix_of_run
from harness.cli.scaffold import Machine
from harness.core.errors import InputError
from harness.inputs import yaml_file
from harness.inputs.matrix_file import read_matrix
from harness.matrix.expansion.expand import expand
from harness.matrix.intake.read import read, translate
from tests.matrix.intake.test_projects import nested

CORPUS = Path(__file__).parents[2] / "corpus"
RUNS = [
    (source, run)
    for source in (yaml_file.read(file).values for file in sorted(CORPUS.glob("*.yaml")))
    for run in source["runs"]
]


def text_of(form: str, run: Mapping[str, Any]) -> str:
    """Return the run as its owner would have it: a configuration, overrides or flags."""
    settings = run["settings"]
    if form == "configuration":
        return json.dumps(nested(settings))
    launcher = f"NPROC_PER_NODE={run['ranks']} " if run.get("ranks") else ""
    words = run["script"].split()
    for name, value in settings.items():
        values = value if isinstance(value, list) else [] if value is True and form == "flags" else [value]
        words += [f"{name}={value}"] if form == "overrides" else [f"--{name}", *map(str, values)]
    return launcher + shlex.join(words)


@pytest.mark.parametrize(("source", "run"), RUNS, ids=[f"{source['project']}-{run['path']}" for source, run in RUNS])
def test_a_public_run_becomes_cells_that_can_run(
    source: Mapping[str, Any], run: Mapping[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "run"
    file.write_text(text_of(source["form"], run))
    machine = Machine(cores=8, gpus=0)
    if refused := run.get("refused"):
        with pytest.raises(InputError, match=refused):
            matrix_of_run(str(file), machine, Path("matrix.yaml"))
        return
    text = file.read_text()
    keys = translate(read(text, json.loads(text) if source["form"] == "configuration" else None, "run"))
    assert [keys.keys[name] for name in ("tp", "pp", "cp")] == [run["tp"], run["pp"], run["cp"]]
    assert (keys.packing or "unpacked") == run["packing"]
    written = tmp_path / "matrix.yaml"
    written.write_text(matrix_of_run(str(file), machine, written))
    made = expand(read_matrix(written))
    assert made.rejected == ()
    assert len(made.cells) == run["cells"]


def test_the_corpus_has_as_many_projects_and_runs_as_it_says() -> None:
    assert len({source["project"] for source, _ in RUNS}) >= 7
    assert len(RUNS) >= 40
