"""Writes the tables of keys into docs/matrix.md, from the declarations in the code: `python scripts/key_tables.py`."""

from __future__ import annotations

from pathlib import Path

from harness.plan.schema.key_tables import filled

PAGE = Path(__file__).resolve().parent.parent / "docs" / "matrix.md"


def main() -> None:
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
