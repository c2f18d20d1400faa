"""Lists published releases of a package, as uv finds them in its configured index."""

from __future__ import annotations

import subprocess

from harness.core.errors import InfrastructureError, InputError, Problem
from harness.infra.stacks import interpreters
from harness.infra.stacks.build import find_uv, uv_environment
from harness.plan.stacks.section import PYTHONS

TIMEOUT_S = 300.0
MOST = 1000


def between(package: str, old: str, new: str, *, pre: bool = False) -> tuple[str, ...]:
    """The releases after `old` up to and including `new`, oldest first; without yanked ones, which uv leaves out.

    Queried one by one, each as the newest below the previous one, so that uv alone decides what is newer. `pre`:
    include pre-releases. InputError when an end is not a release, or `old` is not the older one.
    """
    problems = [
        Problem(key=package, message=f"{release} is not a release that uv finds in its index")
        for release in (old, new)
        if _newest(package, f"=={release}", pre=pre) is None
    ]
    if problems:
        raise InputError(problems)
    found = [new]
    while len(found) < MOST:
        below = _newest(package, f">{old},<{found[-1]}", pre=pre)
        if below is None:
            return tuple(reversed(found))
        found.append(below)
    raise InfrastructureError(f"{package} has more than {MOST} releases between {old} and {new}")


def is_older(package: str, old: str, new: str) -> bool:
    """Whether one release comes before another; both must exist."""
    return _newest(package, f">={old},<{new}", pre=True) is not None


def _newest(package: str, specifier: str, *, pre: bool) -> str | None:
    """The newest release that a specifier allows; None when there is none. InfrastructureError when uv fails."""
    python, _ = interpreters.find(PYTHONS)
    argv = [find_uv(), "pip", "compile", "--quiet", "--no-deps", "--no-header", "--no-annotate", "--python", python]
    argv += ["--prerelease", "allow" if pre else "disallow"]
    done = subprocess.run(
        [*argv, "-"],
        input=f"{package}{specifier}\n",
        env=uv_environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    if done.returncode == 0:
        return done.stdout.strip().splitlines()[-1].partition("==")[2].split()[0]
    if "No solution found" in done.stderr:
        return None
    raise InfrastructureError(f"uv cannot list releases of {package}: {done.stderr.strip()[-500:]}")
