"""Tells what a text is: a log with upstream's arguments, a configuration, or a command; and whose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.matrix.intake.command import Command, command_in, flags_of
from harness.matrix.intake.run import TrainingRun, Translation
from harness.upstreams.megatron_lm import translation as megatron_lm

_MAX_NAMED = 8
_HOW = (
    "give a training command, a script with one, a log with Megatron-LM's arguments, or a configuration of "
    "Megatron-Bridge, SkyRL, NeMo-RL or verl"
)


@dataclass(frozen=True, kw_only=True)
class Reader:
    """How the training runs of one project are read."""

    scripts: tuple[str, ...]  # ends of the words that name its training scripts or modules
    settings: Callable[[Command], Mapping[str, Any]]  # of a command
    translate: Callable[[TrainingRun], Translation]
    # Of a configuration as values, with dotted names; None if it is not one of this project.
    of_values: Callable[[Mapping[str, Any]], Mapping[str, Any] | None] = lambda values: None


READERS: dict[str, Reader] = {
    "megatron-lm": Reader(
        scripts=megatron_lm.SCRIPTS,
        settings=lambda command: flags_of(command.words),
        translate=megatron_lm.translate,
    ),
}


def read(text: str, values: Any, source: str) -> TrainingRun:
    """Return the training run in a text. `values`: the text as YAML, None if it is none.

    ValueError that says what is missing, and what to do.
    """
    if printed := megatron_lm.arguments_in_log(text):
        return TrainingRun(
            project="megatron-lm", source=f"the arguments in {source}", script="", settings=printed, defaults_known=True
        )
    if isinstance(values, Mapping):
        for project, reader in READERS.items():
            if (own := reader.of_values(values)) is not None:
                return TrainingRun(
                    project=project,
                    source=f"the configuration in {source}",
                    script="",
                    settings=own,
                    defaults_known=True,
                )
        raise ValueError(f"is a configuration of no project that the harness knows: {_HOW}")
    command = command_in(text, [script for reader in READERS.values() for script in reader.scripts])
    project = _project_of(command)
    if command.missing:
        named = ", ".join(command.missing[:_MAX_NAMED])
        raise ValueError(
            f"has shell variables without a value: {named}; assign them above the command, e.g. {named}=..."
        )
    settings = READERS[project].settings(command)
    return TrainingRun(
        project=project,
        source=f"the command in {source}",
        script=command.script,
        settings=settings,
        ranks=command.ranks,
    )


def _project_of(command: Command) -> str:
    """Return the project whose script it is; Megatron-LM for arguments without a script."""
    found = (name for name, reader in READERS.items() if command.script and command.script.endswith(reader.scripts))
    return next(found, "megatron-lm")


def translate(run: TrainingRun) -> Translation:
    """Return what the run is in a matrix. ValueError for a setting that cannot be meant."""
    return READERS[run.project].translate(run)
