"""A third-party package adds one of each, and is installed and run as users do."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.core.outcomes import Outcome
from harness.core.run.report import Report
from harness.reporting.render_json import read_report
from tests.cli.conftest import harness, only_run
from tests.plugins.conftest import plugged

MATRIX = f"""\
name: plugged
model: {{layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocab: 64}}
train: {{steps: 1, global_batch: 8, seq_length: 64}}
stacks: {{other: {{python: "{sys.executable}"}}}}
matrix:
  stack: other
  packing: example
  pp: [1, 2]
  variant:
  - {{micro_batch_size: 1, model.builder: "", trainer: harness}}
  - {{micro_batch_size: 2, model.builder: "", trainer: harness}}
  - {{micro_batch_size: 2, model.builder: halved, trainer: harness}}
  - {{micro_batch_size: 2, model.builder: "", trainer: example}}
"""
LISTED = """\
packing-example 1.2
  projects    example-framework  packing_example.framework:PROJECT
  data_paths  contiguous  packing_example.contiguous:CONTIGUOUS
  data_paths  example  packing_example.data_path:EXAMPLE
  data_paths  framework  packing_example.framework:FRAMEWORK
  checks      example_fullness  packing_example.launcher:FULLNESS
  rules       example.one-stage  packing_example.launcher:ONE_STAGE
  notifiers   file  packing_example.launcher:write_file
  adapters    contiguous  packing_example.node_contiguous:ContiguousPath
  adapters    example  packing_example.node:ExamplePath
  adapters    framework  packing_example.node:FrameworkPath
  trainers    example  packing_example.node:ExampleTrainer
  models      halved  packing_example.node:halved
"""


@pytest.fixture(scope="module")
def folder(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the matrix has run."""
    place = tmp_path_factory.mktemp("run")
    (place / "plugged.yaml").write_text(MATRIX)
    done = plugged("run", "plugged.yaml", "--notify", "file:sent.json", cwd=place, site=site)
    assert done.returncode == 1, done.stdout + done.stderr
    return place


@pytest.fixture(scope="module")
def report(folder: Path) -> Report:
    return read_report((only_run(folder / "reports") / "report.json").read_text())


def short(cell: str) -> str:
    return cell.rpartition("-")[0]


@pytest.mark.train
def test_its_data_path_and_model_train_in_a_stack_that_lacks_the_package(folder: Path, report: Report) -> None:
    outcomes = {short(cell.id): cell.outcome for cell in report.cells if cell.role == "cell"}
    assert outcomes == {
        "tp1-pp1-cp1-example-other": Outcome.FAIL,
        "tp1-pp1-cp1-example-mbs2-other": Outcome.PASS,
        "tp1-pp1-cp1-example-mbs2-builderhalved-other": Outcome.PASS,
        "tp1-pp1-cp1-example-mbs2-other-example-trainer": Outcome.PASS,
    }
    losses = {short(cell.id): cell.curve.loss[0] for cell in report.cells}
    plain, halved = losses["tp1-pp1-cp1-unpacked-other"], losses["tp1-pp1-cp1-unpacked-builderhalved-other"]
    assert abs(plain - halved) > 1e-3
    run = only_run(folder / "reports")
    assert sorted(path.name for path in (run / "node-code").iterdir()) == ["harness", "packing_example"]


@pytest.mark.train
def test_its_check_fails_a_cell_and_no_other(report: Report) -> None:
    found = {short(cell.id): [(one.check, one.message) for one in cell.findings] for cell in report.cells}
    failed = {name: findings for name, findings in found.items() if findings}
    assert failed == {"tp1-pp1-cp1-example-other": [("example_fullness", "3 micro-batches in step 0")]}


@pytest.mark.train
def test_its_trainer_trains_like_the_harness(report: Report) -> None:
    """A third party's loop, recorded from outside: the losses and gradients of the harness's own loop."""
    cells = {short(cell.id): cell for cell in report.cells}
    own, other = (cells[f"tp1-pp1-cp1-example-mbs2-other{end}"] for end in ("", "-example-trainer"))
    assert other.curve.loss == pytest.approx(own.curve.loss, rel=1e-6)
    assert other.curve.grad_norm == pytest.approx(own.curve.grad_norm, rel=1e-6)


@pytest.mark.train
def test_its_rule_rejects(report: Report) -> None:
    rejected = [(cell.rule, cell.reason) for cell in report.rejected]
    assert rejected == [("example.one-stage", "pp is 2, and packing example feeds one stage")] * 4


@pytest.mark.train
def test_its_notifier_receives_the_verdict(folder: Path, report: Report) -> None:
    sent = json.loads((folder / "sent.json").read_text())
    assert (sent["verdict"], sent["run_id"]) == ("fail", report.run_id)


@pytest.mark.train
def test_the_run_records_the_plug_in_and_needs_it_to_be_judged_again(folder: Path, site: Path, report: Report) -> None:
    assert report.provenance.plugins == {"packing-example": "1.2"}
    assert plugged("report", "latest", "--no-history", cwd=folder, site=site).returncode == 1
    without = harness("report", "latest", "--no-history", cwd=folder)
    assert without.returncode == 2
    assert "the run used plug-ins that are not installed here: packing-example 1.2" in without.stderr


