from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.core.errors import InfrastructureError
from harness.probe import built
from harness.runtime.device import cuda_forks
from harness.runtime.load import installed, load

COMPILER = "TORCHDYNAMO_DISABLE"
FOLDER = "TORCHINDUCTOR_CACHE_DIR"
COMMIT = "NO_VCS_VERSION"


@pytest.fixture(autouse=True)
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset the variables that load() sets, and restore them after the test."""
    for name in (COMPILER, FOLDER, COMMIT):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_only_the_version_of_a_checkout_has_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """In an environment inside a repository, Megatron would take that repository's commit for its own."""
    assert installed("megatron.core") and not installed("harness.core") and not installed("absent")
    monkeypatch.setattr(built, "import_all", lambda: None)
    load()
    assert os.environ[COMMIT] == "1"
    monkeypatch.delenv(COMMIT)
    monkeypatch.setattr("harness.runtime.load.installed", lambda module: False)
    load()
    assert COMMIT not in os.environ


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
    monkeypatch.setattr(built, "import_all", lambda: seen.append(os.environ.get(COMPILER)))
    load()
    assert seen == [expected]


def test_garbage_collection_is_enabled_again_after_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(built, "import_all", lambda: seen.append(gc.isenabled()))
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
    monkeypatch.setattr(built, "import_all", lambda: seen.append(os.environ.get("CUDA_VISIBLE_DEVICES")))
    load()
    assert (seen, os.environ.get("CUDA_VISIBLE_DEVICES")) == ([""], shown)


@pytest.mark.slow
def test_a_node_that_compiles_nothing_leaves_no_folder_for_compiled_code(tmp_path: Path) -> None:
    """torch creates the folder when its compiler is imported, as Megatron's fused functions do."""
    code = "from harness.runtime.load import load; load(); from torch._inductor import codecache; codecache.cache_dir()"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    for name in (COMPILER, FOLDER):
        environment.pop(name, None)
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environment, check=True)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_for_compiled_code_that_the_user_names_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, "/users")
    monkeypatch.setattr(cuda_forks, "driver_installed", lambda: False)
    monkeypatch.setattr(built, "import_all", lambda: None)
    load()
    assert os.environ[FOLDER] == "/users"


def test_a_release_below_what_is_supported_is_refused_before_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "package_info.py").write_text("MAJOR = 0\nMINOR = 11\nPATCH = 0\n")
    monkeypatch.setattr(built, "import_all", lambda: pytest.fail("it was imported"))
    found = type("Spec", (), {"origin": str(tmp_path / "__init__.py")})
    monkeypatch.setattr("harness.runtime.load.find_spec", lambda module: found)
    with pytest.raises(InfrastructureError, match=r"is megatron-core 0\.11\.0, and the harness supports 0\.13"):
        load()
    gc.enable()
