"""The rules by which nodes reject cells are exactly those that the judge accepts."""

from __future__ import annotations

import re
from pathlib import Path

from harness.core.outcomes import NODE_RULES
from harness.features.attention.limits import TE_DETERMINISTIC, TE_PADDING


def test_nodes_reject_by_the_declared_rules(root: Path) -> None:
    files = [*(root / "harness").rglob("node_*.py"), root / "harness/core/hardware.py"]
    files += [file for folder in ("probe", "runtime") for file in (root / "harness" / folder).rglob("*.py")]
    found = {rule for file in files for rule in re.findall(r"Rejection\(\s*rule=([^,]+),", file.read_text())}
    named = {"TE_PADDING[0]": TE_PADDING[0], "TE_DETERMINISTIC[0]": TE_DETERMINISTIC[0]}
    assert {named.get(rule, rule.strip('"')) for rule in found} == set(NODE_RULES)
