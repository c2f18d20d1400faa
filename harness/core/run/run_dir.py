"""The run directory: file names, atomic writes, reads. Used on nodes and by the launcher; only the standard library.

reports/<run_id>/
  matrix.resolved.yaml  plan.json  cluster.json  events.jsonl  launcher.lock  cancelled.json
  submissions/<array>.sbatch  <array>.<job>.{out,err}  <allocation>.{json,log}
  agents/<order>.<node>.{jsonl,heartbeat,agent.json,second.json}  <allocation>.{claim-<n>,refused-<job>-<restart>}.json
  cells/<cell_id>/attempt-<n>/{config.json, ranks/rank-00007.json, log/rank-00007.log, oracle.json, result.json,
                               interrupted, data/, checkpoint/, pretrained/,
                               resumed/{config.json, ranks/, log/, oracle.json, result.json, data/}}
  interleaving/<pair>/attempt-<n>/<turn>
  oracles/<key>.json
  node-code/harness/
  operations/<cell_id>/layer-<n>/ (a run, whose attempts have operations/rank-00007.json)
  shrink/<cell_id>/{round-01/ (a run), answers.jsonl, shrink.json, smallest.yaml, issue.md}
  noise.json  baseline.json  previous.json  report.json  junit.xml  report.md  report.html  compare.{md,html}
  report-pages/001.html, of a large run
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

from harness.core.errors import DiskFullError, InputError, Problem
from harness.core.run.job_start import Claim, JobStart
from harness.core.serialization import dumps, from_jsonable, loads

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_RESUMED = "resumed"
_CELLS = "cells"
MAX_CHARACTERS = 200  # of a name that a run gives a file or a folder; suffixes come on top
_RUN_ID_BYTES = 1000  # of plan.json, enough for its run id

_ROOTS: set[str] = set()  # absolute paths of the runs that this process has named
_PLAIN: set[str] = set()  # folders of them that are reached without a link


def has_safe_characters(name: str) -> bool:
    """Return whether a name has only characters that the name of a file or a folder of a run may have."""
    return _SAFE.fullmatch(name) is not None


def path_component(name: str) -> str:
    """Return the name itself; InputError if it cannot be one path component inside the run directory."""
    if not has_safe_characters(name) or len(name) > MAX_CHARACTERS:
        raise InputError(
            f"{name!r} cannot name a file: use 1 to {MAX_CHARACTERS} letters, digits, '.', '_', '-', "
            "a letter or digit first"
        )
    return name


def protect_new_files() -> None:
    """Make new files of this process not writable by group and others, whatever umask it was started with."""
    os.umask(os.umask(0o022) | 0o022)


@contextmanager
def needs_room(path: Path) -> Iterator[None]:
    """Turn the OSError for a full disk or quota into a DiskFullError that names the file."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFullError(
            f"cannot write {path}: {error.strerror}; free some space on its disk, then continue"
        ) from error


class NotRegularError(OSError):
    """A pipe, a socket or a device where a regular file should be."""


class LinkError(InputError):
    """A symbolic link within a run directory, which may come from elsewhere: it could lead to any file of the user."""


def refuse_links(path: Path) -> None:
    """LinkError if a path in a run, or a folder between it and the run directory, is a symbolic link.

    The run directory itself may be one, or be reached through one: the user names it.
    """
    place = os.path.abspath(path)  # noqa: PTH100 - Path.absolute keeps ".."
    folder = os.path.dirname(place)  # noqa: PTH120 - this is called for every file
    if folder not in _PLAIN:
        above = [Path(folder), *Path(folder).parents]
        roots = [number for number, one in enumerate(above) if str(one) in _ROOTS]
        if not roots:
            return
        for one in reversed(above[: roots[-1]]):  # from the outermost run, since a run may hold others
            _refuse_link(str(one))
        if os.path.isdir(folder):  # noqa: PTH112
            _PLAIN.add(folder)
    _refuse_link(place)


def _refuse_link(place: str) -> None:
    with suppress(OSError):
        target = os.readlink(place)  # noqa: PTH115
        what = f"is a symbolic link, to {target}; the harness follows no link within a run directory"
        raise LinkError(
            Problem(message=what, file=place, hint="put the file or folder itself there, or remove the link")
        )


def refuse_links_below(folder: Path) -> None:
    """LinkError if anything in a folder of a run is a symbolic link; for what the code under test will write to."""
    refuse_links(folder / "any")
    for above, folders, files in os.walk(folder):
        for name in (*folders, *files):
            _refuse_link(os.path.join(above, name))  # noqa: PTH118


def descriptor_of(path: Path, flags: int = os.O_RDONLY) -> int:
    """Return a descriptor of a regular file of a run. With O_CREAT its folder is made.

    LinkError as for `refuse_links`; NotRegularError for a pipe or device, which could block or never end.
    """
    refuse_links(path)
    if flags & os.O_CREAT:
        path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind, why = (IsADirectoryError, errno.EISDIR) if stat.S_ISDIR(mode) else (NotRegularError, errno.EINVAL)
        raise kind(why, os.strerror(why) if why == errno.EISDIR else "not a regular file", str(path))
    return descriptor


