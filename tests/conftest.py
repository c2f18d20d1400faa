"""Fixtures and settings for all tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import settings

from tests.bisected import Bisected, killed_and_resumed, with_a_guilty_commit

# No deadlines: two shared cores make times meaningless. CI draws the same examples every time.
settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

# The Makefile removes the variable for pytest itself, not for the processes that tests start.
if _tested := os.environ.pop("TESTED_PYTHONDONTWRITEBYTECODE", ""):
    os.environ["PYTHONDONTWRITEBYTECODE"] = _tested


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of the repository."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def bisected(tmp_path_factory: pytest.TempPathFactory) -> Bisected:
    """A repository with a guilty commit, and its bisection, once for all tests."""
    project = with_a_guilty_commit(tmp_path_factory.mktemp("project"))
    return killed_and_resumed(project, tmp_path_factory.mktemp("bisected"))


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of a working Chromium. Without one the test is skipped, and fails under CI."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        path = shutil.which(name)
        if path and subprocess.run([path, "--version"], capture_output=True).returncode == 0:
            return path
    if os.environ.get("CI"):
        pytest.fail("no Chromium, and CI must not skip the browser tests")
    pytest.skip("no Chromium that runs; apt-get install chromium")
