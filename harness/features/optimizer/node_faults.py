"""Injections into megatron.core.optimizer_param_scheduler, 0.19."""

from __future__ import annotations

from functools import partial

from harness.core.cell.config import TrainConfig
from harness.faults.node_edits import DataPathEdited, Edit
from harness.faults.node_fault import FAULTS

_SCHEDULER = "megatron.core.optimizer_param_scheduler:OptimizerParamScheduler"
_EDITS = {
    "schedule-one-step-ahead": Edit(
        f"{_SCHEDULER}.step",
        "self.num_steps += increment",
        f"self.num_steps += increment or {TrainConfig().global_batch}",
    ),
    "weight-decay-over-the-steps-of-the-learning-rate": Edit(
        f"{_SCHEDULER}.get_wd", "/ float(self.wd_incr_steps)", "/ float(self.lr_decay_steps)"
    ),
}
FAULTS.update({name: partial(DataPathEdited, edit) for name, edit in _EDITS.items()})
