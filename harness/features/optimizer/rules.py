"""Rules of the schedules of learning rate and weight decay."""

from __future__ import annotations

from harness.core.cell.config import CellConfig
from harness.core.cell.schedule import Schedule, changed_keys
from harness.matrix.rules.rule import Rule

# The keys of SkyRL's schedule, a constant rate after a warm-up.
_OF_SKYRL = ("lr_warmup_iters",)


def rates_in_order(config: CellConfig) -> str | None:
    train = config.train
    for name in ("min_lr", "lr_warmup_init"):
        if (value := getattr(train, name)) > train.lr:
            return f"train.{name} {value:g} is above train.lr {train.lr:g}"
    return None


def one_warmup(config: CellConfig) -> str | None:
    train = config.train
    if train.lr_warmup_fraction is None or not train.lr_warmup_iters:
        return None
    return (
        f"train.lr_warmup_fraction is {train.lr_warmup_fraction:g} and train.lr_warmup_iters {train.lr_warmup_iters}: "
        "set one of them"
    )


def warmup_before_the_end(config: CellConfig) -> str | None:
    schedule, train = Schedule.of(config), config.train
    if not train.steps or schedule.warm < schedule.length:
        return None
    name = "train.lr_decay_iters" if train.lr_decay_iters else "train.steps"
    return (
        f"the learning rate warms up in {schedule.warm:g} steps, and its schedule ends at {name} {schedule.length}; "
        "use a shorter warm-up, or a larger train.lr_decay_iters"
    )


def wsd_has_a_length(config: CellConfig) -> str | None:
    train = config.train
    if train.lr_decay_style == "WSD" and train.lr_wsd_decay_iters is None:
        return "train.lr_decay_style is WSD: set train.lr_wsd_decay_iters, the steps in which it decays"
    return None


def inverse_root_has_a_warmup(config: CellConfig) -> str | None:
    train = config.train
    if train.lr_decay_style != "inverse-square-root" or Schedule.of(config).warm >= 1 or not train.steps:
        return None
    return (
        "train.lr_decay_style is inverse-square-root without a warm-up of a step at least, so upstream's rate depends "
        "on the number of samples in a step: set train.lr_warmup_iters"
    )


def decay_has_ends(config: CellConfig) -> str | None:
    train = config.train
    given = {name: getattr(train, name) for name in ("start_weight_decay", "end_weight_decay")}
    if train.weight_decay_incr_style == "constant":
        name = next((name for name, value in given.items() if value is not None), None)
        how = "set train.weight_decay_incr_style, or the argument weight-decay in place of it"
        return name and f"train.{name} is set, and train.weight_decay_incr_style is constant: {how}"
    absent = next((name for name, value in given.items() if value is None), None)
    if absent:
        return f"train.weight_decay_incr_style is {train.weight_decay_incr_style}: set train.{absent}"
    if config.args.of("weight_decay"):
        return f"weight-decay has no effect with train.weight_decay_incr_style {train.weight_decay_incr_style}"
    start, end = given.values()
    return f"train.start_weight_decay {start:g} is above train.end_weight_decay {end:g}" if start > end else None


def trainer_has_schedule(config: CellConfig) -> str | None:
    if config.trainer != "skyrl":
        return None
    given = [name for name in changed_keys(config.train) if name not in _OF_SKYRL]
    return (
        f"trainer is skyrl, whose schedule is a constant rate after train.lr_warmup_iters steps, not train.{given[0]}"
        if given
        else None
    )


_SCHEDULER = "Megatron-LM OptimizerParamScheduler.__init__"
SCHEDULE_RULES: tuple[Rule, ...] = (
    Rule("schedule.rates", _SCHEDULER, rates_in_order),
    Rule("schedule.one-warmup", "Megatron-LM validate_args; Megatron-Bridge SchedulerConfig.finalize", one_warmup),
    Rule(
        "schedule.warmup",
        f"{_SCHEDULER}; Megatron-Bridge ConfigContainer.validate would shorten the warm-up",
        warmup_before_the_end,
    ),
    Rule("schedule.wsd", _SCHEDULER, wsd_has_a_length),
    Rule(
        "schedule.inverse-root",
        "harness: schedules are compared in steps; Megatron-LM OptimizerParamScheduler.get_lr counts from one sample",
        inverse_root_has_a_warmup,
    ),
    Rule("schedule.decay", "Megatron-LM validate_args, OptimizerParamScheduler.__init__", decay_has_ends),
    Rule("schedule.skyrl", "SkyRL get_megatron_optimizer_param_scheduler", trainer_has_schedule),
)
