"""A module that a release does not have is a Rejection; one that is not installed or cannot be imported is Missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.core.outcomes import Missing, Rejection
from harness.node.data_paths import lookup
from harness.node.data_paths.lookup import module_unavailable, none_of, not_in_release


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project `upstream` 1.2.0 with a module that can be imported, and one for each way in which an import fails."""
    folder = tmp_path / "upstream"
    folder.mkdir()
    for name, text in {
        "__init__": "__version__ = '1.2.0'",
        "whole": "",
        "needs": "import no_such_package.part",
        "own": "from upstream import no_such_name",
        "breaks": "raise RuntimeError('no CUDA')",
        "binary": "raise OSError('libcudart.so.13: cannot open shared object file')",
    }.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.startswith("upstream")]:
        monkeypatch.delitem(sys.modules, name)
    return folder


def test_a_module_that_can_be_imported_is_available(project: Path) -> None:
    assert module_unavailable("upstream.whole", "upstream") is None


@pytest.mark.parametrize("module", ["upstream.new_feature", "upstream.new.feature"])
def test_a_module_that_the_release_does_not_have_is_rejected_naming_the_release(project: Path, module: str) -> None:
    found = module_unavailable(module, "upstream")
    assert isinstance(found, Rejection)
    assert found.reason == f"upstream 1.2.0 has no {module}"


BROKEN = [
    ("needs", "install no_such_package"),
    ("own", "no_such_name"),
    ("breaks", "RuntimeError: no CUDA"),
    ("binary", "libcudart.so.13"),
]


@pytest.mark.parametrize(("module", "said"), BROKEN)
def test_a_module_that_cannot_be_imported_is_missing_not_rejected(project: Path, module: str, said: str) -> None:
    found = module_unavailable(f"upstream.{module}", "upstream")
    assert isinstance(found, Missing)
    assert said in found.reason
    assert "upstream 1.2.0" in found.reason


def test_a_project_that_is_not_installed_is_missing_not_rejected() -> None:
    found = module_unavailable("no_such_project.part", "no_such_project")
    assert isinstance(found, Missing)
    assert "no-such-project is not installed" in found.reason
    assert "packages" in found.reason


def test_without_either_of_two_modules_the_cell_is_rejected_only_if_the_release_has_neither() -> None:
    assert isinstance(none_of(not_in_release("a"), not_in_release("b")), Rejection)
    assert isinstance(none_of(not_in_release("a"), Missing(reason="b")), Missing)


def test_a_checkout_without_a_version_is_called_a_checkout(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "__init__.py").write_text("")
    assert lookup.release("upstream") == "this checkout of upstream"
