"""Descriptors of data paths: they agree with the options, canaries and rules that they name."""

from __future__ import annotations

from collections import Counter

from harness.core.cell.config import CANARIES
from harness.core.cell.layout import Layout
from harness.core.packing.options import PackingOptions
from harness.core.setting import keys_of
from harness.upstreams.table import DATA_PATHS, names
from tests.packing_styles import packing_style


def test_descriptors_name_options_and_canaries_that_exist() -> None:
    for path in DATA_PATHS.values():
        assert set(path.options) <= keys_of(PackingOptions).keys(), path.name
        assert path.canaries_without_effect.keys() <= set(CANARIES), path.name


def test_rules_of_all_descriptors_have_different_ids() -> None:
    counts = Counter(limit.rule for path in DATA_PATHS.values() for limit in path.limits)
    assert counts.total() == len(counts) > 0


def test_a_path_that_never_packs_has_unpacked_rows_and_takes_no_packing_option() -> None:
    for path in DATA_PATHS.values():
        assert path.packs is packing_style(path.name, Layout(), 64).packed, path.name
        assert path.packs or not path.options, path.name


def test_documents_are_padded_to_the_alignment_that_the_reasons_give() -> None:
    for layout in (Layout(), Layout(cp=2), Layout(tp=4, sp=True), Layout(tp=2, cp=3, sp=True)):
        for path in DATA_PATHS.values():
            style = packing_style(path.name, layout, 64)
            assert style.document_multiple == path.alignment.multiple(layout), (path.name, layout)


def test_names_are_listed_as_in_a_sentence() -> None:
    paths = list(DATA_PATHS.values())
    assert [names(paths[:count]) for count in (1, 2, 3)] == [
        "unpacked",
        "unpacked and reference",
        "unpacked, reference and sft",
    ]