def opened(path: Path) -> BinaryIO:
    """Return a regular file of a run opened for reading; errors as for `descriptor_of`."""
    return os.fdopen(descriptor_of(path), "rb")


def appending(path: Path) -> FileIO:
    """Return a regular file of a run opened for appending and reading, without a buffer; errors as for
    `descriptor_of`.
    """
    return FileIO(descriptor_of(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), "a+b")


def text_of(path: Path) -> str:
    """Return the text of a regular file; errors as for `opened`."""
    with opened(path) as stream:
        return stream.read().decode("utf-8")


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a regular file in hexadecimal; errors as for `opened`."""
    with opened(path) as stream:
        return hashlib.sha256(stream.read()).hexdigest()


def temporary_beside(path: Path) -> Path:
    """Return a name beside a file of a run that cannot be guessed, to be created exclusively (mode "x").

    The folder is made if it is missing. LinkError as for `refuse_links`.
    """
    refuse_links(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def write_atomic(path: Path, text: str) -> None:
    """Write under a temporary name and rename, so that a reader sees the old file or the new one, never a part of it.

    Half of a surrogate pair, from a name that is not UTF-8, is written as \\udcff, which JSON reads back.
    DiskFullError if the disk is full; then no part of the new file is left. LinkError as for `refuse_links`.
    """
    with needs_room(path):
        temporary = temporary_beside(path)
        try:
            with temporary.open("x", encoding="utf-8", errors="backslashreplace") as stream:
                stream.write(text)
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def write_json(path: Path, value: Any, *, indent: int | None = None) -> None:
    write_atomic(path, dumps(value, indent=indent) + "\n")


def write_new(path: Path, value: Any) -> bool:
    """Create a JSON file; False if it exists. Of several writers exactly one gets True.

    A hard link never replaces a file, on any node of a shared file system, and the file appears complete; where hard
    links are not supported the file is created exclusively. LinkError as for `refuse_links`.
    """
    text = dumps(value) + "\n"
    with needs_room(path):
        temporary = temporary_beside(path)
        try:
            with temporary.open("x", encoding="utf-8") as stream:
                stream.write(text)
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                raise
            return _create(path, text)
        finally:
            temporary.unlink(missing_ok=True)
    return True


def _create(path: Path, text: str) -> bool:
    with suppress(FileExistsError), path.open("x", encoding="utf-8") as stream:
        stream.write(text)
        return True
    return False


def record_name(rank: int) -> str:
    """Return the name of a rank's record in its attempt."""
    return f"rank-{rank:05d}.json"


@dataclass(frozen=True)
class AttemptDir:
    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.json"

    @property
    def result(self) -> Path:
        return self.root / "result.json"

    @property
    def interrupted(self) -> Path:
        """Marks an attempt that was interrupted when its launcher ended: the next attempt does not count as a retry."""
        return self.root / "interrupted"

    @property
    def resumed(self) -> AttemptDir:
        """The part of the attempt that continues from its checkpoint."""
        return AttemptDir(self.root / _RESUMED)

    @property
    def _whole(self) -> AttemptDir:
        return AttemptDir(self.root.parent) if self.root.name == _RESUMED else self

    @property
    def checkpoint(self) -> Path:
        """The folder that one part of the attempt saves to and the other loads from."""
        return self._whole.root / "checkpoint"

    @property
    def pretrained(self) -> Path:
        """The folder of the weights on which both parts of the attempt put adapters."""
        return self._whole.root / "pretrained"

    @property
    def number(self) -> int:
        """From 1; 0 for a folder that is no attempt."""
        return int(number) if (number := self._whole.root.name.removeprefix("attempt-")).isdecimal() else 0

    @property
    def run(self) -> RunDir:
        """The run directory that it is in."""
        above = self._whole.root.absolute().parents
        return RunDir(above[2] if above[1].name == _CELLS else self._whole.root)

    @property
    def run_id(self) -> str:
        """Of the run that it belongs to; empty outside a run directory.

        plan.json begins with it, and ranks read no more of the file, which may be megabytes.
        """
        if not self.number or not (plan := self.run.plan).exists():
            return ""
        with opened(plan) as stream:
            found = re.match(rb'\s*\{\s*"run_id": "([^"\\]+)"', stream.read(_RUN_ID_BYTES))
        return found.group(1).decode() if found else ""

    def record(self, rank: int) -> Path:
        return self.root / "ranks" / record_name(rank)

    def operations(self, rank: int) -> Path:
        """Return the operations of one layer on a rank, in a run of `harness explain --operations`."""
        return self.root / "operations" / record_name(rank)

    @property
    def oracle_operations(self) -> Path:
        """The same of the oracle."""
        return self.root / "operations" / "oracle.json"

    @property
    def oracle(self) -> Path:
        """What the oracle computed of the cell; exists once the ranks of the attempt have ended."""
        return self.root / "oracle.json"

    def log(self, rank: int) -> Path:
        return self.root / "log" / f"rank-{rank:05d}.log"


