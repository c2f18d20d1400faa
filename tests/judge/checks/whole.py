"""Cases of a check whose findings are compared whole with a golden file, and evidence to make them from."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from harness.core.packing.options import PackingOptions
from harness.core.tolerances import Bound
from harness.judge.checks.finding import Check, CheckFinding
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.simulator import config_of, evidence_for

Case = Callable[[], CellEvidence]


class Cases:
    """Cases by check: `@cases(check)` adds a function that makes evidence; its name says what is wrong with it."""

    def __init__(self) -> None:
        self.of: dict[str, list[tuple[Check, Case]]] = {}

    def __call__(self, check: Check) -> Callable[[Case], Case]:
        def add(case: Case) -> Case:
            self.of.setdefault(check.name, []).append((check, case))
            return case

        return add

    def text(self, name: str) -> str:
        """The findings of all cases of a check."""
        return "\n".join(_text(case.__name__, check(case())) for check, case in self.of[name])


def _text(case: str, findings: list[CheckFinding]) -> str:
    lines = [f"# {case.replace('_', ' ')}"]
    for found in findings:
        lines += [
            found.message,
            f"  {found.severity}: {found.fault_class}",
            f"  where {json.dumps(_rounded(found.where))}",
            f"  measured {json.dumps(_rounded(found.measured))}",
            f"  bound {json.dumps(_rounded(found.bound))}",
        ]
    return "\n".join([*lines, *([] if findings else ["no finding"]), ""])


def _rounded(value: Any) -> Any:
    """Floats with as many digits as every machine computes alike."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value


def of(data_path: str = "sft", *, steps: int = 2, **layout: Any) -> CellEvidence:
    config = config_of(data_path, **layout)
    return evidence_for(replace(config, train=replace(config.train, steps=steps)))


def with_canary(name: str, *, data_path: str = "sft", steps: int = 2, **layout: Any) -> CellEvidence:
    return of(data_path, steps=steps, canaries=(name,), **layout)


def of_other_rows(**layout: Any) -> CellEvidence:
    """A cell that weights each micro-batch separately, and whose control packs other rows."""
    options = PackingOptions(calculate_per_token_loss=False)
    evidence = evidence_for(replace(config_of("sft", **layout), options=options))
    assert not evidence.same_rows
    return evidence


def off(fingerprint: Any, factor: float) -> None:
    """Multiply a gradient or an activation."""
    fingerprint.norm_sq *= factor**2
    fingerprint.projections = [value * factor for value in fingerprint.projections]


def shift(evidence: CellEvidence, layer: int, *documents: int) -> None:
    """Double the outputs of a layer and all later ones, as a real error does."""
    for record in evidence.records.values():
        for seen in record.activations:
            for document in documents if seen.layer >= layer else ():
                if document in seen.documents:
                    off(seen.documents[document], 2.0)


def tight(evidence: CellEvidence, *names: str) -> CellEvidence:
    """Bounds of step 0 that are tighter than those of later steps."""
    bounds = {name: Bound(value=1e-7, origin="the noise of the control") for name in names}
    evidence.tolerances = replace(evidence.tolerances, **bounds)  # type: ignore[arg-type]
    return evidence


def absolute(evidence: CellEvidence, *names: str) -> CellEvidence:
    """Bounds that do not depend on the size of the expected value."""
    bounds = {name: Bound(value=1e-3, unit="absolute", origin="the matrix") for name in names}
    evidence.tolerances = replace(evidence.tolerances, **bounds)  # type: ignore[arg-type]
    return evidence
