"""`harness explain` finds every rule, check, failure class and fault that the code has, in the tables of the docs."""

from __future__ import annotations

from harness.core.outcomes import Outcome
from harness.faults.catalogue import FAULTS
from harness.inputs.reference import Entry, reference
from harness.judge.checks.table import CHECKS
from harness.judge.failures.patterns import PATTERNS
from harness.matrix.rules.table import RULES


def _named(name: str) -> list[Entry]:
    return [entry for entry in reference() if entry.name == name]


def test_every_name_that_a_report_can_show_is_explained() -> None:
    names = {entry.name for entry in reference()}
    shown = [rule.id for rule in RULES] + [check.name for check in CHECKS]
    shown += [pattern.name for pattern in PATTERNS] + [fault.name for fault in FAULTS] + [*Outcome]
    assert [name for name in shown if name not in names] == []


def test_an_entry_has_the_columns_of_its_table_without_markdown() -> None:
    (entry,) = _named("cp.seq-length")
    assert entry.text.splitlines() == [
        "cp.seq-length  (Rules; docs/rules.md)",
        "  forbids  cp above 1: train.seq_length not divisible by 2 x cp",
        "  source   Megatron-LM validate_args; Megatron-Bridge ConfigContainer.validate",
    ]


def test_bugs_of_the_corpus_are_entries_with_what_shows_them() -> None:
    (entry,) = (entry for entry in _named("A2") if entry.page == "generated/scoreboard.md")
    assert "tp ranks above 0 of the last stage have no metadata" in entry.text


def test_a_key_is_known_by_its_path_too() -> None:
    found = [entry for entry in reference() if "train.seq_length" in entry.names]
    assert [(entry.name, entry.page) for entry in found] == [("seq_length", "generated/keys.md")]


def test_terms_and_keys_are_entries_too() -> None:
    assert "the unit that runs" in _named("cell")[0].text
    assert any(entry.page == "generated/keys.md" and "Tensor parallel size" in entry.text for entry in _named("tp"))
