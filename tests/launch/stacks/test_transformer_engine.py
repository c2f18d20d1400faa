from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.core.errors import NotBuildableError
from harness.launch.stacks import artifact_store, build

ENGINE = "transformer-engine-torch==2.20.2"
MISSING = "/env/include/cuda_fp16.h:4498:10: fatal error: nv/target: No such file or directory"


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(artifact_store.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(build, "_ask_python", lambda python, code: "2.15.0 3.12" if "torch" in code else "13.2.86")
    return tmp_path / "wheels" / "transformer-engine-torch-2.20.2-torch2.15.0-py3.12"


def nothing(packages: Sequence[str]) -> None:
    pytest.fail(f"installs {packages}")


@pytest.mark.parametrize(
    ("requirement", "wanted"),
    [(ENGINE, True), ("transformer_engine_torch", True), ("transformer-engine==2.20.2", False), ("torch", False)],
)
def test_only_the_extension_is_built(requirement: str, wanted: bool) -> None:
    assert build.is_extension(requirement) is wanted


def test_a_cached_wheel_is_used_and_nothing_is_built(kept: Path) -> None:
    kept.mkdir(parents=True)
    (kept / "engine.whl").touch()
    assert build.extension_wheel(ENGINE, Path(sys.executable), nothing, pytest.fail) == kept / "engine.whl"


def test_a_failed_build_reports_the_compilers_output_and_caches_nothing(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed: list[str] = []

    def refuse(argv: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert "--no-cache-dir" in argv  # pip's cache does not distinguish releases of torch
        told = f"      {MISSING}\n" + 30 * "      raise CalledProcessError\n" + "error: metadata-generation-failed"
        return subprocess.CompletedProcess(argv, 1, "", told)

    monkeypatch.setattr(subprocess, "run", refuse)
    with pytest.raises(NotBuildableError) as raised:
        build.extension_wheel(ENGINE, Path(sys.executable), installed.extend, lambda text: None)
    assert str(raised.value).splitlines()[1:] == [MISSING], "the traceback of setuptools is longer"
    assert {"nvidia-cuda-crt==13.2.*", "nvidia-cuda-cccl==13.2.*"} <= {*installed}
    assert not list(kept.glob("*.whl"))


def test_the_compiler_compiles_all_files_as_pybind_and_the_others_as_empty_objects(
    tmp_path: Path,
) -> None:
    sources = tmp_path / "pkg" / "csrc"
    (sources / "extensions").mkdir(parents=True)
    (sources / "common.cpp").write_text("int common() { return 1; }")
    (sources / "extensions" / "pybind.cpp").write_text("int common(); int both() { return common(); }")
    compiler = tmp_path / "cxx"
    compiler.write_text(build.COMPILER)
    compiler.chmod(0o755)
    symbols = {}
    for name in ("common", "extensions/pybind"):
        made = tmp_path / f"{Path(name).name}.o"
        argv = [str(compiler), "-MMD", "-MF", f"{made}.d", "-O3", "-c", str(sources / f"{name}.cpp"), "-o", str(made)]
        subprocess.run(argv, check=True)
        listed = subprocess.run(["nm", "--defined-only", str(made)], capture_output=True, text=True, check=True)
        symbols[name] = [line.split()[-1] for line in listed.stdout.splitlines()]
        assert Path(f"{made}.d").exists()
    assert symbols == {"common": [], "extensions/pybind": ["_Z4bothv", "_Z6commonv"]}