def test_plug_ins_are_listed_and_their_names_are_values(site: Path, tmp_path: Path) -> None:
    assert plugged("list", "plugins", cwd=tmp_path, site=site).stdout == LISTED
    assert harness("list", "plugins", cwd=tmp_path).stdout == "no plug-ins are installed\n"
    schema = json.loads(plugged("schema", cwd=tmp_path, site=site).stdout)
    assert '"example"' in json.dumps(schema)
    (tmp_path / "plugged.yaml").write_text(MATRIX)
    assert (
        plugged("verify", "plugged.yaml", cwd=tmp_path, site=site).stdout == "plugged.yaml: ok, 6 cells, 4 rejected\n"
    )
    without = harness("verify", "plugged.yaml", cwd=tmp_path)
    assert without.returncode == 2
    assert "must be one of unpacked, reference" in without.stderr


def distribution(site: Path, name: str, entries: str, code: str = "") -> None:
    """An installed distribution: its metadata, as installers write it, and a module of the same name."""
    info = site / f"{name}-3.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 3.0\n")
    (info / "entry_points.txt").write_text(entries)
    (site / f"{name}.py").write_text(code)


def project(name: str, **facts: Any) -> str:
    """Code that makes a project X."""
    given = {"title": "X", "distribution": "x", "repositories": ("x",), "modules": ("x",), "data_path": "sft"} | facts
    arguments = ", ".join(f"{key}={value!r}" for key, value in given.items())
    return (
        f"from harness.upstreams.project import ON_TORCH, Project\n"
        f"X = Project(name={name!r}, runs_on=(ON_TORCH,), {arguments})"
    )


@pytest.mark.parametrize(
    ("entries", "code", "said"),
    [
        ("[packing_harness.checks]\nx = broken:X\n", "import gone", "cannot be loaded: ModuleNotFoundError: No module"),
        ("[packing_harness.checks]\nx = broken:X\n", "X = 1", "must be a Check, not int"),
        ("[packing_harness.rules]\nx = broken:X\n", "X = 1", "must be a Rule, not int"),
        ("[packing_harness.data_paths]\nx = broken:X\n", "X = 1", "must be a DataPath, not int"),
        ("[packing_harness.notifiers]\nx = broken:X\n", "X = 1", "must be a function, not int"),
        (
            "[packing_harness.checks]\nstep_loss = broken:X\n",
            "from harness.judge.checks.table import CHECKS\nX = next(one for one in CHECKS if one.name == 'step_loss')",
            "the name 'step_loss' is taken, by the harness or another plug-in",
        ),
        (
            "[packing_harness.checks]\nmine = broken:X\n",
            "from harness.judge.checks.table import CHECKS\nX = CHECKS[0]",
            "the entry point is named 'mine', and what it loads 'params_present'",
        ),
        ("[packing_harness.projects]\nx = broken:X\n", "X = 1", "must be a Project, not int"),
        ("[packing_harness.projects]\nx = broken:X\n", project("X"), "the name 'X' of a project must be lower case"),
        ("[packing_harness.projects]\nx = broken:X\n", project("x", modules=()), "modules of the project 'x' must be"),
        ("[packing_harness.projects]\nverl = broken:X\n", project("verl"), "the name 'verl' is taken"),
        (
            "[packing_harness.projects]\nx = broken:X\n",
            project("x", data_path="gone"),
            "names the data path 'gone', which is not there",
        ),
        (
            "[packing_harness.projects]\nx = broken:X\n",
            project("x", gate="/no/gate.yaml"),
            "names the gate /no/gate.yaml, which is not there",
        ),
        ("[packing_harness.trainers]\nmegatron = broken:X\n", "", "the name 'megatron' is taken"),
        ("[packing_harness.adapters]\nsft = broken:X\n", "", "the name 'sft' is taken"),
        (
            "[packing_harness.adapters]\nalone = broken:X\n",
            "",
            "needs an entry point of this name in packing_harness.data_",
        ),
    ],
)
def test_a_broken_plug_in_is_an_input_error_that_names_it(tmp_path: Path, entries: str, code: str, said: str) -> None:
    distribution(tmp_path / "site", "broken", entries, code)
    done = plugged("list", "plugins", cwd=tmp_path, site=tmp_path / "site")
    assert done.returncode == 2
    assert done.stdout.startswith("broken 3.0\n")
    (line,) = [line for line in done.stderr.splitlines() if said in line]
    assert line.startswith("error: plug-in broken 3.0: packing_harness.")
    assert line.endswith("(correct or uninstall broken; `harness list plugins` lists all)")


def test_two_plug_ins_cannot_have_one_name(tmp_path: Path) -> None:
    for name in ("one", "two"):
        distribution(tmp_path / "site", name, f"[packing_harness.models]\nsame = {name}:X\n")
    done = plugged("plan", "smoke", cwd=tmp_path, site=tmp_path / "site")
    assert done.returncode == 2
    assert "plug-in two 3.0: packing_harness.models: same = two:X: the name 'same' is taken" in done.stderr


@pytest.mark.train
def test_context_ranks_hold_the_slots_that_the_data_path_says(tmp_path: Path, site: Path) -> None:
    """Documents are cut anywhere."""
    sizes = MATRIX.partition("stacks:")[0]
    cells = (
        "matrix: {packing: contiguous, case: [{cp: 2, pp: 1, tp: 1}, {cp: 2, pp: 2, tp: 1}, {cp: 4, pp: 1, tp: 2}]}\n"
    )
    (tmp_path / "contiguous.yaml").write_text(sizes + cells)
    done = plugged("run", "contiguous.yaml", cwd=tmp_path, site=site)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 PASS" in done.stdout
