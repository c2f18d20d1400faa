"""Job files byte by byte, and how bash and sbatch read hostile names."""

from __future__ import annotations

import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import InputError
from harness.core.hardware import DETERMINISM_VARIABLES, WITHOUT_VARIABLE, determinism_variables
from harness.core.run.run_dir import RunDir
from harness.core.run.run_plan import Allocation
from harness.infra import templating
from harness.infra.files import shipped
from harness.inputs.cluster_file import read_profile
from harness.launch.slurm.sbatch_template import Job, array_indices, environment_of, job_name, render_job
from harness.matrix.cluster import ClusterProfile, Container
from tests.goldens import assert_golden
from tests.processes import HUNG_S

GOLDEN = Path(__file__).parents[1] / "golden"
RUN_ID = "smoke-20270131T120000Z-a1b2"
COMMAND = ("harness", "run", "matrices/smoke.yaml", "--cluster", "x")
HOSTILE = ["it's", 'say "hi"', "a b", "$(touch owned)", "`touch owned`", "x; touch owned", "a\\b", "#no", "$HOME", "*"]
LAB = ClusterProfile(name="lab", kind="slurm", ranks_per_node=8)


@pytest.fixture(autouse=True)
def _any_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.__version__", "1.2.3")


def members(count: int, nodes: int = 1, ranks: int = 8, minutes: int | None = None) -> tuple[Allocation, ...]:
    array = f"{nodes}n{ranks}r"
    return tuple(
        Allocation(
            name=f"{array}-{index}",
            cells=("c",),
            nodes=nodes,
            ranks_per_node=ranks,
            array=array,
            index=index,
            time_limit_min=minutes,
        )
        for index in range(count)
    )


def rendered(profile: ClusterProfile, job: Job | None = None, **more: Any) -> str:
    values: dict[str, Any] = {
        "run": RunDir(Path("/shared/reports") / RUN_ID),
        "run_id": RUN_ID,
        "command": COMMAND,
        "python": profile.python or "/opt/venv/bin/python",
        "template": shipped("sbatch_templates") / "default.sbatch.j2",
    }
    return render_job(job or Job(name="1n8r", allocations=members(1)), profile, **values | more)


@dataclass(frozen=True)
class Golden:
    """A job file that is compared whole: a shipped profile with changes, and its job."""

    profile: str
    job: Job
    changes: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] | None = None  # of a stack

    def text(self, root: Path, **more: Any) -> str:
        profile = read_profile(root / "matrices" / "clusters" / f"{self.profile}.yaml")
        return rendered(replace(profile, **{**self.changes, **more}), self.job, env=self.env)


GOLDENS = {
    "slurm-lab": Golden(
        "slurm-lab", Job(name="4n4r", allocations=members(6, nodes=4, ranks=4, minutes=20), throttle=2)
    ),
    "h100-pyxis": Golden("h100-pyxis", Job(name="2n8r", allocations=members(3, nodes=2), throttle=64)),
    "h100-pyxis-part-of-a-node": Golden(
        "h100-pyxis", Job(name="1n2r", allocations=members(1, ranks=2)), {"exclusive": False}
    ),
    "h100-pyxis-container-of-a-stack": Golden(
        "h100-pyxis",
        Job(name="4n8r-main", allocations=members(1, nodes=4)),
        {"container": Container(image="/images/own.sqsh", mounts=("/data:/data", "/trees/lm:/trees/lm"))},
        {"PYTHONPATH": "/trees/lm:/shared/node", "A": "b c"},
    ),
    "bare-metal": Golden("bare-metal", Job(name="1n2r", allocations=members(1, ranks=2), exclude=("gpu-07", "gpu-09"))),
    "bare-metal-four-nodes": Golden("bare-metal", Job(name="4n8r", allocations=members(2, nodes=4), throttle=1)),
    "a100-apptainer": Golden("a100-apptainer", Job(name="4n2r", allocations=members(1, nodes=4, ranks=2))),
}


