"""Runs upstream's own unit tests with pytest, in a separate process without the stand-ins of ranks.

The tests are in a checkout of the stack, which also names pytest. That nothing is collected, or a test file cannot be
imported, proves nothing about the tests: the cell is then an ERROR.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from harness.core.cell.config import CellConfig
from harness.core.data_paths.own import UpstreamTests, counted_tests
from harness.core.outcomes import Missing
from harness.core.run.records import UpstreamTestsSeen
from harness.node.data_paths.lookup import Unavailable
from harness.node.data_paths.unpacked import UnpackedPath

_OF_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_")
_NOTHING_COLLECTED = 5  # exit code of pytest
_SHOWN = 600  # characters of what pytest printed
_MOST_NAMES = 20


class UpstreamTestsPath(UnpackedPath):
    """Runs the tests in the metadata leg; trains like the control."""

    @staticmethod
    def unavailable(config: CellConfig) -> Unavailable:
        """Why the tests cannot run: pytest or their file is missing, or pytest collects none of them."""
        tests = config.upstream_tests
        if find_spec("pytest") is None:
            return Missing(reason="pytest is not installed in this stack; add it to `packages` of the stack")
        root = _root(tests)
        if root is None:
            return Missing(reason=f"{tests.file} is in no checkout of this stack")
        done = _pytest(root, tests, "--collect-only")
        if done.returncode == 0:
            return None
        if done.returncode == _NOTHING_COLLECTED:
            return Missing(reason=f"pytest collects no tests of {tests.file} with -k {tests.select!r}")
        return Missing(reason=f"pytest cannot collect the tests of {tests.file}: {_end(done)}")

    def tests_seen(self) -> UpstreamTestsSeen:
        """What pytest counted; its JUnit XML and its output stay in the attempt's folder."""
        tests, folder = self.context.config.upstream_tests, self.context.folder
        root = _root(tests)
        assert root is not None  # see unavailable()
        file = folder / "upstream_tests.xml"
        done = _pytest(root, tests, f"--junitxml={file}")
        (folder / "upstream_tests.log").write_text(done.stdout, encoding="utf-8")
        if not file.is_file():
            raise RuntimeError(f"pytest ended with {done.returncode} and without a report: {_end(done)}")
        counts, failed = counted_tests(file.read_text(encoding="utf-8"))
        return UpstreamTestsSeen(
            passed=counts.passed, failed=counts.failed, skipped=counts.skipped, failures=failed[:_MOST_NAMES]
        )


def _root(tests: UpstreamTests) -> Path | None:
    """The checkout with the tests: a folder of the module search path, or its parent, which has `src`."""
    searched = [Path(entry) for entry in sys.path if entry]
    return next((root for entry in searched for root in (entry, entry.parent) if (root / tests.file).exists()), None)


def _pytest(root: Path, tests: UpstreamTests, *options: str) -> subprocess.CompletedProcess[str]:
    selected = ["-k", tests.select] if tests.select else []
    argv = [sys.executable, "-m", "pytest", tests.file, *selected, "-q", "-p", "no:cacheprovider", *options]
    env = {name: value for name, value in os.environ.items() if not name.startswith(_OF_RANKS)}
    path = os.pathsep.join([str(root), *filter(None, sys.path)])
    return subprocess.run(
        argv,
        cwd=root,
        env=env | {"PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )


def _end(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join(done.stdout[-_SHOWN:].split())
