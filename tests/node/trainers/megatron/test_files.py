from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness.node.trainers.megatron.files import blend, write_rows
from tests.node.conftest import config


def test_rows_are_dealt_to_files_in_turn_and_all_files_have_the_same_weight(tmp_path: Path) -> None:
    whole = replace(config("sft"), train=replace(config("sft").train, eval_interval=2))
    halves = replace(whole, data_files=2)
    for name, cell in (("whole", whole), ("halves", halves)):
        (tmp_path / name).mkdir()
        write_rows(tmp_path / name, cell)
    for evaluated in (False, True):
        (path,) = blend(tmp_path / "whole", whole, evaluated=evaluated)
        weights, paths = zip(*zip(*[iter(blend(tmp_path / "halves", halves, evaluated=evaluated))] * 2))
        assert weights == ("1", "1")
        rows, first, second = (Path(one).read_text().splitlines() for one in (path, *paths))
        assert (first, second) == (rows[::2], rows[1::2])


def test_a_cell_that_does_not_evaluate_has_no_rows_for_it(tmp_path: Path) -> None:
    write_rows(tmp_path, config("sft"))
    assert [path.name for path in tmp_path.iterdir()] == ["trained-0.jsonl"]
