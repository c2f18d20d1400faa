"""`harness completion`: the script by which a shell completes words."""

from __future__ import annotations

from harness.core.outcomes import EXIT_PASS
from harness.infra import screen


def completion(shell: str) -> int:
    """Print the script, e.g. for `source <(harness completion bash)`."""
    from harness.app.completers import script

    screen.data(script(shell))
    return EXIT_PASS
