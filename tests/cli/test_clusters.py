"""`--cluster`, dry runs that write job files, and budgets, through the command line."""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from pathlib import Path

import pytest

from harness.cli import cli
from harness.core.run.run_plan import RunPlan
from harness.core.serialization import from_jsonable, loads
from tests.goldens import assert_golden

GOLDEN = Path(__file__).parents[1] / "launch" / "golden" / "dry-run.txt"
MATRIX = """\
name: small
train: {steps: 1}
launch: {cells_per_allocation: 1, throttle: 3, time_limit_min: 15, nodes_per_cell: 4}
matrix:
  layout: [{tp: 2, pp: 4, cp: 2}, {tp: 2, pp: 1, cp: 3}]
  packing: [reference, sft]
"""
PROFILE = """\
name: own
kind: slurm
nodes: 4
gpus_per_node: 8
time: 30
python: /opt/python
"""


def test_the_images_of_shipped_profiles_have_megatron_or_get_it_by_a_mount(root: Path) -> None:
    for file in (root / "matrices" / "clusters").glob("*.yaml"):
        image = re.search(r"^  image: (\S+)", file.read_text(), re.MULTILINE)
        assert image is None or "/nemo-" in image[1] or ":/opt/Megatron-LM" in file.read_text(), file.name


class _Noon(datetime):
    """A clock that always shows the same time."""

    @classmethod
    def now(cls, tz: object = None) -> _Noon:
        return cls(2027, 1, 31, 12, tzinfo=timezone.utc)


@pytest.fixture(autouse=True)
def _small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HARNESS_CLUSTERS", raising=False)
    monkeypatch.setattr("harness.campaign.plan_run.datetime", _Noon)
    monkeypatch.setattr("harness.campaign.plan_run.secrets.token_hex", lambda size: "a1b2")
    monkeypatch.setattr("harness.__version__", "1.2.3")
    monkeypatch.setenv("PATH", str(tmp_path))  # no sbatch, which would estimate when a job starts
    Path("small.yaml").write_text(MATRIX)
    Path("own.yaml").write_text(PROFILE)


RUN = Path("reports") / "small-20270131T120000Z-a1b2"


def test_a_dry_run_writes_exactly_these_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "small.yaml", "--cluster", "./own.yaml", "--dry-run"]) == 0
    said = capsys.readouterr().out
    parts = [f"$ harness run\n{said}"]
    parts += [
        f"==> {path.relative_to(RUN)} <==\n{path.read_text()}" for path in sorted((RUN / "submissions").iterdir())
    ]
    text = "\n".join(parts).replace(str(tmp_path), "/home-of-the-user")
    assert_golden(GOLDEN, text)


def test_a_dry_run_leaves_a_run_directory_that_is_ready_to_start() -> None:
    cli.main(["run", "small.yaml", "--cluster", "./own.yaml", "--dry-run"])
    plan = from_jsonable(RunPlan, loads((RUN / "plan.json").read_text()))
    ordered = [
        cell["cell"]
        for allocation in plan.allocations
        for cell in json.loads((RUN / "submissions" / f"{allocation.name}.json").read_text())["cells"]
    ]
    assert sorted(ordered) == sorted(cell.id for cell in plan.expansion.cells)
    assert all((RUN / "cells" / cell / "attempt-1" / "config.json").is_file() for cell in ordered)
    assert sorted(path.name for path in RUN.iterdir()) == [
        *("cells", "cluster.json", "matrix.resolved.yaml", "plan.json", "submissions")
    ]


def test_a_plan_above_the_budget_is_refused_before_anything_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", "small.yaml", "--cluster", "./own.yaml", "--dry-run", "--max-gpu-hours"]
    assert cli.main([*command, "8"]) == 2
    error = capsys.readouterr().err
    assert "the plan may cost 8.25 GPU-hours" in error
    assert "4n4r: 2 x 16 x 0.25 h = 8" in error
    assert not Path("reports").exists()
    assert cli.main([*command, "8.25"]) == 0


@pytest.mark.parametrize("hours", ["0", "-1", "nan", "inf", "many"])
def test_a_budget_must_be_a_positive_number(hours: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["run", "small.yaml", f"--max-gpu-hours={hours}"])
    assert caught.value.code == 2
    assert "invalid number of hours value" in capsys.readouterr().err


