"""How upstream's trainers are entered; what they count and print of a step, beside loss and gradient norm.

megatron: megatron.training.training of Megatron-LM; bridge: megatron.bridge.training.train and its utils.train_utils.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from harness.core.cell.config import CellConfig
from harness.core.cell.schedule import Schedule

WITH_COUNTERS = ("megatron", "bridge")  # trainers that count FLOPs, and print a line of metrics on the last rank
LOSS = "lm loss"  # the name by which upstream reports the mean loss
# Fields of that line, in the order in which they are printed.
PRINTED = (
    "iteration",
    "consumed samples",
    "learning rate",
    "global batch size",
    LOSS,
    "loss scale",
    "grad norm",
    "number of skipped iterations",
)
# Trainer -> the module whose version decides, the first version that may count the tokens of packed documents, and the
# first that always does. Commits of Megatron-LM's main with the version 0.18.0 lie on both sides of 5e4fc931ba (#4103).
_PACKED_SINCE = {
    "megatron": ("megatron.core", (0, 18), (0, 19)),
    "bridge": ("megatron.bridge", (0, 6), (0, 6)),
}
# The functions of Megatron-Bridge that train: from the start, and from a checkpoint, which the second one requires.
_PRETRAIN, _FINETUNE = "megatron.bridge.training.pretrain.pretrain", "megatron.bridge.training.finetune.finetune"


def entry_point(config: CellConfig) -> str:
    """Return the function of upstream that trains this part of the cell; empty for trainers that have only one."""
    begins = not config.saved_in and config.model.peft is None  # adapters are put on the weights of a checkpoint
    return (_PRETRAIN if begins else _FINETUNE) if config.trainer == "bridge" else ""


def counting_ranks(config: CellConfig, stage: int) -> bool:
    """Return whether ranks of a stage count what the whole step does.

    Megatron-LM adds the counts of all ranks. A stage of Megatron-Bridge counts what it reads of the batch; its first
    stage, which reads all, prints and saves the numbers.
    """
    return config.trainer in WITH_COUNTERS and (config.trainer == "megatron" or stage == 0)


def counts_packed(config: CellConfig, versions: Mapping[str, str]) -> bool | None:
    """Return whether the cell's trainer counts tokens of packed documents; None: some code of this version does.

    `versions`: module -> version of the code that ran.
    """
    module, first, always = _PACKED_SINCE[config.trainer]
    found = re.match(r"(\d+)\.(\d+)", versions.get(module, ""))
    if not found:
        return None
    number = (int(found[1]), int(found[2]))
    return True if number >= always else None if number >= first else False


def counts_lengths(config: CellConfig) -> bool:
    """Return whether the trainer counts the lengths of the cell's rows: Megatron-LM does of packed ones only."""
    return config.trainer != "megatron" or config.style.packed


def reported_rate(config: CellConfig, step: int) -> float:
    """Return the learning rate that the trainer reports of a step.

    Megatron-LM and Megatron-Bridge read it after the schedule has gone on: it is that of the next step.
    """
    return Schedule.of(config).rate(step + 1 if config.trainer in WITH_COUNTERS else step)


def log_interval(config: CellConfig) -> int:
    """Return the steps from one line of metrics to the next.

    With Megatron-LM one line for all steps, unless the cell says otherwise: it prints a line for the first step in any
    case, and with an interval of 1 that for the second is wrong (docs/reproducers/log_interval_of_one.py).
    """
    if config.trainer != "megatron":
        return 1
    given = config.args.text("log_interval")
    return int(given) if given.isdecimal() and int(given) else config.train.steps


def logged(config: CellConfig, step: int) -> range:
    """Return the steps over which the line that is printed after a step gives the mean; empty if none is printed.

    Megatron-LM prints one more line after the first step of a process, and does not count it as the beginning of an
    interval.
    """
    interval, number, first = log_interval(config), step + 1, config.start_step
    if config.trainer not in WITH_COUNTERS:
        return range(0)
    if number % interval == 0:
        return range(max(number - interval, first), number)
    return range(first, number) if step == first and config.trainer == "megatron" else range(0)
