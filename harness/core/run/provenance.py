"""Where and with which software a run was made, as plan.json and report.json have it."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.core.serialization import WRITTEN_IF_ANY
from harness.core.stack import DEFAULT, StackFacts, Version


@dataclass(frozen=True, kw_only=True)
class PlanProvenance:
    """What is known when a run is planned; an allow list, so that no secret of the environment leaks into it."""

    harness: str = "unknown"  # version
    harness_commit: str = "unknown"
    started: str = ""  # ISO, UTC
    host: str = "unknown"
    system: str = "unknown"
    cores: int | None = None
    python: str = ""  # version; with the interpreter and packages, of the environment of the harness
    interpreter: str = ""
    packages: dict[str, str] = field(default_factory=dict)  # distribution -> version, or "not installed"
    plugins: dict[str, str] = field(default_factory=dict, metadata=WRITTEN_IF_ANY)  # name -> version
    chosen: list[str] = field(default_factory=list, metadata=WRITTEN_IF_ANY)  # values of --only and -k


@dataclass(frozen=True, kw_only=True)
class Provenance(PlanProvenance):
    """The same, with the stacks of the cells and what their ranks ran, each distinct value once."""

    stacks: dict[str, StackFacts] = field(default_factory=dict, metadata=WRITTEN_IF_ANY)  # without the default one
    imports: dict[str, list[str]] = field(default_factory=dict)  # "megatron.core 0.19.2" -> files
    imports_of_stacks: dict[str, list[Version]] = field(default_factory=dict)  # several if versions differ
    hosts: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    processors: list[str] = field(default_factory=list)
    attention: list[str] = field(default_factory=list)  # kernels
    placed: list[str] = field(default_factory=list)  # device and backend, with the requested device
    cpu_stubs: list[str] = field(default_factory=list)  # what replaced functions that need a GPU
    gloo_stubs: list[str] = field(default_factory=list)

    def software_of(self, stack: str) -> StackFacts:
        """Return what was installed for a stack; the environment of the harness for the default one, else nothing."""
        if stack == DEFAULT:
            packages = tuple(Version(name=name, version=version) for name, version in self.packages.items())
            return StackFacts(python=self.python, packages=packages)
        return self.stacks.get(stack, StackFacts())

    def imported_by(self, stack: str) -> list[Version]:
        """Return the modules that ranks of the stack imported; one entry per version where versions differ."""
        return self.imports_of_stacks.get(stack, [])
