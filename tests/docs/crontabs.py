"""A reader of crontab and scrontab files that reports what cron would misread."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime

from cronsim import CronSim, CronSimError

_MONDAY = datetime(2027, 1, 4)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)")


@dataclass
class Crontab:
    settings: dict[str, str] = field(default_factory=dict)
    entries: list[tuple[str, str, list[str]]] = field(default_factory=list)  # when, command, #SCRON options above
    wrong: list[str] = field(default_factory=list)


def read_crontab(text: str, *, slurm: bool = False) -> Crontab:
    """Settings, entries and mistakes. `slurm`: a scrontab, which has options but no @reboot and no settings."""
    found, options = Crontab(), []
    for number, line in enumerate(text.splitlines(), start=1):
        if slurm and line.startswith("#SCRON "):
            options += line.split()[1:]
        elif not line.strip() or line.startswith("#"):
            continue
        elif (setting := _ASSIGNMENT.fullmatch(line)) and not slurm:
            found.settings[setting[1]] = setting[2]
            found.wrong += [f"line {number}: cron expands no variables here"] if "$" in setting[2] else []
        else:
            fields = 1 if line.startswith("@") else 5
            *when, command = line.split(None, fields)
            found.entries.append((" ".join(when), command, options))
            found.wrong += [f"line {number}: {mistake}" for mistake in _mistakes(" ".join(when), command, slurm)]
            options = []
    return found


def _mistakes(when: str, command: str, slurm: bool) -> list[str]:
    found = []
    if when.startswith("@"):
        known = {"@hourly", "@daily", "@weekly", "@monthly"} | (set() if slurm else {"@reboot"})
        found += [] if when in known else [f"no such time {when}"]
    else:
        try:
            next(CronSim(when, _MONDAY))
        except CronSimError as error:
            found.append(f"{when!r}: {error}")
    return found + (["a % that is not escaped ends the command"] if re.search(r"(?<!\\)%", command) else [])
