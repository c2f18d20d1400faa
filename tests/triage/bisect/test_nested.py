"""`harness bisect --nested`: finds a commit that only moves a pin, then the change inside the pinned project."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bisected import Bisected, checkout, matrix_of, result_of
from tests.cli.conftest import harness, write_matrix
from tests.launch.stacks.test_checkout import git

pytestmark = pytest.mark.train
LIMIT_S = 1800  # environments are made when this machine has none
SKYRL = (  # as in matrices/releases.yaml, so that they share environments
    "{packages: [skyrl==0.4.0], no_deps: true}",
    "{packages: [megatron-core==0.19.2, loguru==0.7.3, pydantic==2.14.3, cloudpathlib==0.26.0]}",
)


def outer_repository(folder: Path, module: str) -> Path:
    """An empty project that stacks recognise by its module."""
    (folder / module).mkdir(parents=True)
    (folder / module / "__init__.py").touch()
    git(folder, "init", "--quiet", "--initial-branch=main")
    return folder


def commit(folder: Path, subject: str) -> str:
    git(folder, "commit", "--quiet", "-m", subject)
    return git(folder, "rev-parse", "HEAD")


def test_a_moved_submodule_is_searched_in_turn(bisected: Bisected, tmp_path: Path) -> None:
    """The outer commit only moves the pin past the guilty commit of the inner project, and a harmless one before it."""
    known = bisected.project.commits
    outer = outer_repository(tmp_path / "outer", "skyrl")
    (outer / ".gitmodules").write_text(f'[submodule "lm"]\n\tpath = lm\n\turl = {bisected.project.folder}\n')
    git(outer, "add", ".")
    hashes = []
    for name in ("base", "guilty"):
        git(outer, "update-index", "--add", "--cacheinfo", f"160000,{known[name]},lm")
        hashes.append(commit(outer, f"Pin {name}"))
    matrix = write_matrix(tmp_path, matrix_of(checkout(outer, "skyrl"), checkout(bisected.project.folder)))
    ends = ["--good", hashes[0], "--bad", hashes[1], "--nested", "lm", "--no-shrink"]
    done = harness("bisect", matrix, "--repo", outer, *ends, cwd=tmp_path, env=bisected.environment)
    assert done.returncode == 0, done.stdout + done.stderr
    found = result_of(done.stdout, tmp_path)
    assert found.found is not None and found.nested is not None and found.nested.found is not None
    assert (found.found.name, found.found.subject) == (hashes[1], "Pin guilty")
    assert (found.nested.found.name, found.nested.found.subject) == (known["guilty"], "Commit guilty")
    assert [bisected.project.name(point.name) for point in found.nested.points] == ["base", "note", "guilty"]
    assert "inside the dependency that it updates:" in done.stdout


@pytest.mark.long  # short: releases in test_releases.py, a moved pin above
def test_releases_between_two_pins_are_searched_in_turn(tmp_path: Path) -> None:
    """A project moved its pin of skyrl past 0.2.0, which no longer crashes on documents too short for two ranks."""
    outer = outer_repository(tmp_path / "outer", "skyrl-train/skyrl_train")
    hashes = []
    for release in ("0.1.0", "0.4.0"):
        (outer / "pyproject.toml").write_text(
            f'[project]\nname = "skyrl-train"\ndependencies = ["skyrl == {release}"]\n'
        )
        git(outer, "add", ".")
        hashes.append(commit(outer, f"Pin {release}"))
    layers = [checkout(outer, "skyrl-train"), *SKYRL]
    matrix = matrix_of(*layers, python=None, axes="cp: 2", path="skyrl", parts="documents: {mode: adversarial}\n")
    ends = ["--bad", hashes[0], "--good", hashes[1], "--find", "fixed", "--nested", "skyrl", "--no-shrink"]
    done = harness("bisect", write_matrix(tmp_path, matrix), "--repo", outer, *ends, cwd=tmp_path, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    found = result_of(done.stdout, tmp_path)
    assert found.found is not None and found.nested is not None and found.nested.found is not None
    assert (found.found.name, found.found.subject) == (hashes[1], "Pin 0.4.0")
    inner = found.nested
    assert inner.found is not None
    assert (inner.kind, inner.project, inner.found.name) == ("release", "skyrl", "0.2.0")
    states = {point.name: point.state for point in inner.points}
    assert (states["0.1.0"], states["0.2.0"], states["0.4.0"]) == ("bad", "good", "good")
    assert inner.evidence is not None and inner.evidence.name == "0.1.0"
    assert "first good release of skyrl: 0.2.0" in done.stdout
