"""Checks of the whole repository: links, shipped matrices, and no text from one machine."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

# Each in two parts, so that this file does not contain what it searches for.
REGISTRY_HOSTS = ("pypi" + ".org", "pythonhosted" + ".org", "download." + "pytorch.org", "registry." + "npmjs")
MACHINE_PATHS = ("/ro" + "ot/", "/ho" + "me/", "/wo" + "rk/", "/tm" + "p/s/", "/Use" + "rs/")
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


@pytest.fixture(scope="module")
def tracked(root: Path) -> list[Path]:
    """Files of the project: those that git tracks, or in an exported tree all outside generated folders."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True)
    if listed.returncode == 0:
        return [root / name for name in listed.stdout.split("\0") if name and (root / name).is_file()]
    made = {".venv", ".venv-tools", "build", "__pycache__", "reports"}
    hidden = {path.name for path in root.glob(".*_cache")} | {".hypothesis"}
    return [path for path in root.rglob("*") if path.is_file() and not (made | hidden) & set(path.parts)]


def dead_links(root: Path, page: Path) -> list[str]:
    links = LINK.findall(page.read_text(encoding="utf-8"))
    local = [link for link in links if "://" not in link and not link.startswith("mailto:")]
    return [f"{page.relative_to(root)}: {link}" for link in local if not (page.parent / link).exists()]


def foreign_text(root: Path, file: Path) -> list[str]:
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return []
    found = [word for word in (*REGISTRY_HOSTS, *MACHINE_PATHS) if word in text]
    return [f"{file.relative_to(root)}: {word}" for word in found]


def test_every_relative_link_leads_somewhere(root: Path, tracked: list[Path]) -> None:
    pages = [file for file in tracked if file.suffix == ".md"]
    assert len(pages) > 5
    assert [dead for page in pages for dead in dead_links(root, page)] == []


def test_no_file_names_a_registry_or_a_path_of_one_machine(root: Path, tracked: list[Path]) -> None:
    assert [found for file in tracked for found in foreign_text(root, file)] == []


def test_a_dead_link_and_foreign_text_are_named(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        f"[here](page.md) [gone](gone.md#part) [far](https://example.com) {REGISTRY_HOSTS[0]} {MACHINE_PATHS[0]}x"
    )
    assert dead_links(tmp_path, page) == ["page.md: gone.md"]
    assert foreign_text(tmp_path, page) == [f"page.md: {REGISTRY_HOSTS[0]}", f"page.md: {MACHINE_PATHS[0]}"]


def test_constraints_are_exact_versions_without_an_address(root: Path) -> None:
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*==[0-9][A-Za-z0-9.]*", line)] == []
    assert "megatron-core==0.19.2" in lines


def test_every_shipped_matrix_verifies(root: Path) -> None:
    matrices = sorted(path.relative_to(root).as_posix() for path in (root / "matrices").glob("*.yaml"))
    assert "matrices/smoke.yaml" in matrices
    harness = Path(sys.executable).with_name("harness")
    done = subprocess.run([harness, "verify", *matrices], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_test_folders_are_packages_so_that_equal_names_do_not_clash(root: Path) -> None:
    folders = {path.parent for path in (root / "tests").rglob("test_*.py")}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []
