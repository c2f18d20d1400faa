"""Writes issue.md beside smallest.yaml: the upstream report on a shrink and, if there was one, a bisection."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness.app.shrink.reproducers import Written
from harness.app.shrink.shrunk import Shrunk
from harness.core.run.run_dir import text_of, write_atomic
from harness.infra.inputs.yaml_file import dump
from harness.infra.stacks.checkout import remote_of
from harness.judge.bisect.result import Bisection
from harness.judge.report.render_issue import Issue, public_repository, render_issue
from harness.plan.matrix.load import one_cell
from harness.plan.shrink.search import needs_lines


def write_issue(
    shrunk: Shrunk,
    bisection: Bisection | None = None,
    confirmation: str = "",
    folder: Path | None = None,
    standalone: Written | None = None,
) -> Path:
    """Write the file and return its path. `folder` None: the folder of the shrink."""
    checkouts = shrunk.stack.checkouts if shrunk.stack else ()
    remotes = {item.package: remote_of(item) for item in checkouts}
    stack = shrunk.stack
    if stack is not None:
        public = [
            replace(item, repository=public_repository(item.package, remotes[item.package])) for item in checkouts
        ]
        stack = replace(stack, checkouts=tuple(public))
    matrix = dump(one_cell(shrunk.config, name="smallest", stack=stack, tolerances=shrunk.tolerances))
    issue = Issue(
        cell=shrunk.reported,
        config=shrunk.config,
        matrix=matrix,
        provenance=shrunk.provenance,
        needs=tuple(needs_lines(shrunk.smallest)) if shrunk.matrix else (),
        remotes=remotes,
        bisection=bisection,
        confirmation=confirmation,
        script=text_of(standalone.script) if standalone and standalone.script else "",
    )
    path = (folder or shrunk.folder) / "issue.md"
    write_atomic(path, render_issue(issue))
    return path
