"""action.yml and templates/packing.yml: the schemas of GitHub and GitLab, and their shell steps, really run."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from ruamel.yaml import YAML

from harness.launch.stacks.build import uv_environment
from tests.docs.projects import BIN
from tests.docs.test_examples import GITHUB, GITLAB, checked, loaded, shellcheck

ACTION = ["--builtin-schema", "vendor.github-actions"]
TINY = """
name: tiny
model: {{layers: 1}}
train: {{steps: 1}}
matrix: {{packing: reference, stack: ready{more}}}
checks: {{canaries: none}}
stacks: {{ready: {{python: "{python}"}}}}
"""
GITHUB_BASH = ["bash", "--noprofile", "--norc", "-eo", "pipefail"]  # what `shell: bash` means


def tiny(folder: Path, more: str = "") -> None:
    (folder / "tiny.yaml").write_text(TINY.format(python=BIN / "python", more=more))


def environment(folder: Path, **more: str) -> dict[str, str]:
    """The variables of a job on a fresh machine: an empty home, uv on PATH, and no harness."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    if not (tools / "uv").exists():
        (tools / "uv").symlink_to(BIN / "uv")
    kept = {name: value for name, value in uv_environment().items() if not name.startswith("GITHUB_")}
    kept |= {"UV_TOOL_DIR": str(folder / "uv-tools"), "UV_TOOL_BIN_DIR": str(folder / "bin")}
    return {**kept, "PATH": f"{tools}:/usr/bin:/bin", "UV_PYTHON": str(BIN / "python"), **more}


# GitHub


def resolved(text: str, values: Mapping[str, str]) -> str:
    """The text with its `${{ a || b }}` replaced by the first of the values that is not empty, as the runner does."""

    def value(found: re.Match[str]) -> str:
        names = [name.strip() for name in found[1].split("||")]
        return next((values[name] for name in names if values[name]), "")

    return re.sub(r"\$\{\{(.*?)\}\}", value, text)


def steps_of_action(root: Path, folder: Path, given: Mapping[str, str]) -> list[tuple[str, dict[str, str]]]:
    """(script, variables) of every shell step, with the inputs of the workflow and the defaults of the others."""
    action = loaded(root / "action.yml")
    assert set(given) <= set(action["inputs"])
    inputs = {name: given.get(name, spec.get("default")) for name, spec in action["inputs"].items()}
    values = {f"inputs.{name}": text for name, text in inputs.items()}
    values |= {"github.action_path": str(root), "runner.temp": str(folder / "temp")}
    steps = [step for step in action["runs"]["steps"] if "run" in step]
    assert all(step["shell"] == "bash" for step in steps)
    return [(step["run"], {name: resolved(text, values) for name, text in step["env"].items()}) for step in steps]


def act(root: Path, folder: Path, **given: str) -> subprocess.CompletedProcess[str]:
    """The last step that ran: what the runner does with the shell steps, in `folder` as the workspace."""
    files = {name: folder / name.lower() for name in ("GITHUB_PATH", "GITHUB_STEP_SUMMARY")}
    for file in files.values():
        file.touch()
    more = {"GITHUB_ACTIONS": "true", **{name: str(file) for name, file in files.items()}}
    env = environment(folder, **more)
    for number, (script, variables) in enumerate(steps_of_action(root, folder, given)):
        (folder / f"step{number}.sh").write_text(script)
        added = files["GITHUB_PATH"].read_text().split()
        path = ":".join([*reversed(added), env["PATH"]])
        command = [*GITHUB_BASH, folder / f"step{number}.sh"]
        done = subprocess.run(
            command, cwd=folder, env={**env, **variables, "PATH": path}, capture_output=True, text=True
        )
        if done.returncode:
            break
    return done


def test_the_action_and_the_workflow_match_the_schemas_of_github(root: Path, tmp_path: Path) -> None:
    workflow = root / "docs" / "examples" / "pull-request.yaml"
    for file, schema, right, broken in (
        (root / "action.yml", ACTION, "shell: bash", "shel: bash"),
        (workflow, GITHUB, "runs-on:", "run-on:"),
    ):
        done = checked(file, schema)
        assert done.returncode == 0, done.stdout
        (tmp_path / file.name).write_text(file.read_text().replace(right, broken))
        assert checked(tmp_path / file.name, schema).returncode == 1


def test_the_workflow_gives_the_action_inputs_that_it_has(root: Path) -> None:
    action = loaded(root / "action.yml")
    workflow = loaded(root / "docs" / "examples" / "pull-request.yaml")
    required = {name for name, spec in action["inputs"].items() if spec.get("required")}
    uses = [step for job in workflow["jobs"].values() for step in job["steps"] if "/packing-harness@" in step["uses"]]
    assert uses
    assert all(required <= set(step["with"]) <= set(action["inputs"]) for step in uses)


