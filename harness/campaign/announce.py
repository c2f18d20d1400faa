"""`--notify`: sends the verdict to commands and webhooks. No failure of a receiver changes the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core.secrets import redacted
from harness.infra import screen

if TYPE_CHECKING:
    from harness.core.run.report import Report

OPTION = "--notify"


def without_secrets(command: Sequence[str]) -> list[str]:
    """Return a command line without secrets, for files and messages; receivers are shown without credentials."""
    secrets = screen.environment_secrets()
    if not any(_is_notify(word.partition("=")[0]) for word in command):
        return [redacted(word, secrets) for word in command]
    from harness.reporting.notify import shown  # loads an HTTP client

    words = []
    for before, word in zip(["", *command], command):
        name, sign, value = word.partition("=")
        if _is_notify(before):
            words.append(shown(word))
        elif _is_notify(name) and sign:
            words.append(f"{name}={shown(value)}")
        else:
            words.append(redacted(word, secrets))
    return words


def _is_notify(word: str) -> bool:
    """Return whether argparse takes the word as --notify, which may be abbreviated down to --not."""
    return word.startswith("--not") and OPTION.startswith(word)


def announce(receivers: Sequence[str], report: Report, directory: Path, exit_code: int) -> None:
    """Send the verdict to every receiver; failures are printed to stderr."""
    from harness.reporting.announcement import announcement

    _send(receivers, announcement(report, exit_code=exit_code, directory=str(directory)))


def announce_end(receivers: Sequence[str], what: str, message: str, exit_code: int) -> None:
    """Notify every receiver of a run that ended before it could be judged: silence would look like a green run."""
    from harness.reporting.announcement import not_judged

    if receivers:
        _send(receivers, not_judged(what, message, exit_code=exit_code))


def _send(receivers: Sequence[str], values: dict[str, Any]) -> None:
    from harness.core.serialization import dumps
    from harness.reporting.notify import notify, shown

    text = dumps(values)
    variables = {
        "HARNESS_RUN_ID": values["run_id"],
        "HARNESS_MATRIX": values["matrix"],
        "HARNESS_VERDICT": values["verdict"],
        "HARNESS_EXIT_CODE": str(values["exit_code"]),
        "HARNESS_RUN_DIR": values["directory"],
    }
    for receiver in receivers:
        if wrong := notify(receiver, text, variables):
            screen.err(f"harness: {OPTION} {shown(receiver)}: {wrong}")
