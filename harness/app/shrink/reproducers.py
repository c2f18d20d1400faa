"""Writes standalone reproducers of the smallest cell, and runs the script in its stack: one that passes is not kept."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from harness.app.shrink.shrunk import Shrunk
from harness.core.run.run_dir import write_atomic
from harness.core.stack import ReadyStack
from harness.infra.command import ask
from harness.infra.console import say
from harness.infra.reproducers.render import NAME, render
from harness.infra.stacks.prepare import prepare
from harness.infra.stacks.worktree_users import release
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


def write_reproducers(shrunk: Shrunk) -> Written:
    """Write both files beside smallest.yaml, if the script fails in the stack in which the cell failed."""
    if shrunk.matrix is None:
        return Written(why_not="the finding did not reproduce")
    checkouts = tuple(item.package for item in shrunk.stack.checkouts) if shrunk.stack else ()
    found = standalone(shrunk.config, shrunk.finding, checkouts)
    if isinstance(found, str):
        return Written(why_not=found)
    facts = versions(shrunk.provenance, shrunk.config.stack)
    seen = ", ".join(f"{name} {facts[name]}" for name in facts if name.startswith(("megatron", "torch")))
    texts = render(found, title=public(f"{headline(shrunk.reported, shrunk.config)}."), versions=public(seen))
    for name, text in texts.items():
        write_atomic(shrunk.folder / name, text)
    script, test = (shrunk.folder / name for name in texts)
    if problem := _not_shown(found, script, shrunk):
        for path in (script, test):
            path.unlink()
        return Written(why_not=f"a script was written, but {problem}")
    return Written(script=script, test=test, ranks=found.ranks)


def _not_shown(found: Standalone, script: Path, shrunk: Shrunk) -> str:
    """Runs the script in the stack of the cell; why its output does not show the finding, empty if it does."""
    say(f"running {script.name} in the stack {shrunk.config.stack}")
    user = str(shrunk.folder / NAME)
    stack = prepare([shrunk.stack], say, user=user)[shrunk.stack.name] if shrunk.stack else None
    if stack is not None and not stack.usable:
        return f"its stack cannot be prepared again: {stack.error}"
    try:
        argv = [stack.python if stack else sys.executable, "-W", "ignore", str(script)]
        answer = ask(argv, env=_environment(stack), patience_s=_PATIENCE_S)
    finally:
        release(user)
    if answer.problem is None:
        return "it passes in the stack in which the cell failed"
    return "" if found.shows in answer.text + answer.stderr else f"it ends otherwise than the cell: {answer.problem}"


def _environment(stack: ReadyStack | None) -> dict[str, str]:
    """Variables of a script in a stack: no GPU, one thread per rank, the checkouts first on the search path."""
    own = stack.requested.env if stack else {}
    paths = [*stack.paths, own.get("PYTHONPATH", "")] if stack else [os.environ.get("PYTHONPATH", "")]
    search = {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return {**kept, **own, **search, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
