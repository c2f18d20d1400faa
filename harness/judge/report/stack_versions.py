"""The software under test of one cell, for issue.md: what its ranks imported, else what its stack holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def versions(provenance: Mapping[str, Any], stack: str) -> dict[str, str]:
    """What a report's provenance says of the software under test: that of a stack, or of the harness's environment."""
    facts = provenance.get("stacks", {}).get(stack)
    if facts is None:
        packages = dict(provenance.get("packages", {}))
        python = provenance.get("python", "unknown")
    else:
        packages = dict(item.partition("==")[::2] for item in facts.get("packages", ()))
        python = facts.get("python", "unknown")
    seen = _imported(provenance, stack)
    others = {"megatron-bridge": "megatron.bridge", "skyrl": "skyrl"}
    found = {name: seen.get(module) or packages.get(name, "") for name, module in others.items()}
    return {
        "torch": seen.get("torch") or packages.get("torch", "unknown"),
        "megatron-core": seen.get("megatron.core") or packages.get("megatron-core", "unknown"),
        **{name: version for name, version in found.items() if version},
        "transformer-engine": packages.get("transformer-engine", "not installed"),
        "python": str(python),
        "device": ", ".join(provenance.get("devices", ())) or "unknown",
        "attention": ", ".join(provenance.get("attention", ())) or "unknown",
        "packing-harness": f"{provenance.get('harness', 'unknown')} ({provenance.get('harness_commit', 'unknown')})",
        **(
            {"stand-ins": f"{len(replaced)}, for what needs a GPU"} if (replaced := provenance.get("stand_ins")) else {}
        ),
        **({"checkouts": "; ".join(_checkouts(facts))} if facts and facts.get("checkouts") else {}),
    }


def _imported(provenance: Mapping[str, Any], stack: str) -> dict[str, str]:
    """Module -> version that the ranks of a stack imported; several where they differ.

    An older report names the modules of the whole run: they count where it had one version of a module.
    """
    named = provenance.get("imports_of_stacks")
    found: dict[str, list[str]] = {}
    for name in provenance.get("imports", ()) if named is None else named.get(stack, ()):
        module, _, version = name.rpartition(" ")
        found.setdefault(module, []).append(version)
    return {name: ", ".join(held) for name, held in found.items() if named is not None or len(held) == 1}


def _checkouts(facts: Mapping[str, Any]) -> Iterable[str]:
    """Each as "megatron-lm main = 1a2b3c", without the place of the repository."""
    return [str(item).partition(" of ")[0] for item in facts["checkouts"]]