@pytest.mark.parametrize("name", GOLDENS)
def test_a_ready_profile_gives_exactly_this_job_file(root: Path, name: str) -> None:
    text = GOLDENS[name].text(root)
    assert_golden(GOLDEN / f"{name}.sbatch", text)
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["h100-pyxis", "bare-metal", "a100-apptainer"])
def test_the_profiles_to_copy_keep_srun_from_loading_an_mpi_plugin(root: Path, name: str) -> None:
    assert "--mpi=none" in read_profile(root / "matrices" / "clusters" / f"{name}.yaml").srun_flags


def test_every_golden_is_compared() -> None:
    assert sorted(path.stem for path in GOLDEN.glob("*.sbatch")) == sorted(GOLDENS)


def test_every_optional_key_becomes_its_flag() -> None:
    profile = replace(
        LAB, partition="p", account="a", qos="q", reservation="r", constraint="[a|b]", exclude=("n1", "n2"), mem="8G",
        cpus_per_task=4, signal="B:USR1@60", requeue=True, exclusive=True, gpus_per_node=8, gres="gpu:h100",
        gpu_flag="gres", sbatch_flags=("--switches=1", "--contiguous"), srun_flags=("--mpi=none",),
    )  # fmt: skip
    text = rendered(profile)
    for flag in (
        "partition=p", "account=a", "qos=q", "reservation=r", "constraint=[a|b]", "exclude=n1,n2", "mem=8G",
        "cpus-per-task=4", "signal=B:USR1@60", "requeue", "exclusive", "gres=gpu:h100:8", "switches=1", "contiguous",
    ):  # fmt: skip
        assert f"\n#SBATCH --{flag}\n" in text
    assert "--mpi=none" in text
    assert "--cpus-per-task=4 \\\n" in text


def test_a_comment_of_the_profile_takes_the_place_of_the_harness_own(sbatch: str, tmp_path: Path) -> None:
    """Sites read it, e.g. to spare jobs whose GPUs are idle; a second one, or a mark in it, would break theirs."""
    comment = '{"OccupiedIdleGPUsJobReaper":{"exemptIdleTimeMins":"60"}}'
    profile = replace(LAB, sbatch_flags=(f"--comment={comment}", "--wckey=team"))
    read = sbatch_reads(sbatch, rendered(profile), tmp_path)
    assert [flag for flag in read if flag.startswith("--comm")] == [f"--comment={comment}"]
    assert "--wckey=team" in read
    assert f"--job-name={RUN_ID}.1n8r" in read


def test_gpu_flag_none_requests_no_gpus() -> None:
    requested = [rendered(replace(LAB, gpus_per_node=8, gpu_flag=flag)) for flag in ("gpus-per-node", "none")]
    assert ["gpus-per-node=8" in text for text in requested] == [True, False]
    assert all("gres" not in text for text in requested)


