"""The result of a shrink as text: what each round removed, what is left, and what cannot be removed."""

from __future__ import annotations

from harness.core.cell.config import CellConfig
from harness.core.cell.identity import cell_name
from harness.core.outcomes import Finding
from harness.core.text import counted
from harness.plan.shrink.search import Smallest


def smallest_text(smallest: Smallest, matrix: str) -> str:
    """For the terminal. `matrix`: path of smallest.yaml."""
    if smallest.config is None:
        alone = "the finding did not reproduce in the same cell alone"
        return f"{alone}: it may be flaky, or depend on cells that ran alongside it"
    lines = [f"round {step.round}: {', '.join(step.changes)}" for step in smallest.steps]
    lines += [f"smallest: {described(smallest.config)}", *needs_lines(smallest)]
    lines += [f"{counted(smallest.tried, 'cell')} tried in {counted(smallest.rounds, 'round')}"]
    fault = smallest.config.fault
    lines += [f"reproduce: harness run {matrix}{f' --fault {fault}' if fault else ''}"]
    return "\n".join(lines)


def described(config: CellConfig) -> str:
    """E.g. "tp2-pp3-cp1-sft: 6 ranks, 3 layers, 1 document (lengths 5), rows of 64, 1 step"."""
    documents = config.documents_of(0)
    lengths = ", ".join(str(document.original_length) for document in documents)
    parts = [counted(config.layout.world_size, "rank"), counted(config.model.layers, "layer")]
    parts += [f"{counted(len(documents), 'document')} (lengths {lengths})", f"rows of {config.train.seq_length}"]
    return f"{cell_name(config)}: {', '.join([*parts, counted(config.train.steps, 'step')])}"


def needs_lines(smallest: Smallest) -> list[str]:
    """What the finding needs: one line for all judged dimensions, then a line for each one that was not, with why."""
    if not smallest.minimal:
        return ["it may not be the smallest: the limit of rounds was reached"]
    judged = [need for need in smallest.needs if need.judged]
    lines = [f"needs {' and '.join(need.text for need in judged)}: {'; '.join(need.without for need in judged)}"]
    return (lines if judged else []) + [f"{need.text}: {need.without}" for need in smallest.needs if not need.judged]


def head_lines(smallest: Smallest, cell: str, finding: Finding) -> list[str]:
    """Comments at the top of smallest.yaml."""
    lines = [f"The smallest cell found that fails as {cell} did:"]
    lines += [f"{finding.lane.value}, {finding.check}: {' '.join(finding.message.split())}"]
    lines += needs_lines(smallest)
    if smallest.config is not None and smallest.config.fault:
        lines.append(f"The fault {smallest.config.fault} was injected: without --fault, this file passes.")
    return lines
