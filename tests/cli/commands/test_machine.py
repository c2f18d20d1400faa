from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli.cli import main
from harness.cli.commands.machine import doctor, init
from harness.inputs.cluster_file import cluster_of
from harness.inputs.matrix_file import read_matrix
from harness.launch import doctor as machine
from harness.launch.doctor import WARN, Check
from tests.launch.scheduler import Scheduler, says


def test_no_word_is_broken_at_80_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = Check(
        "InfiniBand", WARN, "no active port on this machine (no device)", "if the nodes have none either, NCCL"
    )
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(machine, "checks", lambda *_: [found])
    doctor("local", None)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 80
    assert " ".join(lines).split()[-1] == "NCCL)"


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_it_writes_a_matrix_and_names_the_next_command(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init"]) == 0
    assert capsys.readouterr().out == "wrote matrix.yaml\nnext: harness run matrix.yaml\n"
    assert [path.name for path in empty.iterdir()] == ["matrix.yaml"]
    assert main(["verify", "matrix.yaml"]) == 0
    assert main(["init", "more/of it"]) == 0
    assert "next: harness run 'more/of it/matrix.yaml'\n" in capsys.readouterr().out


def test_it_overwrites_nothing(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (empty / "matrix.yaml").write_text("mine")
    assert main(["init"]) == 2
    assert capsys.readouterr().err == (
        "error: matrix.yaml: exists already, and init overwrites nothing "
        "(name another folder: harness init DIR; or remove the file)\n"
    )
    assert (empty / "matrix.yaml").read_text() == "mine"
    (empty / "file").write_text("")
    assert main(["init", "file/inside"]) == 2
    assert "file/inside/matrix.yaml: cannot be written: " in capsys.readouterr().err


def test_on_a_cluster_it_writes_the_profile_too(
    empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm = Scheduler(tmp_path, monkeypatch, ("scontrol", "sacctmgr", "apptainer"))
    slurm.answers("sinfo", says("main*|gpu:2|3|16|1:00:00"))
    slurm.answers("scontrol", says("ClusterName = lab"))
    assert init(Path("here")) == 0
    assert capsys.readouterr().out == (
        "wrote here/matrix.yaml\n"
        "wrote here/clusters/lab.yaml\n"
        "next: harness doctor --cluster here/clusters/lab.yaml\n"
        "then: harness run here/matrix.yaml --cluster lab\n"
    )
    profile, file = cluster_of(read_matrix(Path("here/matrix.yaml")), "lab")
    assert (profile.partition, profile.gpus_per_node, file) == ("main", 2, Path("here/clusters/lab.yaml"))
    (empty / "here/matrix.yaml").unlink()
    assert main(["init", "here"]) == 2
    assert "here/clusters/lab.yaml: exists already" in capsys.readouterr().err
    assert not (empty / "here/matrix.yaml").exists()
