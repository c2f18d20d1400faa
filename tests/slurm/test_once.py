"""On the real cluster: every submission becomes one job, and an attempt belongs to one start of that job."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from harness.core.outcomes import Outcome
from harness.core.run.events import read_lines
from harness.core.serialization import loads
from harness.infra.files import shipped
from tests.processes import HUNG_S
from tests.slurm.cluster import Cluster
from tests.slurm.lab import SlurmLab
from tests.slurm.machine import SEARCH_PATH
from tests.slurm.test_limits import FOR_EVER, HANGS
from tests.slurm.test_trouble import ONE, RUN

pytestmark = [pytest.mark.slurm, pytest.mark.train]
TIMED_OUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
# The first call keeps its job file and fails like sbatch when the controller does not answer.
LATE = f"""\
echo "$@" >> "$here/submissions"
if [ ! -e "$here/kept" ]; then
  cp "$1" "$here/kept.new" && mv "$here/kept.new" "$here/kept"
  echo '{TIMED_OUT}' >&2
  exit 1
fi
"""


@pytest.fixture
def cluster(lab: SlurmLab, tmp_path: Path) -> Cluster:
    return Cluster(lab, tmp_path, ONE)


def jobs_of_the_run(cluster: Cluster) -> list[str]:
    """Sorted ids of all jobs of the run that the controller knows."""
    rows = cluster.lab.output("squeue", "-h", "-t", "all", "-o", "%F %j").splitlines()
    return sorted(row.split()[0] for row in rows if cluster.directory.name in row)


def agents(cluster: Cluster) -> list[dict[str, Any]]:
    return [event for path in cluster.directory.glob("agents/*.jsonl") for event in read_lines(path)]


def begun(cluster: Cluster) -> Counter[str]:
    return Counter(event["cell"] for event in agents(cluster) if event["event"] == "cell_started")


def test_a_job_that_appears_seconds_after_sbatch_gave_up_is_not_submitted_again(cluster: Cluster) -> None:
    cluster.shim("sbatch", LATE + 'real "$@"')
    # The controller makes the job when squeue is asked for it the third time.
    cluster.shim(
        "squeue",
        'case "$*" in *--name=*) echo x >> "$here/asked"; esac\n'
        '[ -e "$here/asked" ] && [ "$(wc -l < "$here/asked")" = 3 ] && [ ! -e "$here/made" ] && touch "$here/made" &&\n'
        f'{shutil.which("sbatch", path=SEARCH_PATH)} "$here/kept" > /dev/null\n'
        'real "$@"',
    )
    code, output = cluster.run(*RUN)
    assert code == 0, output
    assert "Socket timed out" in output
    assert len((cluster.shims / "submissions").read_text().splitlines()) == len(cluster.jobs()) == 2
    assert jobs_of_the_run(cluster) == sorted(cluster.jobs().values())
    assert set(begun(cluster).values()) == {1}


def test_of_two_jobs_of_one_submission_one_runs_the_cells_and_the_other_ends_by_itself(cluster: Cluster) -> None:
    """The controller makes the first job only after the launcher has stopped waiting and submitted a second one."""
    cluster.shim("sbatch", LATE + '[ -e "$here/first" ] || real "$here/kept" > "$here/first"\nreal "$@"')
    code, output = cluster.run(*RUN)
    assert code == 0, output
    first = (cluster.shims / "first").read_text().split()[-1]
    noted = list(cluster.jobs().values())
    assert jobs_of_the_run(cluster) == sorted([first, *noted])
    assert set(begun(cluster).values()) == {1}
    claims = [loads(path.read_text())["job"] for path in cluster.directory.glob("agents/*.claim-*.json")]
    assert len(claims) == len(set(claims)) == 2
    assert set(claims) < {first, *noted}
    cluster.lab.wait_for(lambda: cluster.lab.output("squeue", "-h") == "", 60, "no job is left")
    assert len(list(cluster.directory.glob("cells/*/attempt-*"))) == len(cluster.report().cells)


def test_a_requeued_job_is_judged_by_its_second_start_while_ranks_of_the_first_still_run(
    lab: SlurmLab, tmp_path: Path
) -> None:
    cluster = Cluster(lab, tmp_path, ONE)
    profile = (shipped("matrices") / "clusters/slurm-lab.yaml").read_text()
    (tmp_path / "requeue.yaml").write_text(f"{profile}requeue: true\n")
    cluster.prepare(FOR_EVER, "--cluster", "./requeue.yaml", planned=False)
    launcher = cluster.start("resume", "latest")
    cluster.until_training(HANGS, 1)
    job = cluster.jobs()[cluster.allocation(HANGS)]
    node = lab.output("squeue", "-h", "-o", "%N", "-j", job)
    cluster.as_planned(HANGS)  # without the fault, for the second start
    lab.freeze_daemon(node)
    try:
        output, _ = launcher.communicate(timeout=HUNG_S)
        first = cluster.attempt(HANGS)
        assert launcher.returncode == 0, output
        verdicts = {name: cell.outcome for name, cell in cluster.cells().items()}
        assert verdicts[HANGS] is Outcome.FLAKY
        records = {path: path.read_bytes() for path in first.parent.glob("attempt-2/ranks/*.json")}
        assert records
        cluster.kill_agents()  # of the first start; their supervisors end too, and may still write
        assert cluster.run("report", "latest")[0] == 0
        assert {name: cell.outcome for name, cell in cluster.cells().items()} == verdicts
        assert {path: path.read_bytes() for path in records} == records
    finally:
        lab.thaw_daemon(node)
        lab.wait_for(lambda: lab.node_states().get(node) in ("idle", "mixed"), 60, f"{node} is back")
    assert f"job {job} again (restart 1)" in cluster.result(HANGS).reason
    claims = sorted(path.name for path in cluster.directory.glob(f"agents/{cluster.allocation(HANGS)}.claim-*"))
    assert len(claims) == 2


TWO_AGENTS = """\
#!/bin/bash
{% for line in header + sbatch %}
{{ line }}
{% endfor %}
exec {{ srun }} --ntasks={{ 2 * job.allocations[0].nodes }} --ntasks-per-node=2 --overcommit bash -c {{ payload }}
"""


def test_the_second_agent_of_a_node_ends_and_the_run_ends_with_its_jobs(lab: SlurmLab, tmp_path: Path) -> None:
    cluster = Cluster(lab, tmp_path, f"{ONE}launch: {{nodes_per_cell: 2}}\n")
    (tmp_path / "two.sbatch.j2").write_text(TWO_AGENTS)
    profile = (shipped("matrices") / "clusters/slurm-lab.yaml").read_text()
    (tmp_path / "two.yaml").write_text(f"{profile}template: two.sbatch.j2\n")
    code, output = cluster.run("run", "one.yaml", "--cluster", "./two.yaml")
    live = lab.output("squeue", "-h", "-t", "RUNNING")
    assert code == 0, output
    assert live == ""
    assert {cell.outcome for cell in cluster.report().cells} == {Outcome.PASS}
    assert set(begun(cluster).values()) == {1, 2}  # the control on one node, the other cell on two
    two, one = sorted(cluster.jobs().items())[::-1]
    assert f"job {one[1]} started a second agent on node 0 (n" in output
    for node in (0, 1):
        assert f"job {two[1]} started a second agent on node {node} (n" in output


def test_the_shell_of_the_launcher_changes_no_job_and_sites_read_the_profiles_comment(
    lab: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(lab, tmp_path, f"{ONE}launch: {{nodes_per_cell: 2}}\n")
    profile = (shipped("matrices") / "clusters/slurm-lab.yaml").read_text()
    flags = """sbatch_flags: ['--comment={"reaper": "exempt"}', --wckey=team]"""
    (tmp_path / "site.yaml").write_text(f"{profile}{flags}\n")
    for name, value in {"SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "2", "SBATCH_TIMELIMIT": "7"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SBATCH_JOB_NAME", "interactive")
    code, output = cluster.run("run", "one.yaml", "--cluster", "./site.yaml")
    assert code == 0, output
    assert len(jobs_of_the_run(cluster)) == 2
    assert list(cluster.directory.glob("agents/*.second.json")) == []
    rows = lab.output("squeue", "-h", "-t", "all", "-o", "%F|%k|%l").splitlines()
    mine = [row.split("|", 1)[1] for row in rows if row.split("|")[0] in cluster.jobs().values()]
    assert len(mine) == 2 and all(row.startswith('{"reaper": "exempt"}|') and "7:00" not in row for row in mine), mine
