"""Environments built with the real uv, of a small package."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.errors import InfrastructureError, InputError
from harness.launch.stacks import build as stack_build
from harness.launch.stacks.build import build, is_built, key_of, place_of
from harness.matrix.stacks.section import EnvironmentRequest

VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
SIX = EnvironmentRequest(pythons=(VERSION,), packages=("six==1.16.0",))
_BUILD = """
import sys
from harness.launch.stacks.build import build
from harness.matrix.stacks.section import EnvironmentRequest
build(EnvironmentRequest(pythons=(sys.argv[1],), packages=("six==1.16.0",)), print)
"""


@pytest.mark.usefixtures("kept")
def test_an_environment_has_the_requested_packages_and_none_of_the_harness() -> None:
    said: list[str] = []
    found = build(SIX, said.append)
    assert found.packages == {"six": "1.16.0"}
    assert found.prefix == str(place_of(SIX, VERSION))
    assert said == [f"building an environment with Python {VERSION}: six==1.16.0"]
    imports = subprocess.run([found.executable, "-c", "import pydantic"], cwd="/", capture_output=True, text=True)
    assert "No module named 'pydantic'" in imports.stderr


@pytest.mark.usefixtures("kept")
def test_a_second_request_builds_nothing() -> None:
    first = build(SIX, print)
    stamp = place_of(SIX, VERSION) / stack_build.STAMP
    before = stamp.stat().st_mtime_ns
    assert build(SIX, lambda text: pytest.fail(text)) == first
    assert stamp.stat().st_mtime_ns == before


def test_concurrent_launchers_build_once(kept: Path) -> None:
    env = {**os.environ, "HARNESS_STACKS": str(kept)}
    argv = [sys.executable, "-c", _BUILD, VERSION]
    makers = [subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = "".join(maker.communicate()[0] for maker in makers)
    assert [maker.returncode for maker in makers] == [0, 0, 0]
    assert said.count("building an environment") == 1


def test_an_incomplete_environment_is_not_used_and_is_removed(kept: Path) -> None:
    place = place_of(SIX, VERSION)
    half = place.with_name(f".{place.name}.1.tmp")
    for folder in (place, half):
        (folder / "bin").mkdir(parents=True)
    assert not is_built(place)
    assert build(SIX, print).packages == {"six": "1.16.0"}
    assert not half.exists()


_KILLED = """
import os, pathlib, signal, sys
from harness.launch.stacks.build import build
from harness.matrix.stacks.section import EnvironmentRequest
version, kill_at = sys.argv[1], int(sys.argv[2])
rename, points = pathlib.Path.rename, iter(range(99))
def dying(source, target):
    if source.name.lstrip(".").startswith("py"):  # an environment, no file in it
        if next(points) == kill_at: os.kill(os.getpid(), signal.SIGKILL)
        rename(source, target)
        if next(points) == kill_at: os.kill(os.getpid(), signal.SIGKILL)
    else:
        rename(source, target)
pathlib.Path.rename = dying
build(EnvironmentRequest(pythons=(version,), packages=("six==1.16.0",)), print)
"""


POINTS = ("before it is set aside", "after it is set aside", "before the move", "after the move")


@pytest.mark.parametrize("point", POINTS)
def test_a_build_killed_while_it_replaces_an_environment_leaves_none_or_a_complete_one(kept: Path, point: str) -> None:
    broken = Path(build(SIX, print).executable)
    broken.unlink()
    argv = [sys.executable, "-c", _KILLED, VERSION, str(POINTS.index(point))]
    done = subprocess.run(argv, env={**os.environ, "HARNESS_STACKS": str(kept)}, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    place = place_of(SIX, VERSION)
    assert place.exists() is (point in (POINTS[0], POINTS[3]))
    said: list[str] = []
    assert build(SIX, said.append).packages == {"six": "1.16.0"}
    assert bool(said) is (point != "after the move")
    left = [path.name for path in place.parent.iterdir() if not path.name.endswith(".lock")]
    if said:
        assert left == [place.name]


@pytest.mark.usefixtures("kept")
def test_an_environment_whose_interpreter_is_gone_is_rebuilt() -> None:
    python = Path(build(SIX, print).executable)
    python.unlink()
    assert build(SIX, print).packages == {"six": "1.16.0"}
    assert python.exists()


def test_a_failed_build_reports_the_reason_and_leaves_nothing(kept: Path) -> None:
    wrong = replace(SIX, packages=("six==99.0",))
    with pytest.raises(InfrastructureError, match=r"(?s)uv pip install ended with exit code 1.*six==99\.0"):
        build(wrong, print)
    assert not is_built(place_of(wrong, VERSION))
    assert [path.name for path in (kept / "environments").iterdir() if not path.name.endswith(".lock")] == []


@pytest.mark.usefixtures("kept")
def test_no_deps_packages_are_installed_without_dependencies() -> None:
    request = replace(SIX, packages=(), no_deps=("python-dateutil==2.9.0.post0",))
    assert build(request, print).packages == {"python-dateutil": "2.9.0.post0"}


@pytest.mark.usefixtures("kept")
def test_the_preferred_python_is_used_even_if_another_has_a_cached_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_build.interpreters, "find", lambda versions: (sys.executable, versions[0]))
    kept_one = place_of(SIX, "3.99")
    build(replace(SIX, pythons=("3.99",)), print)
    both = replace(SIX, pythons=(VERSION, "3.99"))
    assert is_built(kept_one)
    assert build(both, print).prefix == str(place_of(SIX, VERSION))


def test_every_part_of_a_request_is_in_its_key() -> None:
    others = [
        replace(SIX, packages=("six==1.17.0",)),
        replace(SIX, packages=(), no_deps=("six==1.16.0",)),
        replace(SIX, packages=("six==1.16.0", "regex")),
    ]
    keys = [key_of(request, VERSION) for request in (SIX, *others)] + [key_of(SIX, "3.10")]
    assert len(set(keys)) == 5
    assert key_of(replace(SIX, pythons=("3.10", VERSION)), VERSION) == keys[0]


def test_without_uv_the_error_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_build, "_runs", lambda uv: False)
    with pytest.raises(InputError, match=r"uv was not found.*pip install uv"):
        stack_build.find_uv()


def test_an_empty_cache_variable_does_not_reach_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", "")
    assert "UV_CACHE_DIR" not in stack_build.uv_environment()
