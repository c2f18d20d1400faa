"""A bisection on the cluster: the commits of a round run side by side in separate jobs, and its launcher is killed."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

from harness.core.run.events import read_lines
from harness.core.run.run_dir import RunDir
from harness.launch.slurm.submit import submitted
from tests.bisected import Project, checkout, copied, matrix_of, result_of
from tests.slurm.cluster import Cluster
from tests.slurm.lab import SlurmLab

pytestmark = [pytest.mark.slurm, pytest.mark.train, pytest.mark.long]
ROPE = "megatron/core/models/common/embeddings/rope_utils.py"
ANGLES = "freq_slice = _get_thd_freqs_on_this_cp_rank(cp_rank, cp_size, x, freqs)"


def project(folder: Path) -> Project:
    """base - one - guilty - three - tip; guilty rotates packed rows by twice the angle."""
    made = copied(folder)
    made.commit("one", "README.md", "", "A note.\n")
    made.commit("guilty", ROPE, ANGLES, f"{ANGLES} * 2")
    for name in ("three", "tip"):
        made.commit(name, "README.md", "", "More.\n")
    return made


def rounds(folder: Path) -> list[Path]:
    """The runs of the bisection, oldest first."""
    plans = folder.glob("reports/bisect-*/runs/*/plan.json")
    return [path.parent for path in sorted(plans, key=lambda path: path.stat().st_mtime_ns)]


def running(lab: SlurmLab, run: Path) -> dict[str, str]:
    """Running job of a run -> its node list."""
    rows = (row.split("|") for row in lab.output("squeue", "-h", "-t", "RUNNING", "-o", "%A|%N|%j").splitlines())
    return {job: nodes for job, nodes, name in rows if run.name in name}


def test_commits_of_a_round_run_side_by_side_in_separate_jobs_and_a_kill_loses_none(
    lab: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_STACKS", str(tmp_path / "stacks"))
    source = project(tmp_path / "source")
    cluster = Cluster(lab, tmp_path, matrix_of(checkout(source.folder), axes="tp: 1"))
    ends = ("--good", source.commits["base"], "--bad", source.commits["tip"], "--jobs", "3")
    command = ("bisect", str(cluster.matrix), "--repo", str(source.folder), *ends, "--cluster", "slurm-lab")

    launcher = cluster.start(*command)
    lab.wait_for(lambda: len(rounds(tmp_path)) == 2 or launcher.poll() is not None, 240, "a second round")
    assert launcher.poll() is None, launcher.communicate()[0]
    second = rounds(tmp_path)[1]
    side_by_side = lab.wait_for(
        lambda: jobs if len(jobs := running(lab, second)) == 3 else {}, 60, "three jobs at once"
    )
    launcher.send_signal(signal.SIGKILL)
    launcher.communicate()
    assert len(set(side_by_side.values())) == 3  # on different nodes

    code, output = cluster.run(*command)
    assert code == 0, output
    found = result_of(output, tmp_path)
    assert found.found is not None
    assert source.name(found.found.name) == "guilty"
    states = {source.name(point.name): point.state for point in found.points}
    assert states == {"base": "good", "one": "good", "guilty": "bad", "three": "bad", "tip": "bad"}
    assert f"continuing {second.relative_to(tmp_path)}" in output
    assert "not shrunk on the cluster" in output

    assert rounds(tmp_path)[1:] == [second]  # none was judged again
    begun = Counter(
        event["cell"]
        for path in tmp_path.glob("reports/bisect-*/runs/*/agents/*.jsonl")
        for event in read_lines(path)
        if event["event"] == "cell_started"
    )
    assert begun == dict.fromkeys(begun, 1)
    assert len(begun) == 2 * len(found.points)  # with the control of each
    lab.wait_for(lambda: lab.output("squeue", "-h") == "", 60, "no job left")
    jobs = {job for run in rounds(tmp_path) for job in submitted(RunDir(run)).values()}
    assert side_by_side.keys() < jobs
    assert len(jobs) == len(found.points)
    assert not list((tmp_path / "stacks" / "checkouts").glob("megatron-lm-*"))  # removed once judged
