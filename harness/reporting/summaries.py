"""Short texts that several renderers share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from harness.core.cell.timing import GpuState
from harness.core.outcomes import Finding
from harness.core.run.provenance import Provenance
from harness.core.run.report import Report, Throughput
from harness.core.upstream import TORCH_NORM, distributions


class CanaryCount(NamedTuple):
    """The number of cells in which a canary had the same result."""

    canary: str
    what: str  # "ran", "did not end", or why it does not apply
    cells: int


def canary_counts(report: Report) -> list[CanaryCount]:
    """Return canaries in the order of the matrix; for each, the most frequent result first."""
    names = list(dict.fromkeys(name for cell in report.cells for name in cell.canaries))
    counts = Counter((name, what) for cell in report.cells for name, what in cell.canaries.items())
    order = sorted(counts.items(), key=lambda item: (names.index(item[0][0]), -item[1], item[0][1]))
    return [CanaryCount(name, what, cells) for (name, what), cells in order]


def bound_label(finding: Finding) -> str:
    """Return the label of a finding's `bound`: "bound" for a numeric limit, "expected" for an exact value."""
    bound = finding.bound
    is_limit = isinstance(bound, float) or (isinstance(bound, Mapping) and "unit" in bound)
    return "bound" if is_limit else "expected"


def versions(provenance: Provenance, stack: str) -> dict[str, str]:
    """Return name -> version of the software under test: as ranks of the stack imported it, else as installed."""
    facts = provenance.software_of(stack)
    imported: dict[str, list[str]] = {}
    for module in provenance.imported_by(stack):
        imported.setdefault(module.name, []).append(module.version)
    packages = facts.versions
    imported_versions = {name: ", ".join(held) for name, held in imported.items()}
    trainers = ("megatron-bridge", "skyrl", "skyrl-train")  # shown where the stack has them
    trainer_versions = {
        name: imported_versions.get(distributions()[name]) or packages.get(name, "") for name in trainers
    }
    stubs, gloo_stubs = provenance.cpu_stubs, provenance.gloo_stubs
    return {
        "torch": imported_versions.get("torch") or packages.get("torch", "unknown"),
        "megatron-core": imported_versions.get("megatron.core") or packages.get("megatron-core", "unknown"),
        **{name: version for name, version in trainer_versions.items() if version},
        "transformer-engine": packages.get("transformer-engine", "not installed"),
        "python": facts.python or "unknown",
        "device": ", ".join(provenance.devices) or "unknown",
        "attention": ", ".join(provenance.attention) or "unknown",
        "packing-harness": f"{provenance.harness} ({provenance.harness_commit})",
        **({"CPU stubs": f"{len(stubs)}, for what needs a GPU{_norms(stubs)}"} if stubs else {}),
        **({"gloo stubs": f"{', '.join(gloo_stubs)}: ranks share a GPU"} if gloo_stubs else {}),
        **({"checkouts": "; ".join(checkout.text() for checkout in facts.checkouts)} if facts.checkouts else {}),
    }


def _norms(stubs: Sequence[str]) -> str:
    """Return which cells do not test upstream's norms, as the end of a sentence; empty if all do."""
    return "; norms of cells with sp or layernorm_1p are the harness's" if TORCH_NORM in stubs else ""


def share_text(share: float | None) -> str:
    """Return e.g. "41.3 %"; a dash for None."""
    return "-" if share is None else f"{100 * share:.3g} %"


def peak_texts(report: Report) -> list[str]:
    """Return the peak that MFU refers to, or why there is none; each text once."""
    timed = [cell.throughput for cell in report.cells if cell.throughput.step_p50_s is not None]
    return list(dict.fromkeys(_peak_text(speed) for speed in timed if speed.peak_origin))


def _peak_text(speed: Throughput) -> str:
    if speed.peak_tflops is None:
        return f"No MFU: {speed.peak_origin}."
    return f"MFU: of {speed.peak_tflops:g} TFLOP/s without sparsity ({speed.peak_origin})."


def gpu_texts(report: Report) -> list[str]:
    """Return the GPU of rank 0 beside the timing leg of each cell."""
    texts = []
    for cell in report.cells:
        states = cell.throughput.gpu_states
        if states:
            warmup = f"{cell.throughput.warmup_rounds} warm-up rounds"
            texts.append(f"{cell.id}: {warmup}; {'; '.join(state_text(state) for state in states)}")
    return texts


def state_text(state: GpuState) -> str:
    """Return e.g. "before: SM 1980 MHz, memory 3201 MHz, 412 of 700 W, 45 C, not slowed"."""
    parts = []
    if state.sm_clock_mhz is not None:
        parts.append(f"SM {state.sm_clock_mhz} MHz")
    if state.memory_clock_mhz is not None:
        parts.append(f"memory {state.memory_clock_mhz} MHz")
    if state.power_w is not None:
        limit = f" of {state.power_limit_w:.0f}" if state.power_limit_w is not None else ""
        parts.append(f"{state.power_w:.0f}{limit} W")
    if state.temperature_c is not None:
        parts.append(f"{state.temperature_c} C")
    if state.slowed_by is not None:
        parts.append(f"slowed by {', '.join(state.slowed_by)}" if state.slowed_by else "not slowed")
    if state.missing:
        parts.append(f"unknown: {state.missing}")
    return f"{state.when}: {', '.join(parts)}"
