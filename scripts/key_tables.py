"""Writes the generated parts of pages from the code: `python scripts/key_tables.py`.

These are the tables of keys and data paths, the bounds in docs/checks.md, and the fault catalogue at the end of
docs/failures.md.
"""

from __future__ import annotations

from pathlib import Path

from harness.plan.faults.catalogue import FAULTS, with_catalogue
from harness.plan.schema.key_tables import GENERATED_PAGES, filled, with_bounds

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = [DOCS / name for name in GENERATED_PAGES]
CHECKS = DOCS / "checks.md"
FAILURES = DOCS / "failures.md"


def main() -> None:
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
    CHECKS.write_text(with_bounds(CHECKS.read_text(encoding="utf-8")), encoding="utf-8")
    FAILURES.write_text(with_catalogue(FAILURES.read_text(encoding="utf-8"), FAULTS), encoding="utf-8")


if __name__ == "__main__":
    main()
