"""Which flags and variables of Slurm a profile may set: one agent per node must see all of its cores and GPUs."""

from __future__ import annotations

import pytest

from harness.matrix.cluster import Command, overriding, problem_of_flag, problem_of_variable, problems_of_line

AGENTS = "it can start a second agent on a node"
CORES = "it binds the agent of a node"
FEWER = "it gives the agent of a node fewer cores"
GPUS = "it hides GPUs from the agent of a node"


@pytest.mark.parametrize("command", ["sbatch", "srun"])
@pytest.mark.parametrize(
    ("spellings", "why"),
    [
        # Whole, abbreviated, with a blank, alone, and as a letter joined with its value.
        (["--ntasks=2", "--ntasks 2", "--ntasks", "-n2", "-n 2", "-n", "-n=2"], AGENTS),
        (["--ntasks-per-node=2", "--ntasks-per-n=2", "--tasks-per-node=2", "--tasks-per-n 2", "--ta=2"], AGENTS),
        (["--ntasks-per-gpu=1", "--ntasks-per-core=1", "--ntasks-per-socket=1", "--ntasks-per-t=1"], AGENTS),
        (["--overcommit", "-O", "-OK", "--distribution=plane=2", "--dist=plane=2", "-mplane=2", "-m plane=2"], AGENTS),
        (["--cpu-bind=mask_cpu:0xff", "--cpu-bind=map_ldom:0,1", "--cpu-b=cores", "--cpu-bind v,map_cpu:0"], CORES),
        (["--mem-bind=local", "--mem-bi=map_mem:0", "--hint=nomultithread"], CORES),
        (["--gpus-per-task=1", "--gpus-per-t=1", "--gpus-per-socket=1", "--gpu-bind=closest"], GPUS),
        (["--tres-bind=gres/gpu:single:1", "--tres-per-task=gres/gpu:1"], GPUS),
        (["--cpus-per-task=2", "-c2"], "write cpus_per_task"),
        (["--extra-node-info=1:1:1", "--extra-n=1", "-B 1:1"], CORES),
        (["--sockets-per-node=1", "--sockets=1", "--cores-per-socket=2", "--cores-per-s 2"], CORES),
        (["--gres-flags=enforce-binding", "--gres-f=enforce-binding"], "to the cores beside some GPUs"),
        (["--export=NONE", "--export=NIL", "--export=PATH", "--export"], "the environment that the job file sets"),
        (["--help", "-h", "--usage", "--version", "-V"], "it starts nothing"),
    ],
)  # fmt: skip
def test_what_starts_a_second_agent_or_takes_cores_or_gpus_from_the_first_is_refused_in_every_spelling(
    command: Command, spellings: list[str], why: str
) -> None:
    for flag in spellings:
        problem = problem_of_flag(command, flag)
        assert problem and problem[0].endswith("cannot be set here") and why in problem[1], flag


@pytest.mark.parametrize(
    ("flag", "why"),
    [
        ("--gpus=1", GPUS),
        ("-G1", GPUS),
        ("--gres=none", GPUS),
        ("--gpus-per-node=1", GPUS),
        ("--accel-bind=g", GPUS),
        ("--exact", FEWER),
        ("--exclusive", FEWER),
        ("--cpus-per-gpu=1", FEWER),
        ("--threads-per-core=1", FEWER),
        ("--core-spec=2", FEWER),
        ("-S2", FEWER),
        ("--thread-spec=1", FEWER),
        ("--time=1", "as long as the job"),
        ("-t1", "as long as the job"),
        ("--hold", "as long as the job"),
        ("--output=x", "the harness sets it"),
        ("--nodelist=n1", "the agents run on all nodes of the job"),
        ("--jobid=5", "the agents run on all nodes of the job"),
        ("--pack-group=1", "the agents run on all nodes of the job"),
        ("--multi-prog", "the harness sets it"),
    ],
)
def test_of_a_step_the_flags_that_leave_its_agents_less_than_the_job_has_are_refused(flag: str, why: str) -> None:
    problem = problem_of_flag("srun", flag)
    assert problem and why in problem[1]