def test_the_profile_overrides_the_determinism_environment() -> None:
    made = dict(environment_of(replace(LAB, env={"NCCL_ALGO": "Tree", "NVTE_ALLOW_NONDETERMINISTIC_ALGO": None})))
    assert made == {
        "NCCL_ALGO": "Tree",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        WITHOUT_VARIABLE: "NVTE_ALLOW_NONDETERMINISTIC_ALGO",
    }
    assert determinism_variables(made, timed=False) == {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def test_the_job_file_leaves_determinism_to_ranks_which_know_whether_they_are_timed(root: Path) -> None:
    for golden in GOLDENS.values():
        text = golden.text(root)
        assert not [name for name in DETERMINISM_VARIABLES if f"export {name}=" in text]


def test_a_job_name_has_at_most_64_characters_and_keeps_the_runs_time_and_digits() -> None:
    assert job_name(RUN_ID, "1n8r") == f"{RUN_ID}.1n8r"
    long = job_name("m" * 40 + "-." * 12 + "-20270131T120000Z-a1b2", "1n8r")
    assert len(long) <= 64
    assert long.endswith("-20270131T120000Z-a1b2.1n8r")
    assert long[0].isalnum()


def test_array_members_are_written_as_spans() -> None:
    assert [array_indices(given) for given in ([0], [0, 1, 2, 3], [7, 1, 2, 9])] == ["0", "0-3", "1-2,7,9"]


def test_a_throttle_above_the_size_of_the_array_is_cut_to_it() -> None:
    assert "\n#SBATCH --array=0-2%3\n" in rendered(LAB, Job(name="a", allocations=members(3), throttle=99))


def shell_run(text: str, folder: Path, **variables: str) -> list[list[str]]:
    """Run a job file with bash; a stub of srun runs its payload, a stub of python prints its arguments."""
    (folder / "bin").mkdir(exist_ok=True)
    show = f"#!{sys.executable}\nimport sys, json; print(json.dumps(sys.argv[1:]))\n"
    srun = '#!/bin/bash\nwhile [[ $1 == --* ]]; do printf "%s\\n" "$1" >> "$SEEN"; shift; done\nexec "$@"\n'
    for name, program in (("py $(touch owned)'", show), ("srun", srun)):
        (folder / "bin" / name).write_text(program)
        (folder / "bin" / name).chmod(0o755)
    (folder / "job.sbatch").write_text(text)
    seen = folder / "flags"
    env = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "SLURM_NODEID": "3", "SEEN": str(seen), **variables}
    done = subprocess.run(
        ["bash", "job.sbatch"], cwd=folder, env=env, capture_output=True, text=True, check=True
    ).stdout
    return [json.loads(done), seen.read_text().splitlines()]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_reaches_the_agent_as_it_is_and_runs_nothing(name: str, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "r" / name.replace("\\", "_"))
    profile = replace(
        LAB,
        env={"ODD": name},
        setup=('printf "%s" "$ODD" > odd',),
        container=Container(image=name, mounts=(f"/{name}:/x",), workdir=f"/{name}"),
    )
    job = Job(name="1n8r", allocations=members(4))
    python = str(tmp_path / "bin" / "py $(touch owned)'")
    text = rendered(profile, job, run=run, python=python, command=["harness", "run", name])
    arguments, flags = shell_run(text, tmp_path, SLURM_ARRAY_TASK_ID="2")
    assert arguments == ["-m", "harness.runtime.agent", str(run.root), "1n8r-2", "--node", "3", "--nodes", "1"]
    assert f"--container-image={name}" in flags
    assert f"--container-mounts={run.root}:{run.root},/{name}:/x" in flags
    assert (tmp_path / "odd").read_text() == name
    assert not (tmp_path / "owned").exists()


def test_apptainer_starts_the_agent_with_mounts_and_gpus(tmp_path: Path) -> None:
    """A stub of apptainer records its arguments and runs its command, as the real one does in the container."""
    (tmp_path / "bin").mkdir()
    program = '#!/bin/bash\nwhile [[ $1 == exec || $1 == --* ]]; do printf "%s\\n" "$1" >> "$SEEN"; shift; done\n'
    (tmp_path / "bin" / "apptainer").write_text(program + 'printf "%s\\n" "$1" >> "$SEEN"; shift; exec "$@"\n')
    (tmp_path / "bin" / "apptainer").chmod(0o755)
    run, python = RunDir(tmp_path / "r"), str(tmp_path / "bin" / "py $(touch owned)'")
    container = Container(image="/i/my image.sif", runtime="apptainer", mounts=("/a b:/x",), workdir="/x y")
    profile = replace(LAB, gpus_per_node=8, container=container, srun_flags=("--mpi=none",))
    arguments, flags = shell_run(rendered(profile, run=run, python=python), tmp_path)
    assert arguments == ["-m", "harness.runtime.agent", str(run.root), "1n8r-0", "--node", "3", "--nodes", "1"]
    inside = ["exec", "--nv", f"--bind={run.root}:{run.root},/a b:/x", "--pwd=/x y", "/i/my image.sif"]
    assert flags[-6:] == ["--mpi=none", *inside]
    on_cpus = rendered(replace(profile, gpus_per_node=0), run=run)
    assert "--bind=" in on_cpus
    assert "--nv" not in on_cpus


