from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from harness.node.device import cuda_forks
from harness.node.load import load
from harness.node.probe import imports

COMPILER = "TORCHDYNAMO_DISABLE"


@pytest.fixture(autouse=True)
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset the variable, and restore it after the test."""
    monkeypatch.setenv(COMPILER, "")
    monkeypatch.delenv(COMPILER)


@pytest.mark.parametrize(
    ("driver", "users", "expected"),
    [(False, None, "1"), (False, "0", "0"), (True, None, None)],
    ids=["no GPU", "the user's value", "a GPU"],
)
def test_the_compiler_is_off_only_without_a_gpu_and_the_user_decides(
    driver: bool, users: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if users is not None:
        monkeypatch.setenv(COMPILER, users)
    seen: list[str | None] = []
    monkeypatch.setattr(cuda_forks, "driver_installed", lambda: driver)
    monkeypatch.setattr(cuda_forks, "gpu_table", lambda: ())
    monkeypatch.setattr(imports, "import_all", lambda: seen.append(os.environ.get(COMPILER)))
    load()
    assert seen == [expected]


def test_garbage_collection_is_enabled_again_after_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(imports, "import_all", lambda: seen.append(gc.isenabled()))
    load()
    assert (seen, gc.isenabled()) == ([False], True)


@pytest.mark.parametrize("shown", [None, "0,1"])
def test_gpus_are_hidden_while_modules_load_and_visible_afterwards(
    shown: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    seen: list[str | None] = []
    monkeypatch.setattr(imports, "import_all", lambda: seen.append(os.environ.get("CUDA_VISIBLE_DEVICES")))
    load()
    assert (seen, os.environ.get("CUDA_VISIBLE_DEVICES")) == ([""], shown)


def test_the_empty_folder_for_compiled_code_is_removed_and_one_with_code_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch._inductor creates it in the temporary directory of the machine."""
    folder = tmp_path / "compiled"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
    monkeypatch.setattr(cuda_forks, "driver_installed", lambda: False)
    for code in ((), ("kernel.py",)):
        folder.mkdir()
        for name in code:
            (folder / name).touch()
        load()
        assert folder.exists() == bool(code)
