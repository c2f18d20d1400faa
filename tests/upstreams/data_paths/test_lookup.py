"""What a release does not have is a Rejection; what a checkout lacks, or what cannot be imported, is Missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.core.outcomes import Missing, Rejection
from harness.upstreams import node_lookup
from harness.upstreams.node_lookup import module_unavailable, none_of, not_in_release, takes


@pytest.fixture(params=["site-packages"])
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A project `upstream` 1.2.0, installed or in a checkout, with a module that can be imported, and one for each way
    in which an import fails.
    """
    home = tmp_path / request.param
    folder = home / "upstream"
    folder.mkdir(parents=True)
    for name, text in {
        "__init__": "__version__ = '1.2.0'",
        "whole": "given = 1",
        "needs": "import no_such_package.part",
        "moved": "import upstream.elsewhere",
        "own": "from upstream import no_such_name",
        "breaks": "raise RuntimeError('no CUDA')",
        "binary": "raise OSError('libcudart.so.13: cannot open shared object file')",
    }.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(home)
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


@pytest.mark.parametrize("project", ["fork"], indirect=True)
@pytest.mark.parametrize(("module", "names"), [("upstream.renamed", ()), ("upstream.whole", ("given", "renamed"))])
def test_what_a_checkout_does_not_have_is_missing_and_names_the_folder(
    project: Path, module: str, names: tuple[str, ...]
) -> None:
    found = module_unavailable(module, "upstream", *names)
    assert isinstance(found, Missing)
    absent = ".".join([module, *names[1:]])
    assert found.reason.startswith(
        f"upstream 1.2.0 has no {absent} (rule stack.data_path), looked for in the checkout "
    )
    assert str(project.parent) in found.reason
    assert "`may_reject`" in found.reason
    assert found.rejection is not None
    assert found.rejection.reason == f"upstream 1.2.0 has no {absent}"


def test_a_name_that_a_release_does_not_have_is_rejected(project: Path) -> None:
    assert isinstance(module_unavailable("upstream.whole", "upstream", "renamed"), Rejection)


def test_a_package_is_installed_if_it_or_what_it_links_to_is_in_an_environment(project: Path) -> None:
    assert node_lookup.checked_out("upstream") is None
    assert node_lookup.checked_out("megatron.core") is None
    assert node_lookup.checked_out("no_such_project") is None


def test_a_function_that_passes_on_all_it_is_given_takes_any_name() -> None:
    def given(one: int, *rest: int) -> None: ...

    def passed_on(*args: int, **kwargs: int) -> None: ...

    assert (takes(given, "one"), takes(given, "rest2"), takes(passed_on, "one")) == (True, False, True)


BROKEN = [
    ("needs", "install no_such_package"),
    ("moved", "No module named 'upstream.elsewhere'"),
    ("own", "no_such_name"),
    ("breaks", "RuntimeError: no CUDA"),
    ("binary", "libcudart.so.13"),
]


@pytest.mark.parametrize(("module", "said"), BROKEN)
def test_a_module_that_cannot_be_imported_is_missing_not_rejected(project: Path, module: str, said: str) -> None:
    found = module_unavailable(f"upstream.{module}", "upstream")
    assert isinstance(found, Missing)
    assert said in found.reason
    assert "install upstream" not in found.reason
    assert "upstream 1.2.0" in found.reason


def test_a_project_that_is_not_installed_is_missing_not_rejected() -> None:
    found = module_unavailable("no_such_project.part", "no_such_project")
    assert isinstance(found, Missing)
    assert "no-such-project is not installed" in found.reason
    assert "packages" in found.reason


def test_without_either_of_two_modules_the_cell_is_rejected_only_if_the_release_has_neither() -> None:
    assert isinstance(none_of(not_in_release("a"), not_in_release("b")), Rejection)
    mixed = none_of(not_in_release("a"), Missing(reason="b"))
    assert isinstance(mixed, Missing)
    assert mixed.rejection is None
    checked_out = none_of(not_in_release("a"), Missing(reason="b", rejection=Rejection(rule="r", reason="b")))
    assert isinstance(checked_out, Missing)
    assert checked_out.rejection is not None


def test_a_checkout_without_a_version_is_called_a_checkout(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "__init__.py").write_text("")
    assert node_lookup.release("upstream") == "this checkout of upstream"