def test_a_single_job_names_its_allocation(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "r")
    text = rendered(LAB, run=run, python=str(tmp_path / "bin" / "py $(touch owned)'"))
    assert "--array" not in text
    assert shell_run(text, tmp_path)[0][3] == "1n8r-0"


def test_a_failing_setup_line_ends_the_job_before_srun(tmp_path: Path) -> None:
    text = rendered(replace(LAB, setup=("false",)), python=str(tmp_path / "bin" / "py $(touch owned)'"))
    with pytest.raises(subprocess.CalledProcessError):
        shell_run(text, tmp_path)
    assert not (tmp_path / "flags").exists()


@pytest.fixture(scope="module")
def sbatch() -> str:
    """The real sbatch, which prints the flags that it parsed before it contacts a controller."""
    found = shutil.which("sbatch")
    if found:
        return found
    if os.environ.get("CI"):
        pytest.fail("no sbatch, and CI must not skip its tests")
    pytest.skip("no sbatch; apt-get install slurm-client")


def sbatch_reads(sbatch: str, text: str, folder: Path) -> list[str]:
    """The arguments that sbatch finds in a job file. No controller listens, so nothing is submitted."""
    (folder / "slurm.conf").write_text(
        "ClusterName=x\nSlurmctldHost=localhost\nSlurmctldPort=1\nAuthType=auth/none\nMessageTimeout=1\n"
        "NodeName=n1\nPartitionName=main Nodes=ALL\n"
    )
    (folder / "job.sbatch").write_text(text)
    env = {"PATH": os.environ["PATH"], "SLURM_CONF": str(folder / "slurm.conf")}
    command = [sbatch, "-vvv", str(folder / "job.sbatch")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=HUNG_S)
    mark = 'Found in script, argument "'
    return [line.split(mark)[1].removesuffix('"') for line in done.stderr.splitlines() if mark in line]


def test_sbatch_reads_hostile_values_as_they_are(sbatch: str, tmp_path: Path) -> None:
    odd = " ".join(HOSTILE)
    profile = replace(LAB, partition=odd, account=odd, sbatch_flags=(f"--mcs-label={odd}",))
    read = sbatch_reads(sbatch, rendered(profile, run=RunDir(Path("/r/a b/'%j\" $(x) #"))), tmp_path)
    assert f"--partition={odd}" in read
    assert f"--account={odd}" in read
    assert f"--mcs-label={odd}" in read
    assert "--output=/r/a b/'%%j\" $(x) #/submissions/1n8r.%j.out" in read
    assert f"--job-name={RUN_ID}.1n8r" in read


@pytest.mark.parametrize("name", GOLDENS)
def test_sbatch_reads_every_flag_of_a_ready_profile(sbatch: str, name: str, tmp_path: Path) -> None:
    text = (GOLDEN / f"{name}.sbatch").read_text()
    written = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]
    assert sbatch_reads(sbatch, text, tmp_path) == written


@pytest.mark.parametrize("bad", ["a\nb", "a\rb", "a\x00b", "a\x1bb", "a\u2028b"])
def test_control_characters_are_refused_everywhere(bad: str) -> None:
    for profile in (
        replace(LAB, account=bad),
        replace(LAB, env={"A": bad}),
        replace(LAB, setup=(bad,)),
        replace(LAB, sbatch_flags=(f"--x={bad}",)),
        replace(LAB, srun_flags=(f"--x={bad}",)),
        replace(LAB, container=Container(image=bad)),
    ):
        with pytest.raises(InputError, match="control character"):
            rendered(profile)
    for more in ({"python": bad}, {"run": RunDir(Path(f"/r/{bad}"))}):
        with pytest.raises(InputError, match="control character"):
            rendered(LAB, **more)


