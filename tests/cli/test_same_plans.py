"""The plans of the shipped matrices: every cell and its id, by which histories, xfails and commands know it."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from harness.cli.cli import main
from tests.goldens import assert_golden

GOLDEN = Path(__file__).parent / "golden"
MAX_LISTED = 500  # cells of a matrix
PLANNED = ("cells", "rejected", "excluded", "selection", "profiles")  # of `plan --json`, whatever the machine


@pytest.mark.slow
def test_every_shipped_matrix_has_the_same_cells(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    text = "".join(plan_of(path, capsys) for path in sorted(Path("matrices").glob("*.yaml")))
    assert_golden(GOLDEN / "plans.txt", text)


def plan_of(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """A heading with the digest of the whole plan, then a line for each cell of a matrix that is not large."""
    assert main(["plan", str(path), "--json"]) == 0
    text = capsys.readouterr().out
    if "checkout" in path.read_text(encoding="utf-8"):  # the ends of ids depend on the folder of a checkout
        text = re.sub(r"-[0-9a-f]{8}(?=\")", "", text)
    plan = json.loads(text)
    digest = hashlib.sha256(json.dumps({name: plan[name] for name in PLANNED}, sort_keys=True).encode()).hexdigest()
    cells = plan["cells"] if len(plan["cells"]) <= MAX_LISTED else []
    heading = f"{path.name}: {len(plan['cells'])} cells, {len(plan['rejected'])} rejected, {digest}\n"
    return heading + "".join(f"  {line_of(cell)}\n" for cell in cells)


def line_of(cell: dict[str, Any]) -> str:
    notes = [cell["role"], f"{cell['ranks']} ranks", f"line {cell['line']}"]
    notes += [f"control {cell['control']}"] if cell["control"] else []
    notes += ["xfail"] if cell["xfail"] else []
    return f"{cell['id']}: {', '.join(notes)}"


def test_the_self_test_has_the_same_faults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", "--list"]) == 0
    assert_golden(GOLDEN / "faults.txt", capsys.readouterr().out)
