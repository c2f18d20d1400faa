"""Misspelt arguments end the run before any cell starts, and a control has its cells' arguments of the optimizer."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.cli.cli import build_parser
from harness.core.outcomes import EXIT_INPUT, EXIT_PASS
from harness.core.run.records import RankRecord
from harness.core.run.run_dir import RunDir
from harness.core.run.run_plan import RunPlan
from harness.core.serialization import from_jsonable, loads
from tests.cli.conftest import MATRIX, harness, only_run, write_matrix

pytestmark = pytest.mark.train
PACKING = "packing: [reference, sft]"


def test_a_misspelt_argument_is_an_input_error_before_anything_is_written(tmp_path: Path) -> None:
    text = MATRIX.replace(PACKING, "packing: sft\n  trainer: megatron\n  args.clip-grud: [null, 0.5]")
    done = harness("run", write_matrix(tmp_path, text), "--run-dir", tmp_path / "runs", cwd=tmp_path)
    assert done.returncode == EXIT_INPUT, done.stderr
    assert "--clip-grud is not an argument of this release; did you mean --clip-grad?" in done.stderr
    assert f"{tmp_path}/small.yaml:" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_clipping_reaches_the_harness_own_optimizer_and_the_control(tmp_path: Path) -> None:
    """With this epsilon, Adam's first update depends on the size of the gradients."""
    text = MATRIX.replace(PACKING, "packing: [sft]\n  args.clip-grad: [null, 0.05]") + "args: {adam-eps: 1}\n"
    done = harness("run", write_matrix(tmp_path, text), "--run-dir", tmp_path / "runs", cwd=tmp_path)
    assert done.returncode == EXIT_PASS, done.stdout + done.stderr
    run = RunDir(only_run(tmp_path / "runs"))
    plan = from_jsonable(RunPlan, loads(run.plan.read_text()))
    controls = [cell for cell in plan.expansion.cells if cell.control is None]
    assert [cell.config.args.flags() for cell in controls] == [["--adam-eps=1"], ["--adam-eps=1", "--clip-grad=0.05"]]
    free, clipped = (from_jsonable(RankRecord, loads(run.attempt(cell.id).record(0).read_text())) for cell in controls)
    assert free.steps[0].loss_sum == clipped.steps[0].loss_sum  # before the first update
    assert free.steps[1].loss_sum != clipped.steps[1].loss_sum


def commands(parser: argparse.ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command and subcommand."""
    yield words
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield from commands(child, (*words, name))


@pytest.mark.parametrize("words", list(commands(build_parser())), ids=" ".join)
def test_every_command_has_help(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args([*words, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(" ".join(["usage: harness", *words]))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["logs", "latest", "--rnak", "7"],
            ["usage: harness logs", "unrecognized arguments: --rnak", "mean '--rank'?"],
        ),
        (["stauts", "latest"], ["no such command: 'stauts'; did you mean 'status'?"]),
        (["history", "--outcome", "FIAL"], ["no such choice: 'FIAL'; did you mean 'FAIL'? (choose from PASS,"]),
        (["plan", "--all"], ["usage: harness plan", "the following arguments are required: MATRIX"]),
        (["status", "a", "b"], ["usage: harness status", "unrecognized arguments: b"]),
    ],
)
def test_an_error_is_of_its_command(words: list[str], said: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args(words)
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert [text for text in said if text not in printed] == []


def test_positionals_may_follow_options() -> None:
    parsed = build_parser().parse_args(["logs", "latest", "--rank", "7", "CELL"])
    assert (parsed.run, parsed.rank, parsed.cell) == ("latest", 7, "CELL")
    parsed = build_parser().parse_args(["compare", "a", "--json", "b"])
    assert (parsed.run, parsed.other, parsed.json) == ("a", "b", True)
    parsed = build_parser().parse_args(["verify", "a", "b"])
    assert [path.name for path in parsed.matrix] == ["a", "b"]