def test_a_command_of_several_lines_stays_one_comment() -> None:
    text = rendered(LAB, command=["harness", "run", "x\n#SBATCH --exclusive\nrm -rf /"])
    assert "# Command: harness run 'x\\n#SBATCH --exclusive\\nrm -rf /'\n" in text
    assert "\n#SBATCH --exclusive" not in text


def test_paths_that_sbatch_or_pyxis_would_misread_are_refused() -> None:
    with pytest.raises(InputError, match="backslash"):
        rendered(LAB, run=RunDir(Path("/r/a\\b")))
    with pytest.raises(InputError, match="cannot mount a path"):
        rendered(replace(LAB, container=Container(image="x")), run=RunDir(Path("/r/a:b")))


def test_nothing_of_the_environment_enters_a_job_file(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "OPENAI_API", "PLAIN"):
        monkeypatch.setenv(name, "hunter2")
    assert "hunter2" not in rendered(LAB)


def test_a_template_of_the_user_prints_plain_values_quoted(tmp_path: Path) -> None:
    own = tmp_path / "own.sbatch.j2"
    own.write_text("#!/bin/bash\nRUN={{ run_dir }}\n{% for line in sbatch %}\n{{ line }}\n{% endfor %}\n")
    text = rendered(LAB, template=own, run=RunDir(Path("/r/a b; $(x)")))
    assert text.splitlines()[1] == f"RUN={shlex.quote('/r/a b; $(x)')}"
    assert "\n#SBATCH --nodes=1\n" in text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\n{% for %}", "own.j2:2: not a valid template"),
        ("\n{{ srn }}", "own.j2:2: cannot be rendered: UndefinedError: 'srn' is undef"),
        ("\n\n{{ 1 // 0 }}", "own.j2:3: cannot be rendered: ZeroDivisionError"),
        ("{{ run_id() }}", "own.j2:1: cannot be rendered: TypeError: 'str' object is not callable"),
        ("{% include 'own.j2' %}", "own.j2:1: cannot be rendered: RecursionError"),
        ("{% include '../own.j2' %}", "own.j2:1: cannot be rendered: TemplateNotFound"),
        ("{% include '/etc/passwd' %}", "own.j2:1: cannot be rendered: TemplateNotFound"),
        ("{{ cycler.__init__.__globals__.os.popen('id') }}", "SecurityError: access to attribute '__init__'"),
        ("{{ run_dir.__class__ }}", "SecurityError: access to attribute '__class__'"),
        ("{{ profile.env.update({'A': 'b'}) }}", "SecurityError"),
        ("{{ range(10**9) }}", "OverflowError: Range too big"),
        ("{{ 9**(9**9) }}", "SecurityError: 9 ** 387420489 is too large"),
        ("{{ 'x' * 10**12 }}", "MemoryError"),
        ("{{ 'x'.center(10**12) }}", "MemoryError"),
        (
            "{% for i in range(10**5) %}{{ run_dir * 100 }}{% endfor %}",
            "cannot be rendered: more than 1,048,576",
        ),
        ("{{ '\0' }}", "contains a NUL character"),
    ],
)
def test_an_error_in_a_template_is_reported_with_its_location(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "own.j2").write_text(text)
    with pytest.raises(InputError) as caught:
        rendered(LAB, template=tmp_path / "own.j2")
    assert said in str(caught.value)


def test_a_template_that_never_ends_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templating, "MAX_SECONDS", 0.2)
    loop = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"
    (tmp_path / "own.j2").write_text(loop)
    with pytest.raises(InputError, match=r"own.j2:1: cannot be rendered: it takes more than 0.2 s"):
        rendered(LAB, template=tmp_path / "own.j2")
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


@pytest.mark.parametrize(("content", "said"), [(b"\xff", "own.j2:1: not a UTF-8"), (b"x" * 300_000, "too large")])
def test_a_template_that_is_no_text_of_sane_size_is_an_input_error(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "own.j2").write_bytes(content)
    with pytest.raises(InputError, match=said):
        rendered(LAB, template=tmp_path / "own.j2")