@dataclass(frozen=True)
class RunDir:
    root: Path

    def __post_init__(self) -> None:
        """Let no file of the run be reached through a link, see `refuse_links`."""
        if (root := os.path.abspath(self.root)) not in _ROOTS:  # noqa: PTH100
            _ROOTS.add(root)
            _PLAIN.clear()  # which a run that holds others decides anew

    def __reduce__(self) -> tuple[type[RunDir], tuple[Path]]:
        """Have a process that is given the run name it too."""
        return RunDir, (self.root,)

    @property
    def events(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def plan(self) -> Path:
        return self.root / "plan.json"

    @property
    def cluster(self) -> Path:
        """The cluster profile; exists only for a run on Slurm."""
        return self.root / "cluster.json"

    @property
    def matrix(self) -> Path:
        return self.root / "matrix.resolved.yaml"

    @property
    def plugins(self) -> Path:
        """The plug-ins that agents load; exists only where there are any."""
        return self.root / "plugins.json"

    @property
    def node_code(self) -> Path:
        """The run's copy of the harness code that ranks need, for stacks in which it is not installed."""
        return self.root / "node-code"

    def submission(self, allocation: str, suffix: str = ".json") -> Path:
        return self.root / "submissions" / f"{path_component(allocation)}{suffix}"

    @property
    def cancelled(self) -> Path:
        """Exists once the run is cancelled: nothing more is submitted, and no agent starts."""
        return self.root / "cancelled.json"

    def claim(self, allocation: str, number: int) -> Path:
        """Return the claim on an allocation by its job start `number`, from 1."""
        return self.root / "agents" / f"{path_component(allocation)}.claim-{number}.json"

    def refused(self, allocation: str, start: JobStart) -> Path:
        """Return the file in which a refused job start writes the reason."""
        return self.root / "agents" / f"{path_component(allocation)}.refused-{start.job}-{start.restart}.json"

    def agent_claim(self, order: str, node: int) -> Path:
        """Return the file that the agent of another node than node 0 creates first: a second agent finds it and
        ends.
        """
        return self.root / "agents" / f"{path_component(order)}.{node}.agent.json"

    def second_agent(self, order: str, node: int) -> Path:
        """Return the file in which a second agent of a node says that it ended."""
        return self.root / "agents" / f"{path_component(order)}.{node}.second.json"

    def claims(self, allocation: str) -> list[Claim]:
        """Return the claims on an allocation, oldest first."""
        found: list[Claim] = []
        while (claim := self.read_claim(allocation, len(found) + 1)) is not None:
            found.append(claim)
        return found

    def read_claim(self, allocation: str, number: int) -> Claim | None:
        """Return a claim; None while it is missing or incomplete."""
        with suppress(FileNotFoundError, TypeError, ValueError):
            return from_jsonable(Claim, loads(text_of(self.claim(allocation, number))))
        return None

    def newest_order(self, allocation: str) -> str:
        """Name of the work order of an allocation's newest start; until the second start the allocation's own name."""
        orders = [claim.order for claim in self.claims(allocation)]
        return next((order for order in reversed(orders) if self.submission(order).exists()), allocation)

    def new_attempt(self, cell: str, after: int) -> int:
        """Create the folder of a cell's next attempt and return its number, which no other process gets."""
        number = after + 1
        while True:
            with suppress(FileExistsError):
                self.attempt(cell, number).root.mkdir(parents=True)
                return number
            number += 1

    def agent_journal(self, allocation: str, node: int) -> Path:
        return self.root / "agents" / f"{path_component(allocation)}.{node}.jsonl"

    def interleaving(self, pair: str) -> Path:
        """Folder through which two interleaved cells take turns; a subfolder per attempt."""
        return self.root / "interleaving" / path_component(pair)

    def oracle(self, key: str) -> Path:
        """Return what the oracle computed for all cells of this key; they have copies."""
        return self.root / "oracles" / f"{path_component(key)}.json"

    def cell(self, cell: str) -> Path:
        """Return the folder of a cell's attempts."""
        return self.root / _CELLS / path_component(cell)

    def cells(self) -> list[Path]:
        """Return the folders of cells that exist."""
        return list((self.root / _CELLS).glob("*"))

    def attempt(self, cell: str, attempt: int = 1) -> AttemptDir:
        return AttemptDir(self.cell(cell) / f"attempt-{attempt}")

    def report(self, name: str) -> Path:
        """One of report.json, junit.xml, report.md, report.html, noise.json if noise was measured, baseline.json."""
        return self.root / name