def test_the_plan_of_a_cluster_shows_its_jobs_and_what_it_rejects(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "small.yaml", "--cluster", "./own.yaml"]) == 0
    text = capsys.readouterr().out
    assert "Submits: 2 arrays, 3 jobs" in text
    assert "Cost: 8.25 GPU-hours if every job runs into its time limit" in text
    assert "cluster.nodes: tp 2 x pp 1 x cp 3 x dp 1 = 6 ranks, launch.nodes_per_cell = 4: 4 nodes" in text
    assert cli.main(["plan", "small.yaml", "--cluster", "./own.yaml", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert [job["array"] for job in values["jobs"]] == ["1n1r", "4n4r"]
    assert [allocation["name"] for allocation in values["allocations"]] == ["1n1r-0", "4n4r-0", "4n4r-1"]


def test_a_cluster_without_gpus_counts_node_hours(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "small.yaml", "--cluster", "slurm-lab"]) == 0
    assert "Cost: 2.25 node-hours if every job" in capsys.readouterr().out
    assert cli.main(["run", "small.yaml", "--cluster", "slurm-lab", "--dry-run", "--max-gpu-hours", "1"]) == 2
    assert "cluster slurm-lab has no GPUs" in capsys.readouterr().err


def test_verify_reads_the_profile_that_the_matrix_names(capsys: pytest.CaptureFixture[str]) -> None:
    Path("small.yaml").write_text(MATRIX + "cluster: ./own.yaml\n")
    assert cli.main(["verify", "small.yaml"]) == 0
    assert "3 cells, 2 rejected" in capsys.readouterr().out
    Path("own.yaml").write_text(PROFILE + "tiem: 3\n")
    assert cli.main(["verify", "small.yaml"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "own.yaml:7" in error
    assert "did you mean 'time'?" in error


def test_the_profile_says_where_runs_are_kept_unless_the_command_line_does(tmp_path: Path) -> None:
    Path("own.yaml").write_text(PROFILE + f"run_dir: {tmp_path / 'shared'}\n")
    command = ["run", "small.yaml", "--cluster", "./own.yaml", "--dry-run"]
    assert cli.main(command) == cli.main([*command, "--run-dir", "here"]) == 0
    assert (tmp_path / "shared" / RUN.name / "plan.json").is_file()
    assert (tmp_path / "here" / RUN.name / "plan.json").is_file()


def test_logs_find_cells_by_pattern_and_name_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["run", "small.yaml", "--cluster", "./own.yaml", "--dry-run"])
    (cell,) = (RUN / "cells").glob("tp2-pp4-cp2-sft-*")
    log = cell / "attempt-1" / "log" / "rank-00003.log"
    log.parent.mkdir()
    log.write_text("first\n" * 50 + "the last word\n")
    (RUN / "submissions" / "4n4r.err").write_text("srun: error: node went away\n")
    capsys.readouterr()
    assert cli.main(["logs", "latest"]) == 0
    assert f"{Path.cwd() / RUN}/submissions/4n4r.err <==\nsrun: error: node went away" in capsys.readouterr().out
    for name in (cell.name, "tp2-pp4-cp2-sft", "*-sft"):
        assert cli.main(["logs", "latest", name]) == 0
        assert "the last word" in capsys.readouterr().out
    assert cli.main(["logs", "latest", "tp2-pp4-cp2-sft", "--rank", "3"]) == 0
    assert capsys.readouterr().out.count("first") == 50
    for wrong, said in (
        (["tp2-pp4-cp2-sfd"], "did you mean tp2-pp4-cp2-sft"),
        (["tp2-pp4-cp2-sft", "--rank", "4"], "allowed: 3"),
        (["--rank", "3"], "needs a cell"),
    ):
        assert cli.main(["logs", "latest", *wrong]) == 2
        assert said in " ".join(capsys.readouterr().err.split())


def test_the_doctor_fails_where_there_is_no_slurm_and_not_for_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["doctor", "--cluster", "./own.yaml"]) == 3
    lines = {line.split()[1]: line for line in capsys.readouterr().out.splitlines()}
    assert "FAIL  sbatch            not on PATH" in lines["sbatch"]
    assert "/opt/python: no such file" in lines["interpreter"]
    assert lines["accounting"].startswith("warn")
    assert cli.main(["doctor"]) == 0
    assert "FAIL" not in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own.yaml", "small.yaml"]
