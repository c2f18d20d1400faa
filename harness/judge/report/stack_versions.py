"""The stacks in a report's provenance, and versions for issue.md: as ranks imported them, else as in the stack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.core.serialization import from_jsonable
from harness.core.stack import StackFacts, Version
from harness.core.upstream import DISTRIBUTIONS


def facts_of(provenance: Mapping[str, Any], stack: str) -> StackFacts | None:
    """Facts of a stack of the matrix; None for another name. TypeError if the value has another shape."""
    value = provenance.get("stacks", {}).get(stack)
    return None if value is None else from_jsonable(StackFacts, value)


def imported_by(provenance: Mapping[str, Any], stack: str) -> list[Version]:
    """The modules that ranks of the stack imported; one entry per version where versions differ."""
    return from_jsonable(list[Version], provenance.get("imports_of_stacks", {}).get(stack, []))


def check(provenance: Mapping[str, Any]) -> None:
    """Raises TypeError or AttributeError if the stacks, or what their ranks imported, have another shape."""
    for value in provenance.get("stacks", {}).values():
        from_jsonable(StackFacts, value)
    for values in provenance.get("imports_of_stacks", {}).values():
        from_jsonable(list[Version], values)


def versions(provenance: Mapping[str, Any], stack: str) -> dict[str, str]:
    """Name -> version of the software under test: of a stack, or of the harness's environment."""
    facts = facts_of(provenance, stack)
    if facts is None:
        packages = dict(provenance.get("packages", {}))
        python = provenance.get("python", "unknown")
    else:
        packages = facts.versions
        python = facts.python or "unknown"
    seen = _imported(provenance, stack)
    trainers = ("megatron-bridge", "skyrl", "skyrl-train")  # shown where the stack has them
    found = {name: seen.get(DISTRIBUTIONS[name]) or packages.get(name, "") for name in trainers}
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
            {"CPU stubs": f"{len(replaced)}, for what needs a GPU"} if (replaced := provenance.get("cpu_stubs")) else {}
        ),
        **({"gloo stubs": f"{', '.join(stubs)}: ranks share a GPU"} if (stubs := provenance.get("gloo_stubs")) else {}),
        **({"checkouts": "; ".join(item.text() for item in facts.checkouts)} if facts and facts.checkouts else {}),
    }


def _imported(provenance: Mapping[str, Any], stack: str) -> dict[str, str]:
    """Module -> version that the ranks of a stack imported; several versions if they differ."""
    found: dict[str, list[str]] = {}
    for item in imported_by(provenance, stack):
        found.setdefault(item.name, []).append(item.version)
    return {name: ", ".join(held) for name, held in found.items()}
