"""From two refs to the guilty commit, the smallest layout, issue.md and the command in it, by command line."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.bisected import Bisected
from tests.cli.conftest import harness, only_run

pytestmark = pytest.mark.train


def block(text: str, language: str) -> str:
    """The only block of code in a language on a page."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return str(found)


def test_two_refs_lead_to_a_report_whose_command_fails_the_same_way(bisected: Bisected, tmp_path: Path) -> None:
    known = bisected.project.commits
    short = {name: commit[:12] for name, commit in known.items()}
    done = harness(*bisected.command(shrink=True), cwd=bisected.folder, env=bisected.environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"first bad commit of megatron-lm: {short['guilty']} Commit guilty" in done.stdout
    assert re.search(r"^needs .*tp >= 2.*: .*with tp 1 it passes", done.stdout, re.MULTILINE)
    assert f"confirmed: {short['tip']} with {short['guilty']} reverted passes" in done.stdout

    (told,) = re.findall(r"^issue: (.*)$", done.stdout, re.MULTILINE)
    issue = (bisected.folder / told).read_text()
    (first,) = [item for item in bisected.result(done).findings if item.check == "params_agree_plan"]
    for expected in (
        f"| previous good | `{short['note']}` |",
        f"| new bad | `{short['guilty']}` Commit guilty",
        "| torch | ",
        "| megatron-core | ",
        "| checkouts | megatron-lm ",
        "| tensor parallel | 2",
        "- **metadata, params_agree_plan**: ",
        "tp >= 2",
    ):
        assert expected in issue
    assert str(bisected.folder) not in issue

    matrix = block(issue, "yaml").replace("PATH/TO/Megatron-LM", str(bisected.project.folder))
    matrix = matrix.replace(f"PATH/TO/{Path(sys.executable).name}", sys.executable)
    (tmp_path / "smallest.yaml").write_text(matrix)
    program, *arguments = shlex.split(block(issue, "sh").splitlines()[-1])
    assert program.endswith("/harness")
    again = harness(*arguments, cwd=tmp_path, env=bisected.environment)
    assert again.returncode == 1, again.stdout + again.stderr
    report = json.loads((only_run(tmp_path / "reports") / "report.json").read_text())
    (failed,) = [cell for cell in report["cells"] if cell["outcome"] == "FAIL"]
    seen = {(item["lane"], item["check"], item["fault_class"]) for item in failed["findings"]}
    assert (first.lane.value, first.check, first.fault_class) in seen
    assert failed["axes"]["tp"] == 2
