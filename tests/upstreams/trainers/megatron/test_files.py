from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from harness.core.packing.documents import DocumentsConfig
from harness.upstreams.megatron_lm.node_files import blend, mock_config, write_mock_config, write_rows
from tests.runtime.conftest import config


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


def test_mock_data_sets_get_the_distribution_of_the_cell(tmp_path: Path) -> None:
    write_mock_config(tmp_path, DocumentsConfig(mode="distribution", min_seq_len=4, max_seq_len=40, mean_seq_len=14))
    drawn = json.loads(mock_config(tmp_path).read_text())
    assert drawn == {
        "mode": "distribution",
        "type": "lognormal",
        "min_seq_len": 4,
        "max_seq_len": 40,
        "mean_seq_len": 14,
        "lognormal_sigma": 1.1,
    }


def test_documents_that_upstream_packs_have_a_line_each(tmp_path: Path) -> None:
    cell = replace(config("scheduler"), trainer="megatron")
    write_rows(tmp_path, cell)
    assert len((tmp_path / "trained-0.jsonl").read_text().splitlines()) == cell.train.steps * cell.train.global_batch
