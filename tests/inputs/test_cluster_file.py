from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli.cli import main
from harness.core.errors import InputError
from harness.core.outcomes import EXIT_INPUT
from harness.infra.files import shipped
from harness.inputs.cluster_file import cluster_of, folders, read_profile, template_of
from harness.inputs.matrix_file import read_lengths, read_matrix
from harness.matrix.cluster import LOCAL, ClusterProfile
from harness.matrix.load import Matrix

LAB = "name: {name}\nkind: slurm\nranks_per_node: {ranks}\ntime: 30\n"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HARNESS_CLUSTERS", raising=False)


def matrix(folder: Path, more: str = "") -> Matrix:
    folder.mkdir(exist_ok=True)
    (folder / "m.yaml").write_text("name: m\nmatrix: {packing: sft}\n" + more)
    return read_matrix(folder / "m.yaml")


def write(path: Path, ranks: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(LAB.format(name=path.stem, ranks=ranks))
    return path


def test_every_shipped_profile_and_template_is_good(root: Path) -> None:
    files = sorted((root / "matrices" / "clusters").glob("*.yaml"))
    assert [file.stem for file in files] == ["a100-apptainer", "bare-metal", "h100-pyxis", "local", "slurm-lab"]
    for file in files:
        profile = read_profile(file)
        assert profile.name == file.stem
        assert template_of(profile, file) == shipped("sbatch_templates") / "default.sbatch.j2"


def test_the_shipped_local_profile_is_the_built_in_one(root: Path) -> None:
    assert read_profile(root / "matrices" / "clusters" / "local.yaml") == LOCAL


def test_the_matrix_names_the_profile_and_the_command_line_overrides_it(tmp_path: Path) -> None:
    assert cluster_of(matrix(tmp_path))[0] == LOCAL
    asking = matrix(tmp_path, "cluster: slurm-lab\n")
    assert cluster_of(asking)[0].name == "slurm-lab"
    assert cluster_of(asking, "local")[0] == LOCAL


def test_a_name_is_searched_in_the_users_folders_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = matrix(tmp_path / "m", "cluster: slurm-lab\n")
    found = [cluster_of(made)[0].ranks_per_node]
    for ranks, folder in ((5, tmp_path / "matrices" / "clusters"), (6, tmp_path / "m" / "clusters")):
        write(folder / "slurm-lab.yaml", ranks)
        found.append(cluster_of(made)[0].ranks_per_node)
    write(tmp_path / "own" / "slurm-lab.yaml", 7)
    monkeypatch.setenv("HARNESS_CLUSTERS", f"/nowhere:{tmp_path / 'own'}")
    found.append(cluster_of(made)[0].ranks_per_node)
    assert found == [8, 5, 6, 7]
    assert folders(tmp_path / "m")[0] == tmp_path / "own"


def test_a_path_is_relative_to_the_matrix_or_to_the_current_folder(tmp_path: Path) -> None:
    write(tmp_path / "m" / "c" / "own.yaml", 3)
    write(tmp_path / "c" / "own.yaml", 4)
    assert cluster_of(matrix(tmp_path / "m", "cluster: c/own.yaml\n"))[0].ranks_per_node == 3
    assert cluster_of(matrix(tmp_path / "m"), "c/own.yaml")[0].ranks_per_node == 4


def test_an_unknown_profile_is_named_with_its_line_and_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        cluster_of(matrix(tmp_path, "cluster: slurmlab\n"))
    text = str(caught.value)
    assert "m.yaml:3: cluster: no such cluster profile (found 'slurmlab'" in text
    assert "allowed: a100-apptainer, bare-metal, h100-pyxis, local, slurm-lab; did you mean 'slurm-lab'?" in text
    with pytest.raises(InputError, match="--cluster: no such profile file"):
        cluster_of(matrix(tmp_path), "./none.yaml")
    with pytest.raises(InputError, match=r"--cluster: no such cluster profile .*searched in"):
        cluster_of(matrix(tmp_path), "zzz")


def test_errors_in_a_profile_have_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("name: bad\nkind: slurm\nranks_per_node: 2\npartion: x\nenv:\n  HF_TOKEN: abc\n")
    with pytest.raises(InputError, match=r"bad.yaml:6: env.HF_TOKEN: names a secret"):
        read_profile(path)
    path.write_text("name: bad\nkind: slurm\nranks_per_node: 2\npartion: x\ntime: 0\n")
    with pytest.raises(InputError) as caught:
        read_profile(path)
    assert [problem.line for problem in caught.value.problems] == [4, 5]


def test_the_value_of_a_secret_variable_is_refused_in_a_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("name: own\nkind: slurm\nranks_per_node: 2\nenv:\n  SITE: correct-horse-battery\n")
    assert read_profile(path).env
    monkeypatch.setenv("DB_PASSWORD", "correct-horse-battery")
    with pytest.raises(InputError, match=r"own.yaml:5: env.SITE: holds a secret"):
        read_profile(path)


def test_a_matrix_cannot_ask_for_more_time_than_the_profile_allows(tmp_path: Path) -> None:
    made = matrix(tmp_path, "cluster: slurm-lab\nlaunch: {time_limit_min: 31}\n")
    with pytest.raises(
        InputError, match=r"m.yaml:4: launch.time_limit_min: more minutes than cluster slurm-lab allows"
    ):
        cluster_of(made)
    assert cluster_of(made, "local")[0] == LOCAL


def test_a_template_is_a_name_or_a_path_beside_the_profile(tmp_path: Path) -> None:
    (tmp_path / "own.sbatch.j2").write_text("x")
    file = tmp_path / "p.yaml"
    assert template_of(ClusterProfile(template="own.sbatch.j2"), file) == tmp_path / "own.sbatch.j2"
    with pytest.raises(InputError, match=r"template: no such template .*allowed: default, or a path beside"):
        template_of(ClusterProfile(template="defualt"), file)


@pytest.mark.parametrize(
    "text",
    [
        "canary-7f3a\n",
        "- canary-7f3a\n- canary-7f3a: canary-7f3a\n",
        "root:x:0:0:canary-7f3a:/root:/bin/bash\n",
        "a: 1\n@canary-7f3a: [\n",
        "canary-7f3a: *canary-7f3a\n",
        "!canary-7f3a x: 1\n",
        "[user]\n\tcanary-7f3a = canary-7f3a\n",
        '{"canary-7f3a": 1, "canary-7f3a": 2}\n',
        "kind: canary-7f3a\ncanary-7f3a: canary-7f3a\nmetadata: {}\ndata: {canary-7f3a: canary-7f3a}\n",
        "name: ci\nkind: pipeline\nsetup: canary-7f3a\ntime: canary-7f3a\nconstraint: {x: canary-7f3a}\n",
        "name: ci\nsetup: canary-7f3a\ntime: canary-7f3a\n",
        "-----BEGIN canary-7f3a-----\ncanary-7f3a\n-----END canary-7f3a-----\n",
    ],
)
def test_nothing_is_shown_of_a_file_that_is_no_profile(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A matrix may name any file that the one who runs it can read."""
    (tmp_path / "FILE").write_text(text)
    path = tmp_path / "m.yaml"
    path.write_text("name: a\ncluster: ./FILE\nmatrix: {packing: sft}\n")
    for words in (["plan", str(path)], ["verify", str(path)], ["plan", str(path), "--cluster", str(tmp_path / "FILE")]):
        assert main(words) == EXIT_INPUT
        said = capsys.readouterr()
        assert "FILE" in said.err
        assert "is not a cluster profile" in said.err
        assert "canary" not in said.out + said.err


def test_nothing_but_numbers_is_shown_of_a_file_of_lengths(tmp_path: Path) -> None:
    (tmp_path / "FILE").write_text("12\ncanary-7f3a\n-3\n")
    with pytest.raises(InputError, match=r"found a text(.|\n)*found '-3'") as caught:
        read_lengths(tmp_path / "FILE")
    assert "canary" not in str(caught.value)
