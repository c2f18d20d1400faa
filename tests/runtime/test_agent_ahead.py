"""An agent whose imports begin before its run is planned; the imports and the run are replaced."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.core.serialization import dumps
from tests.processes import HUNG_S

PROGRAM = """
import os, sys
from harness.runtime import agent_ahead

def loaded():
    print("imported", flush=True)
    {loaded}

def run():
    print(sys.argv[1:], os.read(0, 1), flush=True)
    return 3

agent_ahead.loaded, agent_ahead.agent.main = loaded, run
sys.argv[1:] = [str({launcher})]
raise SystemExit(agent_ahead.main())
"""


def ahead(line: str, loaded: str = "", launcher: str = "os.getppid()") -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(loaded=loaded, launcher=launcher)
    return subprocess.run(
        [sys.executable, "-c", program], input=line, capture_output=True, text=True, timeout=HUNG_S, check=False
    )


@pytest.mark.parametrize("loaded", ["", "raise ImportError"], ids=["imports", "fails to import"])
def test_it_runs_as_an_agent_with_the_arguments_and_the_log_that_it_is_given(loaded: str, tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    done = ahead(dumps({"arguments": ["run", "local"], "log": str(log)}) + "\n", loaded)
    assert (done.returncode, done.stdout) == (3, "imported\n")
    assert log.read_text() == "['run', 'local'] b''\n"  # ranks inherit an empty standard input


def test_it_ends_without_a_run_when_its_input_is_closed() -> None:
    done = ahead("")
    assert (done.returncode, done.stdout, done.stderr) == (0, "imported\n", "")


def test_it_ends_at_once_when_its_launcher_has_ended() -> None:
    assert ahead("", launcher=str(os.getpid() + 1)).returncode == -9
