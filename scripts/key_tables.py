"""Writes the generated tables of docs/matrix.md and docs/data_paths.md: `python scripts/key_tables.py`."""

from __future__ import annotations

from pathlib import Path

from harness.plan.schema.key_tables import filled

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = (DOCS / "matrix.md", DOCS / "data_paths.md")


def main() -> None:
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
