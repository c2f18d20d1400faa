"""The command line accepts every `harness ...` command that a page, an example or a matrix shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.commands import Command, commands_in, complaint


@pytest.fixture(scope="module")
def commands(root: Path) -> list[Command]:
    files = [root / "README.md", root / "CONTRIBUTING.md", root / "reports" / "README.md"]
    files += [
        file for file in sorted((root / "docs").rglob("*")) if file.suffix not in (".png", ".svg") and file.is_file()
    ]
    files += sorted((root / "matrices").rglob("*.yaml"))
    files += sorted((root / "tests" / "judge" / "golden").glob("*.md"))
    return [command for file in files for command in commands_in(file, file.relative_to(root).as_posix())]


def test_every_command_exists_with_its_arguments_and_matrices(root: Path, commands: list[Command]) -> None:
    assert len(commands) > 60
    assert {command.where.partition(":")[0] for command in commands} >= {
        "README.md",
        "docs/ci.md",
        "docs/commands.md",
        "docs/clusters.md",
        "docs/examples/nightly.sh",
        "docs/examples/github-actions.yaml",
        "docs/examples/gitlab-ci.yml",
        "matrices/nightly.yaml",
        "tests/judge/golden/compare.md",
    }
    assert [found for command in commands if (found := complaint(command, root))] == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("`harness rum MATRIX`", "harness has no command 'rum'"),
        ("`harness run matrices/gone.yaml`", "matrices/gone.yaml does not exist"),
        ("`harness resume RUN --agian`", "unrecognized arguments: --agian"),
        ("`harness resume --agian`", "--agian"),
        ("`harness logs RUN CELL --rank first`", "invalid int value: 'first'"),
        ("    $ harness plan --jsn matrices/smoke.yaml   # as JSON", "unrecognized arguments: --jsn"),
    ],
)
def test_a_command_that_does_not_exist_is_found(root: Path, tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "page.md").write_text(f"Text.\n\n{line}\n")
    (command,) = commands_in(tmp_path / "page.md", "page.md")
    assert said in (complaint(command, root) or "")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("`harness logs RUN [CELL] [--rank N]`", ("logs", "RUN", "CELL", "--rank", "1")),
        ("    harness status latest      cells by outcome", ("status", "latest")),
        ("    harness report latest && echo well", ("report", "latest")),
        ("The `harness run` command", ("run",)),
    ],
)
def test_a_command_is_read_as_a_user_would_type_it(tmp_path: Path, line: str, words: tuple[str, ...]) -> None:
    (tmp_path / "page.md").write_text(f"Text.\n\n{line}\n")
    assert [command.words for command in commands_in(tmp_path / "page.md", "page.md")] == [words]


def test_commands_of_a_script_are_read_without_shell_syntax(tmp_path: Path) -> None:
    text = 'harness run "$matrix" "${where[@]}" --run-dir "$run_dir" || status=$?\n'
    (tmp_path / "x.sh").write_text(text + 'run: .venv/bin/harness verify "matrices/smoke.yaml"\n')
    found = [command.words for command in commands_in(tmp_path / "x.sh", "x.sh")]
    assert found == [("run", "$matrix", "--run-dir", "$run_dir"), ("verify", "matrices/smoke.yaml")]
