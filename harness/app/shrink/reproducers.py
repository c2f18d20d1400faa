"""Writes standalone reproducers of the smallest cell and runs the script: one that passes where the cell failed is not
kept, and after a bisection neither is one that fails with the good code."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from harness.app.shrink.shrunk import Shrunk
from harness.core.errors import InfrastructureError
from harness.core.run.run_dir import write_atomic
from harness.core.stack import DEFAULT, ReadyStack, Stack
from harness.infra.command import Answer, ask
from harness.infra.console import say
from harness.infra.reproducers.render import NAME, render
from harness.infra.screen import relative_path
from harness.infra.stacks.checkout import release_worktrees
from harness.infra.stacks.prepare import prepare
from harness.judge.report.public_text import public
from harness.judge.report.render_issue import headline
from harness.judge.report.stack_versions import versions
from harness.plan.shrink.standalone import Standalone, standalone

_PATIENCE_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Written:
    """The script, or why there is none; one of both is set."""

    script: Path | None = None
    test: Path | None = None
    ranks: int = 0
    why_not: str = ""

    @property
    def lines(self) -> str:
        """How to run it, or why there is none."""
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
        return f"Fails with {self.bad}, passes with {self.good}."


def write_reproducers(shrunk: Shrunk, ends: Ends | None = None, folder: Path | None = None) -> Written:
    """Write both files, if the script fails in the stack in which the cell failed, and passes in that of `ends`.

    `folder` None: that of the shrink.
    """
    folder = folder or shrunk.folder
    if shrunk.matrix is None:
        return Written(why_not="the finding did not reproduce")
    checkouts = tuple(item.package for item in shrunk.stack.checkouts) if shrunk.stack else ()
    found = standalone(shrunk.config, shrunk.finding, checkouts)
    if isinstance(found, str):
        return Written(why_not=found)
    facts = versions(shrunk.provenance, shrunk.config.stack)
    seen = ", ".join(f"{name} {facts[name]}" for name in facts if name.startswith(("megatron", "torch")))
    title, between = f"{headline(shrunk.reported, shrunk.config)}.", ends.text if ends else ""
    texts = render(found, title=public(title), versions=public(seen), ends=public(between))
    for name, text in texts.items():
        write_atomic(folder / name, text)
    script, test = (folder / name for name in texts)
    if problem := _not_shown(found, script, shrunk.stack) or (_fails_too(script, ends) if ends else ""):
        for path in (script, test):
            path.unlink()
        return Written(why_not=f"a script was written, but {problem}")
    return Written(script=script, test=test, ranks=found.ranks)


def _not_shown(found: Standalone, script: Path, stack: Stack | None) -> str:
    """Why the script's output does not show the finding in the stack of the cell; empty if it does."""
    try:
        answer = _run(script, stack)
    except InfrastructureError as error:
        return f"its stack cannot be prepared again: {error}"
    if answer.problem is None:
        return "it passes in the stack in which the cell failed"
    return "" if found.shows in answer.text + answer.stderr else f"it ends otherwise than the cell: {answer.problem}"


def _fails_too(script: Path, ends: Ends) -> str:
    try:
        answer = _run(script, ends.good_stack)
    except InfrastructureError as error:
        return f"{ends.good} cannot be prepared: {error}"
    return f"it fails with {ends.good} too: {answer.problem}" if answer.problem else ""


def _run(script: Path, requested: Stack | None) -> Answer:
    """Run the script in a stack; None: this environment. InfrastructureError if the stack cannot be made ready."""
    user = str(script.parent / NAME)
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
    """Variables of a script in a stack: no GPU, one thread per rank, the checkouts first on the search path."""
    own = stack.requested.env if stack else {}
    paths = [*stack.paths, own.get("PYTHONPATH", "")] if stack else [os.environ.get("PYTHONPATH", "")]
    search = {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return {**kept, **own, **search, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
