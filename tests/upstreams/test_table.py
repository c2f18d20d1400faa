"""What a project or a trainer must be registered in, so that nothing of it is left out in silence."""

from __future__ import annotations

from pathlib import Path

import harness.upstreams
from harness.core.upstream import CODE, owner_of
from harness.upstreams.table import DATA_PATHS, PROJECTS, UPSTREAM_TRAINERS

FOLDER = Path(harness.upstreams.__file__).parent


def test_errors_of_every_project_are_blamed_on_it() -> None:
    folders = {file.parent.name for file in FOLDER.glob("*/*.py")} - {"builtin"}
    assert folders == {file.parent.name for file in FOLDER.glob("*/project.py")}
    modules = {module.replace(".", "/") for project in PROJECTS.values() for module in project.modules}
    assert {owner_of(f"{module}/data.py:1 in pack") for module in modules} == {CODE}


def test_every_trainer_has_data() -> None:
    assert set(UPSTREAM_TRAINERS) == {name for path in DATA_PATHS.values() for name in path.trainers}


def test_a_trainer_that_takes_arguments_can_be_asked_about_them() -> None:
    for trainer in UPSTREAM_TRAINERS.values():
        asked = FOLDER / trainer.project / "node_arguments.py"
        assert asked.is_file() == bool(trainer.arguments), trainer.name