def test_expressions_of_the_action_name_inputs_that_it_has(root: Path) -> None:
    text = (root / "action.yml").read_text()
    named = set(re.findall(r"inputs\.(\w+)", text))
    assert named == set(loaded(root / "action.yml")["inputs"])


def test_shell_steps_of_the_action_are_sound(root: Path, tmp_path: Path) -> None:
    scripts = [script for script, _ in steps_of_action(root, tmp_path, {"matrix": "m.yaml"})]
    assert len(scripts) == 2
    assert [said for script in scripts if (said := shellcheck(script))] == []
    assert all("${{" not in script for script in scripts)  # inputs enter as variables, never as text of a script


@pytest.mark.train
def test_the_action_installs_runs_and_writes_the_summary(root: Path, tmp_path: Path) -> None:
    tiny(tmp_path, ", tp: [1, 2]")
    done = act(root, tmp_path, matrix="tiny.yaml", args="-k tp1 --set train.steps=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS" in done.stdout
    (run,) = (tmp_path / "temp" / "packing-report").glob("*/")
    cases = [case.get("name", "") for case in ElementTree.parse(run / "junit.xml").iter("testcase")]
    assert cases
    assert all(name.startswith("tp1-") for name in cases)
    assert run.name in (tmp_path / "github_step_summary").read_text()
    assert Path(shutil.which("harness", path=str(tmp_path / "bin")) or "").is_file()
    # In the same job: a matrix that is wrong.
    (tmp_path / "tiny.yaml").write_text("name: tiny\nmatrix: {packing: sfd}\n")
    done = act(root, tmp_path, matrix="tiny.yaml")
    assert done.returncode == 2
    assert "sfd" in done.stdout + done.stderr


# GitLab


def component(root: Path, given: Mapping[str, str]) -> dict[str, Any]:
    """The configuration after GitLab has put the values in place of `$[[ inputs.name ]]`."""
    text = (root / "templates" / "packing.yml").read_text()
    head, _, body = text.partition("\n---\n")
    specs = YAML(typ="safe", pure=True).load(head)["spec"]["inputs"]
    missing = {name for name, spec in specs.items() if "default" not in spec} - set(given)
    unknown = set(given) - set(specs)
    assert not missing | unknown
    values = {name: given.get(name, spec.get("default")) for name, spec in specs.items()}
    body = re.sub(r"\$\[\[ inputs\.(\w+) \]\]", lambda found: str(values[found[1]]) or '""', body)
    made: dict[str, Any] = YAML(typ="safe", pure=True).load(body)
    return made


def test_the_component_matches_the_schema_of_gitlab(root: Path, tmp_path: Path) -> None:
    made = component(root, {"matrix": "packing/gate.yaml", "harness": "packing-harness"})
    spec = YAML(typ="safe", pure=True).load((root / "templates" / "packing.yml").read_text().partition("\n---\n")[0])
    for name, value, right, broken in (("spec.yml", spec, "inputs:", "input:"), ("job.yml", made, "script:", "scrip:")):
        YAML().dump(value, tmp_path / name)
        done = checked(tmp_path / name, GITLAB)
        assert done.returncode == 0, done.stdout
        text = (tmp_path / name).read_text()
        (tmp_path / name).write_text(text.replace(right, broken))
        assert checked(tmp_path / name, GITLAB).returncode == 1
    assert set(made) == {"packing"}
    assert made["packing"]["cache"]["key"]["files"] == ["packing/gate.yaml"]


def test_the_script_of_the_component_is_sound(root: Path) -> None:
    job = component(root, {"matrix": "m.yaml", "harness": "packing-harness"})["packing"]
    script = "\n".join([*job["before_script"], *job["script"]])
    # SC2086: ARGS is split into words. SC2155: a failure of uv shows in the line before.
    assert shellcheck(f"# shellcheck disable=SC2086,SC2155\n{script}") == ""
    assert "$[[" not in script


@pytest.mark.train
def test_the_script_of_the_component_installs_and_runs(root: Path, tmp_path: Path) -> None:
    tiny(tmp_path)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    given = {"matrix": "tiny.yaml", "harness": str(root), "args": "--set train.steps=2"}
    job = component(root, given)["packing"]
    env = environment(tmp_path, CI_PROJECT_DIR=str(tmp_path))
    pip = tmp_path / "tools" / "pip"  # uv is there; nothing else is asked of it
    pip.write_text('#!/bin/sh\n[ "$*" = "install --quiet uv" ]\n')
    pip.chmod(0o755)
    for name, value in job["variables"].items():
        env[name] = str(value).replace("$CI_PROJECT_DIR", str(tmp_path))
    script = "\n".join([*job["before_script"], *job["script"]])
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(tmp_path.glob(job["artifacts"]["reports"]["junit"]))) == 1
    (reports,) = job["artifacts"]["paths"]
    assert {file.suffix for file in tmp_path.glob(reports)} == {".html", ".json", ".md"}
    changes = subprocess.run(["git", "-C", tmp_path, "status", "--short"], capture_output=True, text=True).stdout
    assert ".packing" not in changes
