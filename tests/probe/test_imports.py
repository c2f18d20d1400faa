"""Import proof: the files from which the modules under test were actually imported."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from harness.core.cell.layout import Layout
from harness.core.run.records import RankRecord
from harness.judge.import_check import proofs_of
from harness.probe.built import import_proof, other_modules


def module(name: str, file: str | None, monkeypatch: pytest.MonkeyPatch, **names: str) -> None:
    made = ModuleType(name)
    made.__file__ = file
    for key, value in names.items():
        setattr(made, key, value)
    monkeypatch.setitem(sys.modules, name, made)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """skyrl with three modules, one of them from another folder, and no other module under test."""
    for name in list(sys.modules):
        if name.split(".")[0] in ("megatron", "torch", "transformer_engine"):
            monkeypatch.delitem(sys.modules, name)
    module("skyrl", "/env/skyrl/__init__.py", monkeypatch, __version__="0.4.0")
    module("skyrl.backends", "/env/skyrl/backends/__init__.py", monkeypatch)
    module("skyrl.namespace", None, monkeypatch)
    module("skyrl.utils", "/env/skyrl_old/utils.py", monkeypatch)
    module("unrelated", "/elsewhere.py", monkeypatch)


@pytest.mark.usefixtures("loaded")
def test_the_short_proof_has_the_heads_and_modules_from_elsewhere() -> None:
    found = [(proof.module, proof.version, proof.path) for proof in import_proof()]
    assert found == [
        ("skyrl", "0.4.0", "/env/skyrl/__init__.py"),
        ("skyrl.utils", "0.4.0", "/env/skyrl_old/utils.py"),
    ]


@pytest.mark.usefixtures("loaded")
def test_the_full_proof_has_every_module_that_has_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    module("skyrl.backends.megatron", "/env/skyrl/backends/megatron.py", monkeypatch)
    record = RankRecord(
        cell="c", rank=0, place=Layout().coordinates(0), imports=import_proof(), modules=other_modules()
    )
    assert record.modules == {"skyrl": "backends/ backends.megatron"}
    assert {proof.module: proof.path for proof in proofs_of(record)} == {
        name: sys.modules[name].__file__
        for name in ("skyrl", "skyrl.backends", "skyrl.backends.megatron", "skyrl.utils")
    }


@pytest.mark.usefixtures("loaded")
def test_a_module_whose_name_does_not_match_its_file_is_listed_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    module("skyrl.other", "/env/skyrl/somewhere.py", monkeypatch)
    assert "skyrl.other" in [proof.module for proof in import_proof()]
    assert "other" not in other_modules()["skyrl"].split()


@pytest.mark.usefixtures("loaded")
def test_a_relative_path_is_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    module("skyrl_train", "skyrl_train/__init__.py", monkeypatch)
    proofs = {proof.module: proof for proof in import_proof()}
    assert proofs["skyrl_train"].path == str(tmp_path / "skyrl_train" / "__init__.py")
    assert proofs["skyrl_train"].version == "unknown"
