"""Files that come with the harness are found by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.infra.inputs.shipped import checkout, matrix_path, matrix_word, shipped


@pytest.mark.parametrize("name", ["smoke", "smoke.yaml"])
def test_a_shipped_matrix_is_found_by_its_name(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert checkout() == root
    assert matrix_path(name) == root / "matrices" / "smoke.yaml"


def test_a_shipped_matrix_is_said_by_its_name_and_another_file_by_its_path(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert matrix_word(matrix_path("smoke")) == "smoke"
    for path in (Path("matrices/smoke.yaml"), tmp_path / "smoke.yaml"):
        assert matrix_word(path) == str(path)


def test_a_file_takes_precedence_over_a_shipped_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smoke.yaml").touch()
    assert matrix_path("smoke.yaml") == Path("smoke.yaml")


@pytest.mark.parametrize("name", ["none", "clusters", "matrices/smoke.yaml", "../README.md", ""])
def test_paths_and_unknown_names_are_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert matrix_path(name) == Path(name)


def test_job_templates_of_the_checkout_are_found(root: Path) -> None:
    assert shipped("sbatch_templates") == root / "sbatch_templates"


@pytest.mark.parametrize("name", ["n" * 300, "n" * 252, "nul\0"])
def test_a_name_that_no_file_can_have_is_a_path(name: str) -> None:
    assert matrix_path(name) == Path(name)
