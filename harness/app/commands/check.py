"""`harness doctor` and `harness selftest`: check the machine, and the harness itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.core.errors import Problem
from harness.core.outcomes import EXIT_PASS, EXIT_UNDECIDED
from harness.infra import screen
from harness.infra.inputs.text_file import expanded


def doctor(name: str, run_parent: Path | None) -> int:
    """Check whether this machine can run cells under a profile; prints a line per check, returns 3 when one fails."""
    from harness.infra.doctor.checks import checks
    from harness.infra.doctor.facts import FAIL, line
    from harness.infra.doctor.probe import probe
    from harness.infra.inputs.cluster_file import read_cluster

    profile, _ = read_cluster(name, Path(), Path(), Problem(message="", key="--cluster"))
    folder = run_parent or Path(profile.run_dir or "reports")
    found = checks(profile, probe(profile, expanded(str(folder)).resolve()))
    screen.out("\n".join(map(line, found)))
    return EXIT_UNDECIDED if any(check.level == FAIL for check in found) else EXIT_PASS


def selftest(only: Sequence[str], run_parent: Path, *, list_only: bool) -> int:
    """Inject the faults of the catalogue and check that each is caught at its place."""
    from harness.app.commands import selftest as selftest_

    if list_only:
        screen.out(selftest_.list_text())
        return EXIT_PASS
    return selftest_.run(list(only) or None, run_parent)
