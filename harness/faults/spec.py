"""The specification of an injected fault: the bug, the smallest cell that shows it, and the finding it must cause."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from harness.core.cell.arguments import NO_ARGUMENTS, Arguments
from harness.core.cell.axes import axes, dotted, with_value
from harness.core.cell.axis_values import HARNESS
from harness.core.cell.config import CANARIES, CellConfig, ModelConfig, TrainConfig
from harness.core.cell.layout import Layout
from harness.core.cell.timing import NOT_TIMED, TimingConfig
from harness.core.outcomes import Lane, Outcome
from harness.core.packing.documents import DocumentsConfig, adversarial_mix
from harness.core.packing.options import DEFAULT_OPTIONS, PackingOptions
from harness.core.stack import DEFAULT
from harness.matrix.expansion.resolve import control_of, with_noise_legs
from harness.upstreams.builtin.spec import REFERENCE

# Six layers divide over 1, 2 and 3 stages and over 3 chunks on each of 2, so that every fault shares one model.
MODEL = ModelConfig(layers=6)
TRAIN = TrainConfig(steps=2, global_batch=8, seq_length=64)
# The layouts of most faults: one rank, and two ranks in one dimension.
ONE, TP, PP, CP, DP = Layout(), Layout(tp=2, sp=True), Layout(pp=2), Layout(cp=2), Layout(dp=2)
DOCUMENTS = adversarial_mix(TRAIN.seq_length, 2)
DEADLINE_S = 60.0
TIMED_DEADLINE_S = 900.0  # of timed cells: a timing leg whose rounds exceed a share of it gives up
HANG_DEADLINE_S = 25.0  # of cells that may hang: many times the duration of their clean twins on a busy machine
# The shipped matrix that defines a stack, and its name there. The last three need a clone beside the repository.
STACK_OF_TRAINERS = ("trainer_bridge", "bridge062")
STACK_OF_VERL = ("rl", "verl091")
STACK_OF_NEMO_RL = ("rl", "nemo_rl")
STACK_OF_MEGATRON_RL = ("rl_megatron", "main")


@dataclass(frozen=True, kw_only=True)
class FaultSpec:
    """One fault of the self-test. A module node_*.py has its injection under the same name.

    It is caught when the outcome is `outcome`; the leading finding is in `lane`, from the first of `checks`, and
    matches `where`; and every other check has a finding, which matches `also[check]` if given. With a numerics fault
    the metadata lane must pass; with a throughput fault, both other lanes.
    """

    name: str
    fault_class: str  # one of CLASSES
    summary: str
    modelled_on: str  # bug corpus entry and upstream commit, pull request or issue
    layout: Layout
    why: str  # why this is the smallest layout that shows it
    lane: Lane
    checks: tuple[str, ...]
    where: dict[str, Any] = field(default_factory=dict)
    also: dict[str, dict[str, Any]] = field(default_factory=dict)  # check -> `where` of one of its findings
    outcome: Outcome = Outcome.FAIL
    data_path: str = REFERENCE.name
    dtype: str = "fp32"
    micro_batch_size: int = 1
    documents: DocumentsConfig = DOCUMENTS
    global_batch: int = TRAIN.global_batch
    deadline_s: float = DEADLINE_S
    # With `turns`, the cell and its clean twin run interleaved, as if on two stacks; the twin is the base.
    timing: TimingConfig = NOT_TIMED
    model: ModelConfig = MODEL
    options: PackingOptions = DEFAULT_OPTIONS
    eval_interval: int = 0
    trainer: str = HARNESS
    stack: str = DEFAULT
    args: Arguments = NO_ARGUMENTS
    axes: dict[str, Any] = field(default_factory=dict)  # values of axes that have no field here

    @property
    def _canaries(self) -> tuple[str, ...]:
        """Those that must find the fault; of faults that only canaries show, all."""
        return CANARIES if self.fault_class == "canary" else tuple(name for name in CANARIES if name in self.checks)

    def _config(self, *, deadline_s: float, fault: str | None) -> CellConfig:
        timing = replace(self.timing, first=bool(self.timing.turns) and fault is None)
        train = replace(TRAIN, global_batch=self.global_batch, eval_interval=self.eval_interval)
        config = CellConfig(
            layout=self.layout,
            data_path=self.data_path,
            micro_batch_size=self.micro_batch_size,
            dtype=self.dtype,
            model=self.model,
            train=train,
            documents=self.documents,
            options=self.options,
            canaries=self._canaries,
            timing=timing,
            deadline_s=deadline_s,
            fault=fault,
            trainer=self.trainer,
            stack=self.stack,
            args=self.args,
        )
        for name, value in self.axes.items():
            config = with_value(config, (axes() | dotted())[name], value)
        return config

    @property
    def faulty(self) -> CellConfig:
        """The cell with the fault."""
        return self._config(deadline_s=self.deadline_s, fault=self.name)

    @property
    def twin(self) -> CellConfig:
        """The same cell without the fault; it must pass."""
        return self._config(deadline_s=max(self.deadline_s, DEADLINE_S), fault=None)

    @property
    def control(self) -> CellConfig:
        """The control of both: the same documents on one rank, unpacked."""
        return with_noise_legs(control_of(self._config(deadline_s=DEADLINE_S, fault=self.name)))


CLASSES = (
    "metadata",
    "layout",
    "content",
    "leak",
    "normalisation",
    "model",
    "canary",
    "hang",
    "crash",
    "infrastructure",
    "throughput",
    "trainer",
    "rollout",
)


rollout_spec = partial(
    FaultSpec,
    fault_class="rollout",
    stack=STACK_OF_VERL[1],
    data_path="verl",
    options=PackingOptions(calculate_per_token_loss=False),  # with it, cells with cp above 1 fail
    lane=Lane.NUMERICS,
)
