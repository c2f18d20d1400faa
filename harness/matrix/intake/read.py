"""Recognises a text: a log with upstream's arguments, a configuration or a command, and its project."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from harness.matrix.arguments import key_of
from harness.matrix.intake.command import Command, command_in, flags_of, overrides_of, unknown
from harness.matrix.intake.configuration import flat, resolved, typed
from harness.matrix.intake.run import TrainingRun, Translation
from harness.upstreams.megatron_bridge import translation as megatron_bridge
from harness.upstreams.megatron_lm import relatives
from harness.upstreams.megatron_lm import translation as megatron_lm
from harness.upstreams.nemo_rl import translation as nemo_rl
from harness.upstreams.skyrl import translation as skyrl
from harness.upstreams.verl import translation as verl

_MAX_NAMED = 8
_HOW = (
    "give a training command, a script with one, a log with Megatron-LM's arguments, or a resolved configuration of "
    "Megatron-Bridge (run_config.yaml), SkyRL, NeMo-RL or verl"
)
# Parts of the names of overrides that a layout or a batch depends on: they must have a value.
_NEEDED = ("parallel", "batch_size", "nnodes", "num_nodes", "gpus_per_node", "strategy")
# The values of a configuration file that a command names, with its defaults; None where there is no such file.
Load = Callable[[str], Mapping[str, Any] | None]


@dataclass(frozen=True, kw_only=True)
class Reader:
    """How the training runs of one project are read."""

    scripts: tuple[str, ...]  # ends of the words that name its training scripts or modules
    settings: Callable[[Command, Load], Mapping[str, Any]]  # of a command; ValueError if it does not say them
    translate: Callable[[TrainingRun], Translation]
    # Of a configuration as values, with dotted names; None if it is not one of this project.
    of_values: Callable[[Mapping[str, Any]], Mapping[str, Any] | None] = lambda values: None
    sections: tuple[str, ...] = ()  # that overrides without a script begin with


def _flags(command: Command, load: Load) -> Mapping[str, Any]:
    return flags_of(command.words)


def _overrides(command: Command, load: Load) -> Mapping[str, Any]:
    return typed(overrides_of(command.words))


def _on_a_file(command: Command, load: Load) -> Mapping[str, Any]:
    """Return the settings of the configuration file that NeMo-RL's script reads, and the overrides."""
    words = [*command.words, ""]
    file = next(
        (
            after if word == "--config" else word.partition("=")[2]
            for word, after in pairwise(words)
            if word == "--config" or word.startswith("--config=")
        ),
        nemo_rl.default_configuration(command.script),
    )
    values = load(file)
    if values is None:
        raise ValueError(f"reads the configuration {file}, which is not found: start in the checkout, or name it")
    return flat(values) | typed(overrides_of(command.words))


READERS: dict[str, Reader] = {
    "megatron-lm": Reader(scripts=megatron_lm.SCRIPTS, settings=_flags, translate=megatron_lm.translate),
    "verl": Reader(
        scripts=verl.SCRIPTS,
        settings=_overrides,
        translate=verl.translate,
        of_values=verl.of_values,
        sections=("actor_rollout_ref.", "engine."),
    ),
    "nemo-rl": Reader(
        scripts=nemo_rl.SCRIPTS,
        settings=_on_a_file,
        translate=nemo_rl.translate,
        of_values=nemo_rl.of_values,
        sections=("policy.",),
    ),
    "skyrl": Reader(
        scripts=skyrl.SCRIPTS,
        settings=_overrides,
        translate=skyrl.translate,
        of_values=skyrl.of_values,
        sections=("trainer.policy.", "megatron_config."),
    ),
    "megatron-bridge": Reader(
        scripts=(), settings=_flags, translate=megatron_bridge.translate, of_values=megatron_bridge.of_values
    ),
    "ms-swift": Reader(scripts=relatives.SWIFT, settings=_flags, translate=relatives.translate_swift),
    "slime": Reader(scripts=relatives.SLIME, settings=_flags, translate=relatives.translate_slime),
}


def read(text: str, values: Any, source: str, load: Load = lambda file: None) -> TrainingRun:
    """Return the training run in a text. `values`: the text as YAML, None if it is none.

    ValueError that says what is missing, and what to do.
    """
    if printed := megatron_lm.arguments_in_log(text):
        return TrainingRun(
            project="megatron-lm", source=f"the arguments in {source}", script="", settings=printed, defaults_known=True
        )
    if isinstance(values, Mapping):
        return _of_values(values, source)
    command = command_in(text, [script for reader in READERS.values() for script in reader.scripts])
    project = _project_of(command)
    settings = READERS[project].settings(command, load)
    hidden = _hidden(settings, command.missing)
    return TrainingRun(
        project=project,
        source=f"the command in {source}",
        script=command.script,
        settings=resolved({name: value for name, value in settings.items() if name not in hidden}),
        hidden=tuple(hidden),
        ranks=command.ranks,
    )


def _of_values(values: Mapping[str, Any], source: str) -> TrainingRun:
    parts = values.get("defaults")
    if isinstance(parts, list) and any(isinstance(part, Mapping) or part == "_self_" for part in parts):
        raise ValueError(
            "has Hydra's list of defaults, which names other files: give the configuration that your command resolves, "
            "as it prints with `--cfg job --resolve`, or the command itself"
        )
    for project, reader in READERS.items():
        if (own := reader.of_values(values)) is not None:
            return TrainingRun(
                project=project,
                source=f"the configuration in {source}",
                script="",
                settings=resolved(own),
                defaults_known=True,
            )
    raise ValueError(f"is a configuration of no project that the harness knows: {_HOW}")


def _hidden(settings: Mapping[str, Any], missing: Sequence[str]) -> Mapping[str, str]:
    """Return the settings whose values only a shell knows; ValueError if such a value is needed.

    Of flags, those are needed that are keys of a matrix; of overrides, the layout and the batch.
    """
    hidden = {name: str(value) for name, value in settings.items() if "«" in str(value)}
    overrides = any("." in name for name in settings)
    needed = [
        value
        for name, value in hidden.items()
        if "[@]" in value or (any(part in name for part in _NEEDED) if overrides else key_of(name))
    ]
    named = [name.removesuffix("[@]") for name in missing if any(unknown(name) in value for value in needed)]
    if named:
        shown = ", ".join(named[:_MAX_NAMED])
        raise ValueError(
            f"has shell variables without a value: {shown}; assign them above the command, e.g. {named[0]}=..."
            if not named[0].startswith(("$", "`"))
            else f"has values that only a shell knows: {shown}; write them in place of the command"
        )
    return hidden


def _project_of(command: Command) -> str:
    """Return the project whose script it is; for arguments without a script, by their names."""
    if command.script:
        return next(name for name, reader in READERS.items() if command.script.endswith(reader.scripts))
    names = [word.lstrip("+~") for word in command.words if not word.startswith("-") and "=" in word]
    found = (
        project
        for project, reader in READERS.items()
        if reader.sections and any(name.startswith(reader.sections) for name in names)
    )
    return next(found, "megatron-lm")


def translate(run: TrainingRun) -> Translation:
    """Return what the run is in a matrix. ValueError for a setting that cannot be meant."""
    result = READERS[run.project].translate(run)
    for name in run.hidden:
        result.leave_out(name, "only a shell knows its value")
    per_token = "packing_options.calculate_per_token_loss"
    if not result.packing and result.keys["cp"] > 1 and not result.keys.get(per_token, True):
        result.keys[per_token] = True
        result.leave_out(
            "a mean over tokens of each rank", "cells that do not pack need calculate_per_token_loss with cp"
        )
    return result
