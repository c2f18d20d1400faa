"""The order of a file that upstream shuffles. What it makes of it: tests/matrices/test_trainer_bridge.py."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Layout
from harness.core.packing.documents import DocumentsConfig
from harness.probe.truth import StepTruth
from harness.upstreams.megatron_bridge import node_files
from harness.upstreams.megatron_bridge.node_files import inverse, shuffled, write_files
from tests.runtime.conftest import config

LENGTHS = (5, 20, 7, 31)


def unpacked(**train: int) -> CellConfig:
    """Two steps of four documents, of which the second one is all prompt."""
    plain = config("bridge_long")
    documents = DocumentsConfig(mode="file", lengths=LENGTHS, masked=(1,))
    settings = replace(plain.train, steps=2, global_batch=4, **train)
    return replace(plain, layout=Layout(), trainer="bridge", documents=documents, train=settings)


@pytest.fixture(autouse=True)
def no_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the package tokenizers is missing."""
    monkeypatch.setattr(node_files, "write_tokenizer", lambda folder, vocab: None)


def read(file: Path, seed: int) -> list[tuple[list[str], list[str]]]:
    """Prompts and answers in the order in which upstream reads them."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [(lines[place]["input"].split(), lines[place]["output"].split()) for place in shuffled(len(lines), seed)]


def test_a_file_in_the_inverse_order_is_read_in_order() -> None:
    order = shuffled(18, seed=1234)
    assert sorted(order) == list(range(18)) != order
    rows = inverse(order)
    assert [rows[place] for place in order] == list(range(18))


def test_the_order_is_that_of_the_seed_of_the_data_set() -> None:
    assert shuffled(18, seed=1) != shuffled(18, seed=2)


def test_documents_that_are_not_packed_are_read_as_the_plan_says(tmp_path: Path) -> None:
    cell = unpacked(eval_interval=2)
    write_files(tmp_path / "data", cell)
    trained, evaluated = (
        read(tmp_path / "data" / f"{name}.jsonl", cell.train.seed) for name in ("training", "validation")
    )
    assert (len(trained), len(evaluated)) == (2 * 4, 2 * 4)
    for number, part in enumerate((trained[:4], trained[4:], evaluated[:4], evaluated[4:])):
        truth = StepTruth(cell, number, 0)
        for document, (prompt, answer) in zip(truth.documents, part, strict=True):
            ids = [str(word) for word in truth.content(document).tolist()]
            words = [word if word != "</s>" else ids[-1] for word in prompt + answer]
            assert words == ids[: document.length + 1]
            assert len(prompt) == (len(ids) if document.masked else 1)


def test_a_cell_without_evaluations_has_no_file_of_them(tmp_path: Path) -> None:
    write_files(tmp_path / "data", unpacked())
    assert not (tmp_path / "data" / "validation.jsonl").exists()
