"""`harness resume --errors` of a run on a cluster, with a scripted Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli import cli
from harness.core.run.events import Retry, Submitted, note, read_events
from harness.core.run.run_dir import RunDir, write_json
from harness.launch.slurm import follow
from harness.runs.evidence_files import read_plan, read_result
from tests.cli.test_clusters import MATRIX, PROFILE
from tests.launch.scheduler import Scheduler, says


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run whose three jobs were submitted and then cancelled, while no launcher followed them."""
    monkeypatch.chdir(tmp_path)
    for name in ("LOOK_S", "SURE_AFTER_S", "DOUBT_ASK_S"):
        monkeypatch.setattr(follow, name, 0.01)
    Path("small.yaml").write_text(MATRIX)
    Path("own.yaml").write_text(PROFILE)
    assert cli.main(["run", "small.yaml", "--cluster", "./own.yaml", "--dry-run"]) == 0
    (folder,) = Path("reports").iterdir()
    made = RunDir(folder.resolve())
    for number, one in enumerate(read_plan(made).allocations):
        note(made.events, Submitted(job=one.array, allocations={one.name: f"7_{number}"}))
    write_json(made.cancelled, {})
    return made


def test_cells_of_a_detached_run_that_was_cancelled_run_again_the_first_time(
    run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm, plan = Scheduler(tmp_path, monkeypatch), read_plan(run)
    allocations = plan.allocations
    ids = [f"7_{number}" for number in range(len(allocations))]
    slurm.answers("sacct", says(*(f"{job}|CANCELLED by 0|0:0|n1|10:00" for job in (*ids, "1"))))
    assert cli.main(["resume", str(run.root), "--errors"]) == 3
    cells = [cell for one in allocations for cell in one.cells]
    assert f"retrying {len(cells)} cells that ended as ERROR" in capsys.readouterr().out
    retries = [event.allocation for event in read_events(run.events) if isinstance(event, Retry)]
    assert sorted(cell for one in retries for cell in one.cells) == sorted(cells)
    assert len(slurm.calls("sbatch")) == len(retries)
    assert not run.cancelled.exists()
    for cell in cells:
        result = read_result(run, cell)
        assert result is not None
        assert (result.attempt, result.status) == (2, "error")
