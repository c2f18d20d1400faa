"""Writes the generated parts of pages from the code: `python scripts/key_tables.py`.

These are docs/generated/keys.md and faults.md, the tables of data paths, recipes and supported software, and the bounds
in docs/checks.md.
"""

from __future__ import annotations

from pathlib import Path

from harness.faults.catalogue import FAULTS, catalogue_markdown
from harness.matrix.schema.key_tables import GENERATED_PAGES, filled, with_bounds

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = [DOCS / name for name in GENERATED_PAGES]
CHECKS = DOCS / "checks.md"
CATALOGUE = DOCS / "generated" / "faults.md"


def main() -> None:
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
    CHECKS.write_text(with_bounds(CHECKS.read_text(encoding="utf-8")), encoding="utf-8")
    CATALOGUE.write_text(catalogue_markdown(FAULTS), encoding="utf-8")


if __name__ == "__main__":
    main()
