"""The files under docs/examples: their syntax, the schemas of the CI systems, and a real run of the nightly script."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from cronsim import CronSim
from ruamel.yaml import YAML

from tests.docs.crontabs import read_crontab
from tests.docs.projects import BIN, settings, small_project

GITHUB = ["--builtin-schema", "vendor.github-workflows"]
GITLAB = ["--builtin-schema", "vendor.gitlab-ci", "--data-transform", "gitlab-ci"]
OPTIONS = {"job-name", "partition", "time", "cpus-per-task", "mem", "output", "open-mode"}  # of sbatch


@pytest.fixture(scope="module")
def examples(root: Path) -> Path:
    return root / "docs" / "examples"


def checked(file: Path, schema: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BIN / "check-jsonschema", *schema, file], capture_output=True, text=True)


def shellcheck(script: str) -> str:
    command = [BIN / "shellcheck", "--shell", "bash", "--format", "gcc", "-"]
    return subprocess.run(command, input=script, capture_output=True, text=True).stdout


def loaded(file: Path) -> Any:
    return YAML(typ="safe", pure=True).load(file.read_text())


@pytest.mark.parametrize(
    ("name", "schema", "right", "broken"),
    [
        ("github-actions.yaml", GITHUB, "runs-on:", "run-on:"),
        ("gitlab-ci.yml", GITLAB, "when: always", "when: allways"),
    ],
)
def test_ci_files_match_the_schema_of_their_system(
    examples: Path, tmp_path: Path, name: str, schema: list[str], right: str, broken: str
) -> None:
    done = checked(examples / name, schema)
    assert done.returncode == 0, done.stdout
    (tmp_path / name).write_text((examples / name).read_text().replace(right, broken))
    assert checked(tmp_path / name, schema).returncode == 1


def test_shell_scripts_of_ci_files_are_sound(examples: Path) -> None:
    workflow = loaded(examples / "github-actions.yaml")
    scripts = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    pipeline = loaded(examples / "gitlab-ci.yml")
    for job in pipeline.values():
        if isinstance(job, dict):
            scripts += ["\n".join(job[part]) for part in ("before_script", "script", "after_script") if part in job]
    assert len(scripts) >= 6
    # SC2012: the scripts find the newest run with `ls -t`; names of runs have no special characters.
    assert [said for script in scripts if (said := shellcheck("# shellcheck disable=SC2012\n" + script))] == []


def test_schedules_of_the_workflow_are_times_and_its_choices_are_matrices(root: Path, examples: Path) -> None:
    workflow = loaded(examples / "github-actions.yaml")
    for entry in workflow["on"]["schedule"]:
        assert next(CronSim(entry["cron"], datetime(2027, 1, 4)))
    choices = workflow["on"]["workflow_dispatch"]["inputs"]["matrix"]["options"]
    assert [name for name in choices if not (root / "matrices" / f"{name}.yaml").is_file()] == []
    weekly = next(entry["cron"] for entry in workflow["on"]["schedule"] if entry["cron"].endswith(" 0"))
    (run,) = [step for step in workflow["jobs"]["run"]["steps"] if step.get("name") == "Run"]
    assert f"github.event.schedule == '{weekly}' && 'weekly'" in run["env"]["MATRIX"]


def test_the_nightly_script_is_sound_bash(examples: Path) -> None:
    script = examples / "nightly.sh"
    assert os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    assert shellcheck(script.read_text()) == ""
    assert "SC2086" in shellcheck(script.read_text().replace('"$code_dir" pull', "$code_dir pull"))


@pytest.mark.parametrize(("name", "slurm", "count"), [("crontab.example", False, 4), ("scrontab.example", True, 2)])
def test_crontabs_can_be_installed_and_name_the_script(
    root: Path, examples: Path, name: str, slurm: bool, count: int
) -> None:
    table = read_crontab((examples / name).read_text(), slurm=slurm)
    assert table.wrong == []
    assert len(table.entries) == count
    for _, command, options in table.entries:
        script = next(word for word in command.split() if word.endswith(".sh"))
        assert (root / script.removeprefix("$HOME/packing-harness/")).is_file()
        names = {option.removeprefix("--").partition("=")[0] for option in options}
        assert names == (OPTIONS if slurm else set())


@pytest.mark.parametrize(
    ("line", "slurm", "said"),
    [
        ("30 25 * * * run", False, "line 1: '30 25 * * *'"),
        ("@nightly run", False, "no such time @nightly"),
        ("@reboot run", True, "no such time @reboot"),
        ("0 1 * * * date +%F", False, "a % that is not escaped"),
        ("CODE_DIR=$HOME/x", False, "cron expands no variables here"),
    ],
)
def test_what_cron_would_misread_is_found(line: str, slurm: bool, said: str) -> None:
    (wrong,) = read_crontab(line, slurm=slurm).wrong
    assert said in wrong


def night(home: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """The finished nightly script of a small copy of the project; `more`: environment variables."""
    command = [home / "harness" / "docs" / "examples" / "nightly.sh", *arguments]
    env = settings(home, **more)
    return subprocess.run(command, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)


@pytest.fixture
def home(tmp_path: Path, root: Path) -> Path:
    small_project(tmp_path, root)
    return tmp_path


def test_a_night_does_nothing_while_another_night_runs(home: Path) -> None:
    with (home / "runs" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = night(home)
    assert done.returncode == 75
    assert "another night holds" in done.stderr
    assert [path.name for path in (home / "runs").iterdir()] == [".lock"]


def test_resume_does_nothing_without_an_interrupted_run(home: Path) -> None:
    done = night(home, "--resume")
    assert (done.returncode, done.stdout) == (0, "")


def test_a_matrix_that_is_wrong_is_not_run(home: Path) -> None:
    done = night(home, "weekly")
    assert done.returncode == 2
    assert "weekly.yaml" in done.stderr


@pytest.mark.train
def test_a_night_runs_the_matrix_over_the_newest_code_and_removes_what_is_old(home: Path) -> None:
    old, young = (home / "runs" / f"nightly-20260{month}01T000000Z-aaaa" for month in (1, 2))
    for folder, days in ((old, 40), (young, 20)):
        folder.mkdir()
        os.utime(folder, (time.time() - days * 86400,) * 2)
    upstream, code = home / "upstream", home / "Megatron-LM"
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com"]
    subprocess.run([*git, "init", "-q", "-b", "main", upstream], check=True)
    subprocess.run([*git, "-C", upstream, "commit", "-q", "--allow-empty", "-m", "one"], check=True)
    subprocess.run([*git, "clone", "-q", upstream, code], check=True)
    subprocess.run([*git, "-C", upstream, "commit", "-q", "--allow-empty", "-m", "two"], check=True)

    done = night(home, CODE_DIR=str(code), KEEP_DAYS="30", NOTIFY=f"tee {home / 'sent.json'}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 PASS" in done.stdout
    log = subprocess.run(["git", "-C", code, "log", "--format=%s"], capture_output=True, text=True, check=True).stdout
    assert log.split() == ["two", "one"]
    left = [path.name for path in (home / "runs").iterdir() if path.is_dir()]
    assert old.name not in left
    assert young.name in left
    (made,) = [name for name in left if name not in (old.name, young.name)]
    assert (home / "runs" / made / "report.json").is_file()
    assert made in (home / "runs" / "history.html").read_text()
    assert json.loads((home / "sent.json").read_text())["run_id"] == made
