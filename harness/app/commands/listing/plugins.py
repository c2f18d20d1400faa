"""`harness list plugins`: the installed plug-ins and what they add."""

from __future__ import annotations

from harness.app import plugins
from harness.core.outcomes import EXIT_PASS
from harness.core.plugins import installed
from harness.core.serialization import dumps
from harness.infra import screen


def list_plugins(*, as_json: bool) -> int:
    """Print each plug-in with its entry points, then load them: InputError for those that are broken."""
    found = installed()
    if as_json:
        screen.json_data(dumps(found, indent=2) + "\n")
    for plugin in [] if as_json else found:
        screen.out(str(plugin))
        for entry in plugin.entries:
            screen.out(f"  {entry.group:<10}  {entry.name}  {entry.value}")
    if not found and not as_json:
        screen.out("no plug-ins are installed")
    plugins.active()
    return EXIT_PASS
