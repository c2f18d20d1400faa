"""docs/failures.md has every fault class."""

from __future__ import annotations

from pathlib import Path

from harness.judge.diagnosis import fault_classes


def test_the_page_has_every_fault_class(root: Path) -> None:
    page = (root / "docs" / "failures.md").read_text(encoding="utf-8")
    section = page[page.index("\n## Wrong results\n") : page.index("\n## Incomplete cells\n")]
    classes = [text for name, text in vars(fault_classes).items() if name.isupper() and isinstance(text, str)]
    assert len(classes) > 30
    assert [text for text in classes if f"`{text}" not in section] == []
