"""`harness doctor`: check this machine, or a cluster."""

from __future__ import annotations

from pathlib import Path

from harness.app.arguments import RUN_PARENT
from harness.core.errors import Problem
from harness.core.outcomes import EXIT_PASS, EXIT_UNDECIDED
from harness.infra import screen
from harness.infra.inputs.files import expanded


def doctor(name: str, run_parent: Path | None, *, as_json: bool = False) -> int:
    """Check whether this machine can run cells under a profile; prints a line per check, returns 3 when one fails."""
    from harness.core.serialization import dumps
    from harness.infra.doctor import FAIL, check_line, checks, probe
    from harness.infra.inputs.cluster_file import read_cluster

    profile, _ = read_cluster(name, Path(), Path(), Problem(message="", key="--cluster"))
    folder = run_parent or Path(profile.run_dir or RUN_PARENT)
    found = checks(profile, probe(profile, expanded(str(folder)).resolve()))
    if as_json:
        screen.json_data(dumps({"cluster": profile.name, "checks": found}, indent=2) + "\n")
    else:
        screen.out(screen.wrapped("\n".join(map(check_line, found))))
    return EXIT_UNDECIDED if any(check.level == FAIL for check in found) else EXIT_PASS
