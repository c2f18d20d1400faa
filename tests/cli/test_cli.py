"""Commands that train nothing, and bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli.cli import build_parser
from harness.core.outcomes import EXIT_MEANINGS
from tests.cli.conftest import MATRIX, harness, write_matrix


def test_help_names_every_verb_and_the_exit_codes() -> None:
    text = build_parser().format_help()
    for word in ("run", "plan", "verify", "schema", "report", "logs", "doctor", "selftest", "130"):
        assert word in text


def test_the_page_of_commands_gives_the_meaning_of_every_exit_code(root: Path) -> None:
    page = (root / "docs" / "commands.md").read_text(encoding="utf-8")
    table = page[page.index("| exit code | meaning |") :].partition("\n\n")[0]
    assert table.splitlines()[2:] == [f"| {code} | {meaning} |" for code, meaning in EXIT_MEANINGS.items()]


def test_help_loads_nothing_heavy() -> None:
    heavy = "('torch', 'pydantic', 'rich', 'matplotlib', 'jinja2', 'ruamel', 'harness.core.run.records')"
    program = (
        "import sys; from harness.cli import cli\n"
        "try: cli.main(['--help'])\n"
        f"except SystemExit: pass\nassert not [name for name in {heavy} if name in sys.modules]"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


@pytest.mark.parametrize("command", ["plan", "run"])
def test_planning_and_running_never_load_torch_in_the_launcher(command: str, tmp_path: Path) -> None:
    arguments = [command, str(write_matrix(tmp_path))] + (["--dry-run"] if command == "run" else [])
    program = (
        "import sys\nfrom harness.cli import cli\nfrom harness.campaign import launch, reports\n"
        f"assert cli.main({arguments!r}) == 0\n"
        "assert 'torch' not in sys.modules and 'megatron' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, cwd=tmp_path)


def test_plan_shows_cells_and_costs_and_starts_nothing(tmp_path: Path) -> None:
    done = harness("plan", write_matrix(tmp_path), cwd=tmp_path)
    assert done.returncode == 0
    assert "tp2-pp2-cp1-sft" in done.stdout
    assert list(tmp_path.iterdir()) == [tmp_path / "small.yaml"]


def test_plan_as_json_is_json(tmp_path: Path) -> None:
    done = harness("plan", write_matrix(tmp_path), "--json", cwd=tmp_path)
    assert {cell["id"].rpartition("-")[0] for cell in json.loads(done.stdout)["cells"]} >= {"tp1-pp1-cp1-sft"}


def test_a_dry_run_shows_the_agent_command_and_writes_nothing(tmp_path: Path) -> None:
    done = harness("run", write_matrix(tmp_path), "--dry-run", cwd=tmp_path)
    assert done.returncode == 0
    assert "harness.runtime.agent" in done.stdout
    assert list(tmp_path.iterdir()) == [tmp_path / "small.yaml"]


def test_schema_prints_a_json_schema(tmp_path: Path) -> None:
    assert json.loads(harness("schema", cwd=tmp_path).stdout)["type"] == "object"


BAD = [
    (MATRIX.replace("packing:", "packng:"), ["small.yaml:7", "packng", "packing"]),
    (MATRIX.replace("steps: 2", "steps: two"), ["small.yaml:3", "train.steps"]),
    (MATRIX.replace("heads: 4", "heads: 5"), ["small.yaml:2", "heads"]),
    (MATRIX.replace("[reference, sft]", "[reference, stf]"), ["small.yaml:7", "stf", "sft"]),
    (MATRIX.replace("tp == pp", "tp > 9"), ["nothing left to run"]),
    (MATRIX.replace("steps: 2", "steps: two").replace("packing:", "packng:"), ["train.steps", "packng"]),
    ("name: [unclosed", ["small.yaml"]),
    ("", ["small.yaml"]),
]


@pytest.mark.parametrize(("text", "said"), BAD, ids=[said[-1] + str(number) for number, (_, said) in enumerate(BAD)])
@pytest.mark.parametrize("command", ["run", "plan", "verify"])
def test_bad_input_ends_with_2_names_the_place_and_leaves_nothing(
    text: str, said: list[str], command: str, tmp_path: Path
) -> None:
    done = harness(command, write_matrix(tmp_path, text), cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    for word in said:
        assert word in done.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "small.yaml"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "missing.yaml"], "missing.yaml"),
        (["run", "smal.yaml"], "did you mean small.yaml?"),
        (["plan", "smoek"], "did you mean smoke?"),
        (["run", "small.yaml", "--only", "tp2-pp2-cp1-sfd"], "did you mean tp2-pp2-cp1-sft"),
        (["run", "small.yaml", "--detach"], "--detach: there are no jobs on this machine"),
        (["logs", "nothing"], "no run 'nothing'"),
        (["doctor", "--cluster", "slurm-lap"], "did you mean 'slurm-lab'"),
        (["report", "nothing"], "no run 'nothing'"),
        (["report", "latest"], "no run 'latest'"),
        (["selftest", "--only", "no-such-fault"], "no-such-fault"),
        (["shrink", "latest", "a", "--rounds", "0"], "invalid number from 1 to 1,000,000,000 value: '0'"),
        (["frobnicate"], "no such command: 'frobnicate'"),
        (["verify", "n" * 300], "File name too long"),
        (["bisect", "small.yaml", "--repo", "n" * 300, "--good", "a", "--bad", "b"], "the name is too long"),
        (["report", "nothing", "--run-dir", "n" * 300], "no run 'nothing'"),
        (["history", "--history", "n" * 300], "there is no history"),
        (["history", "prune", "--history", "n" * 300, "--keep-last", "1"], "the name is too long"),
    ],
)
def test_what_does_not_exist_is_named(arguments: list[str], said: str, tmp_path: Path) -> None:
    write_matrix(tmp_path)
    done = harness(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())


def test_a_matrix_of_any_name_can_be_planned_for_a_cluster(tmp_path: Path) -> None:
    """Also of one that is not UTF-8."""
    small = write_matrix(tmp_path)
    matrix = small.rename(tmp_path / "small\udcff.yaml")
    (tmp_path / "here.yaml").write_text("name: here\nkind: slurm\nranks_per_node: 8\n")
    done = harness("run", matrix.name, "--dry-run", "--cluster", "./here.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    [plan] = tmp_path.glob("reports/*/plan.json")
    assert json.loads(plan.read_text())["matrix_file"] == matrix.name


def test_no_value_of_a_secret_variable_is_written_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "correct-horse-battery"
    monkeypatch.setenv("DB_PASSWORD", secret)
    write_matrix(tmp_path)
    (tmp_path / "here.yaml").write_text("name: here\nkind: slurm\nranks_per_node: 8\n")
    words = ("--dry-run", "--cluster", "./here.yaml", "--history", f"{secret}.sqlite")
    done = harness("run", "small.yaml", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    written = [path.read_text() for path in tmp_path.glob("reports/**/*") if path.is_file()]
    assert written
    assert secret not in "".join(written) + done.stdout + done.stderr


def test_explain_names_what_it_knows_and_what_is_near(tmp_path: Path) -> None:
    done = harness("explain", "params_present", cwd=tmp_path)
    assert done.returncode == 0
    assert "packed params exist for every layer" in done.stdout
    done = harness("explain", "paramspresent", cwd=tmp_path)
    assert done.returncode == 2
    assert "did you mean params_present" in done.stderr
