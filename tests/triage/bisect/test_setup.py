"""`harness bisect --run`: commits that cannot be judged before a command has built something in their worktree."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.reporting.bisection import Bisection
from tests.bisected import BROKEN, INIT, KEPT, PARAMS, Project, checkout, copied, matrix_of, result_of
from tests.cli.conftest import harness, write_matrix

pytestmark = pytest.mark.train
# Also needs the stack's Python first on PATH, since others have no torch.
BUILD = "import pathlib, torch\npathlib.Path('megatron/core/built.py').write_text(f'TORCH = {torch.__version__!r}')\n"
FAILS = "raise SystemExit('no compiler here')\n"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """base - recipe - needs - stuck - repaired - guilty; from needs on a file must be built, which fails in stuck."""
    made = copied(tmp_path_factory.mktemp("project"))
    made.commit("recipe", "build.py", "", BUILD)
    made.commit("needs", INIT, "", "\nfrom megatron.core import built\n")
    made.commit("stuck", "build.py", BUILD, FAILS)
    made.commit("repaired", "build.py", FAILS, BUILD)
    made.commit("guilty", PARAMS, KEPT, BROKEN)
    return made


def command(project: Project, folder: Path, *options: str) -> list[str | Path]:
    matrix = write_matrix(folder, matrix_of(checkout(project.folder)))
    ends = ["--good", project.commits["needs"], "--bad", project.commits["guilty"], "--no-shrink"]
    return ["bisect", matrix, "--repo", project.folder, *ends, *options]


def states(project: Project, found: Bisection) -> dict[str, str]:
    return {project.name(point.name): point.state for point in found.points}


def test_a_command_builds_what_commits_need_and_one_where_it_fails_is_skipped_never_bad(
    project: Project, tmp_path: Path
) -> None:
    environment = {"HARNESS_STACKS": str(tmp_path / "kept")}
    without = harness(*command(project, tmp_path), cwd=tmp_path, env=environment)
    assert without.returncode == 3
    assert "cannot import name 'built'" in " ".join(without.stderr.split())

    options = ("--run", "python build.py", "--jobs", "2")
    done = harness(*command(project, tmp_path, *options), cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    found = result_of(done.stdout, tmp_path)
    assert found.found is not None
    assert project.name(found.found.name) == "guilty"
    assert states(project, found) == {"needs": "good", "stuck": "skipped", "repaired": "good", "guilty": "bad"}
    (stuck,) = found.skipped
    assert "ended with exit code 1: python build.py\nno compiler here" in stuck.reason
    (told,) = [line for line in done.stdout.splitlines() if line.startswith(f"    skipped {stuck.name[:12]}: ")]
    assert told.endswith("ended with exit code 1: python build.py no compiler here")