@pytest.mark.parametrize(
    "flag",
    ["--cpu-bind=none", "--cpu-bind=Verbose,none", "--mem-bind=q", "--gpu-bind=none", "--mpi=none", "--mem=0"]
    + ["--threads=60", "--overlap", "--export=ALL", "--network=no_vni", "--gres-flags=allow-task-sharing"],
)
def test_harmless_flags_of_srun_may_be_set(flag: str) -> None:
    assert problem_of_flag("srun", flag) is None


@pytest.mark.parametrize(
    "flag",
    ["--comment=a b", "--wckey=team", "--threads-per-core=1", "--cpus-per-gpu=8", "--mem-per-gpu=8G", "--nodelist=n1"]
    + ["--wait-all-nodes=1", "--gres-flags=disable-binding", "--core-spec=0", "--segment=4", "--extra=x"],
)
def test_flags_of_sbatch_that_leave_the_agents_alone_may_be_set(flag: str) -> None:
    assert problem_of_flag("sbatch", flag) is None


@pytest.mark.parametrize(
    "flag",
    ["-l", "--switches 1", "--Label", "label", "-w n1", ""] + ["--mpi=none --ntasks=16", "--mpi=none -n16"],
)
def test_another_flag_that_is_not_one_word_is_refused(flag: str) -> None:
    assert problem_of_flag("sbatch", flag) == ("must be one flag with its value", "write --name or --name=value")


@pytest.mark.parametrize(
    ("name", "value", "flag"),
    [
        ("SLURM_NTASKS", "4", "--ntasks"),
        ("SLURM_NPROCS", "4", "--ntasks"),
        ("SLURM_NTASKS_PER_NODE", "2", "--ntasks-per-node"),
        ("SLURM_CPU_BIND", "cores", "--cpu-bind"),
        ("SRUN_CPUS_PER_TASK", "1", "--cpus-per-task"),
        ("SLURM_HINT", "nomultithread", "--hint"),
        ("SLURM_STEP_GRES", "gpu:1", "--gres"),
        ("SLURM_CORE_SPEC", "2", "--core-spec"),
        ("SLURM_THREAD_SPEC", "1", "--thread-spec"),
        ("SLURM_EXPORT_ENV", "NONE", "--export"),
        ("SLURM_JOB_ID", "5", "--jobid"),
        ("SLURM_KILL_BAD_EXIT", "0", "--kill-on-bad-exit"),
        ("SLURM_STDOUTMODE", "none", "--output"),
    ],
)
def test_a_variable_from_which_srun_reads_such_a_flag_is_refused(name: str, value: str, flag: str) -> None:
    problem = problem_of_variable(name, value)
    assert problem and problem[0] == f"srun reads {flag} from {name}, which cannot be set here"
    assert problems_of_line(f"module load x; export A=1 {name}='{value}'") == [problem]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLURM_CPU_BIND", "none"),
        ("SBATCH_NTASKS", "4"),
        ("SLURM_MPI_TYPE", "pmix"),
        ("SLURM_EXPORT_ENV", "ALL"),
        ("NTASKS", "4"),
    ],
)
def test_other_variables_may_be_set(name: str, value: str) -> None:
    assert problem_of_variable(name, value) is None
    assert problems_of_line(f"export {name}={value}; unset SLURM_NTASKS") == []


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"])
def test_a_variable_that_hides_gpus_is_refused_in_a_profile(name: str) -> None:
    problem = problem_of_variable(name, "0")
    assert problem and problem[0] == f"{name} cannot be set here" and GPUS in problem[1]
    assert problems_of_line(f"export {name}=0") == [problem]
    assert overriding({name: "0"}, "") == []  # Slurm sets it in the job
