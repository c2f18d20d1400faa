"""Values in run files: how ranks and cells ended, and the position of a rank."""

from __future__ import annotations

from typing import Literal

RankEnd = Literal["running", "completed", "raised", "deadline", "killed"]
ProcessEnd = Literal["running", "completed", "raised", "deadline", "killed", "missing"]  # missing: left no record
CellStatus = Literal["completed", "failed", "rejected", "error"]
Phase = Literal["setup", "start", "fetch", "forward", "backward", "reduce", "optimizer", "done"]  # start: of a step
# In running order; the leg that changes the weights comes last.
CanaryLeg = Literal[
    "truncation",
    "determinism",
    "isolation",
    "isolation-middle",
    "repetition",
    "order",
    "padding",
    "noise-order",
    "noise-epsilon",
    "noise-dtype",
]
# start, end: before and after all legs. An evaluation takes place before the training step of its number.
LegName = Literal["start", "metadata", "training", "evaluation", CanaryLeg, "timing", "end"]
CellRole = Literal["cell", "control"]  # control: added by the harness, not a cell of the matrix
