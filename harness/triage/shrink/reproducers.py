"""Writes standalone reproducers of the smallest cell and runs the script: one that passes where the cell failed is not
kept, and after a bisection neither is one that fails with the good code.

Beside smallest.yaml it also writes issue.md, the upstream report on a shrink and, if there was one, a bisection.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.core.errors import InfrastructureError
from harness.core.run.run_dir import text_of, write_atomic
from harness.core.stack import DEFAULT, ReadyStack, Stack
from harness.infra import templating
from harness.infra.command import Answer, ask
from harness.infra.screen import relative_path
from harness.inputs.yaml_file import dump
from harness.launch.stacks.checkout import release_worktrees, remote_of
from harness.launch.stacks.prepare import prepare
from harness.matrix.load import one_cell
from harness.reporting.bisection import Bisection
from harness.reporting.console import say
from harness.reporting.render_issue import Issue, headline, public, public_repository, render_issue
from harness.reporting.summaries import versions
from harness.triage.shrink.search import needs_lines
from harness.triage.shrink.standalone import Standalone, standalone
from harness.triage.shrink.trials import Shrunk

_PATIENCE_S = 300.0
REPRODUCER = "reproduce"
_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True, kw_only=True)
class Written:
    """The script, or why there is none; one of both is set."""

    script: Path | None = None
    test: Path | None = None
    ranks: int = 0
    why_not: str = ""

    @property
    def lines(self) -> str:
        """Return how to run it, or why there is none."""
        if self.script is None or self.test is None:
            return f"no standalone reproducer: {self.why_not}"
        run = f"torchrun --nproc-per-node {self.ranks} {relative_path(self.script)}"
        return f"standalone: {run}\n            pytest {relative_path(self.test)}"


@dataclass(frozen=True, kw_only=True)
class Ends:
    """What a bisection knows: the code that fails and the code beside it that does not, e.g. "megatron-lm 1a2b3c"."""

    bad: str
    good: str
    good_stack: Stack

    @property
    def text(self) -> str:
        """Return one sentence for the reproducers."""
        return f"Fails with {self.bad}, passes with {self.good}."


def write_reproducers(shrunk: Shrunk, ends: Ends | None = None, folder: Path | None = None) -> Written:
    """Write both files, if the script fails in the stack in which the cell failed, and passes in that of `ends`.

    `folder` None: that of the shrink.
    """
    folder = folder or shrunk.folder
    if shrunk.matrix is None:
        return Written(why_not="the finding did not reproduce")
    checkouts = tuple(checkout.package for checkout in shrunk.stack.checkouts) if shrunk.stack else ()
    reproducer = standalone(shrunk.config, shrunk.finding, checkouts)
    if isinstance(reproducer, str):
        return Written(why_not=reproducer)
    facts = versions(shrunk.provenance, shrunk.config.stack)
    seen_with = ", ".join(f"{name} {facts[name]}" for name in facts if name.startswith(("megatron", "torch")))
    title, between = f"{headline(shrunk.reported, shrunk.config)}.", ends.text if ends else ""
    texts = render_reproducers(reproducer, title=public(title), versions=public(seen_with), ends=public(between))
    for name, text in texts.items():
        write_atomic(folder / name, text)
    script, test = (folder / name for name in texts)
    if problem := _not_shown(reproducer, script, shrunk.stack) or (_fails_too(script, ends) if ends else ""):
        for path in (script, test):
            path.unlink()
        return Written(why_not=f"a script was written, but {problem}")
    return Written(script=script, test=test, ranks=reproducer.ranks)


def _not_shown(reproducer: Standalone, script: Path, stack: Stack | None) -> str:
    """Return why the script's output does not show the finding in the cell's stack, or ''."""
    try:
        answer = _run_script(script, stack)
    except InfrastructureError as error:
        return f"its stack cannot be prepared again: {error}"
    if answer.problem is None:
        return "it passes in the stack in which the cell failed"
    return (
        "" if reproducer.shows in answer.text + answer.stderr else f"it ends otherwise than the cell: {answer.problem}"
    )


def _fails_too(script: Path, ends: Ends) -> str:
    try:
        answer = _run_script(script, ends.good_stack)
    except InfrastructureError as error:
        return f"{ends.good} cannot be prepared: {error}"
    return f"it fails with {ends.good} too: {answer.problem}" if answer.problem else ""


def _run_script(script: Path, requested: Stack | None) -> Answer:
    """Run the script in a stack; None: this environment. InfrastructureError if the stack cannot be made ready."""
    user = str(script.parent / REPRODUCER)
    say(f"running {script.name} in the stack {requested.name if requested else DEFAULT}")
    try:
        stack = prepare([requested], say, user=user)[requested.name] if requested else None
        if stack is not None and not stack.usable:
            raise InfrastructureError(stack.error)
        argv = [stack.python if stack else sys.executable, "-W", "ignore", str(script)]
        return ask(argv, env=_environment(stack), patience_s=_PATIENCE_S)
    finally:
        release_worktrees(user)


def _environment(stack: ReadyStack | None) -> dict[str, str]:
    """Return variables of a script in a stack: no GPU, one thread per rank, checkouts first on the search path."""
    own = stack.requested.env if stack else {}
    paths = [*stack.paths, own.get("PYTHONPATH", "")] if stack else [os.environ.get("PYTHONPATH", "")]
    search = {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return {**kept, **own, **search, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def render_reproducers(reproducer: Standalone, *, title: str, versions: str, ends: str = "") -> dict[str, str]:
    """Return file name -> text. `title`: one line on what is wrong; `versions`: of the projects it was seen with.

    `ends`: a sentence on the code that fails and the code that does not.
    """
    environment = templating.environment(_TEMPLATES, autoescape=False, finalize=_as_is)
    values = {
        **reproducer.values,
        "ranks": reproducer.ranks,
        "needs": reproducer.needs,
        "test": reproducer.test,
        "name": REPRODUCER,
    }
    texts = {f"{REPRODUCER}.py": reproducer.template, f"test_{REPRODUCER}.py": "test"}
    return {
        file: environment.get_template(f"{template}.py.j2").render(**values, title=title, versions=versions, ends=ends)
        for file, template in texts.items()
    }


def _as_is(value: Any) -> Any:
    return value


def write_issue(
    shrunk: Shrunk,
    bisection: Bisection | None = None,
    confirmation: str = "",
    folder: Path | None = None,
    standalone: Written | None = None,
) -> Path:
    """Write the file and return its path. `folder` None: the folder of the shrink."""
    checkouts = shrunk.stack.checkouts if shrunk.stack else ()
    remotes = {checkout.package: remote_of(checkout) for checkout in checkouts}
    stack = shrunk.stack
    if stack is not None:
        public = [
            replace(checkout, repository=public_repository(checkout.package, remotes[checkout.package]))
            for checkout in checkouts
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
