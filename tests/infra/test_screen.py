from __future__ import annotations

import ast
import io
from pathlib import Path

import pytest

from harness.infra import screen
from harness.reporting.console import print_lines, print_report
from tests.hostile import EVERYTHING, SECRET, TEXTS, UNSEEN, commands_in, with_text_everywhere
from tests.sample_report import sample_report

CI = {"GITHUB_ACTIONS": "true", "GITLAB_CI": "true", "TF_BUILD": "True", "CI": "1"}


def prints_in(source: str) -> list[int]:
    """Lines that print or write to a standard stream directly."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name == "print" or name.startswith(("sys.stdout.write", "sys.stderr.write", "traceback.print")):
                found.append(node.lineno)
    return found


def test_nothing_but_the_screen_prints(root: Path) -> None:
    """Else text would reach a terminal or a CI log unescaped. Programs for other interpreters are strings here."""
    ranks = ("contracts", "core", "faults", "features", "oracle", "probe", "runtime", "upstreams")
    files = [*(root / "harness").rglob("*.py")]
    files = [file for file in files if file.relative_to(root / "harness").parts[0] not in ranks]
    own = root / "harness/infra/screen.py"
    assert prints_in(own.read_text(encoding="utf-8"))
    found = {str(file.relative_to(root)): prints_in(file.read_text(encoding="utf-8")) for file in files if file != own}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize("name", CI)
def test_texts_for_people_are_harmless_in_a_ci_log(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in CI:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, CI[name])
    stream = io.StringIO()
    screen.out(EVERYTHING, stream)
    print_lines([(text, "") for text in TEXTS.values()], stream)
    print_report(with_text_everywhere(sample_report(), EVERYTHING), [Path("x")], stream)
    assert commands_in(stream.getvalue()) == []
    assert not UNSEEN.search(stream.getvalue())
    assert SECRET not in stream.getvalue()


def test_outside_ci_lines_are_not_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CI:
        monkeypatch.delenv(name, raising=False)
    stream = io.StringIO()
    screen.out("::std\x1b[2J\tx", stream)
    assert stream.getvalue() == "::std\\x1b[2J\tx\n"


def test_secrets_of_the_environment_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", SECRET)
    assert screen.shown(f"KeyError: {SECRET}") == "KeyError: ***"


def test_output_for_programs_is_unchanged(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    screen.data('{"a": "::x::"}')
    assert capsys.readouterr().out == '{"a": "::x::"}\n'
