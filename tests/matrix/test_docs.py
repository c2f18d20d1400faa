"""The reference pages match the code: every key, default, alias and rule is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.core.tolerances import BOUND_NAMES, FACTOR_NAMES
from harness.matrix.cluster import ClusterProfile
from harness.matrix.rules.runtime import container_rule, nodes_rule, te_version_rule
from harness.matrix.rules.table import RULES, world_size_rule
from harness.matrix.schema.key_tables import GENERATED_PAGES, filled, stale, tables, with_bounds
from harness.matrix.schema.sections import MatrixFile


def rows_of(text: str) -> dict[str, list[str]]:
    """First name in the first column -> columns, for every table row."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")
    ]
    return {row[0].split("`")[1]: row for row in rows}


def test_the_tables_of_the_pages_match_the_declarations(root: Path) -> None:
    pages = [(root / "docs" / name).read_text() for name in GENERATED_PAGES]
    assert [name for name in tables() if not any(f"<!-- generated: {name} -->" in page for page in pages)] == []
    wrong = [name for page in pages for name in stale(page)]
    assert wrong == [], "run `python scripts/key_tables.py` and read the difference"


def test_an_outdated_table_is_found_and_regenerated(root: Path) -> None:
    page = (root / "docs" / "generated" / "keys.md").read_text()
    wrong = page.replace("| `lr` | number > 0, at most 1000000 | `0.001` |", "| `lr` | number | `0.001` |")
    assert list(stale(wrong)) == ["train"]
    assert filled(wrong) == page


def test_the_page_of_the_checks_states_the_default_of_every_bound(root: Path) -> None:
    page = (root / "docs" / "checks.md").read_text()
    assert page == with_bounds(page), "run `python scripts/key_tables.py` and read the difference"
    assert [name for name in (*BOUND_NAMES, *FACTOR_NAMES) if not re.search(rf"`{name}`: (fp32 )?\d", page)] == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (
            "`activation`: fp32 1e-4, bf16 measured, else 5e-2 relative",
            "`activation`: fp32 1e-5, bf16 measured, else 5.5e-2 relative",
        ),
        ("`aux_loss`: fp32 1e-5, bf16 2e-2 relative", "`aux_loss`: fp32 1e-5, bf16 2e-3 relative"),
        ("`rotary_slope`: 2 times", "`rotary_slope`: 1.5 times"),
        ("ratio screen 2 %", "ratio screen 1.5 %"),
    ],
)
def test_an_outdated_bound_is_regenerated(right: str, wrong: str) -> None:
    assert with_bounds(wrong) == right


def test_the_page_of_keys_has_every_key_of_the_file(root: Path) -> None:
    rows = rows_of((root / "docs" / "generated" / "keys.md").read_text())
    assert [name for name in MatrixFile.model_fields if name not in rows] == []


def test_the_rules_page_has_every_rule_with_its_source_in_order(root: Path) -> None:
    rows = rows_of((root / "docs" / "rules.md").read_text())
    rules = (*RULES, world_size_rule(64), nodes_rule(ClusterProfile()), container_rule({}), te_version_rule({}))
    assert list(rows) == [rule.id for rule in rules]
    assert [row[2] for row in rows.values()] == [rule.source for rule in rules]
