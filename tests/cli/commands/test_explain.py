"""`harness list stacks` and `harness explain RECIPE`."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli.cli import main
from harness.cli.commands.explain import explain
from harness.core.outcomes import EXIT_INPUT, EXIT_PASS
from harness.matrix.stacks.recipes import RECIPES


def test_every_recipe_is_listed_with_its_software(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "stacks"]) == EXIT_PASS
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1) for line in lines] == [[name, one.doc] for name, one in RECIPES.items()]


@pytest.mark.parametrize("what", ["stacks", "plugins"])
@pytest.mark.parametrize("option", ["--json", "--limit=3", "--run-dir=reports"])
def test_options_of_listed_runs_are_refused_elsewhere(
    what: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", what, option]) == EXIT_INPUT
    assert f"{option.partition('=')[0]} of `harness list` is for runs, not for {what}" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["core-0.15.3", "megatron-core==0.15.3"])
def test_a_recipe_is_explained_with_its_layers(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(word, "latest", Path("reports")) == 0
    assert capsys.readouterr().out == (
        "core-0.15.3  (Recipes; docs/stacks.md)\n"
        "  software  megatron-core 0.15.3, the wheel\n"
        "  layer     {packages: [megatron-core==0.15.3], env: {TORCH_CUDA_ARCH_LIST: 9.0}}\n"
        "  layer     {packages: [torch==2.15.0]}\n"
        "  run by    matrices/real_faults.yaml\n"
        "  use       matrix: {stack: core-0.15.3}\n"
    )
