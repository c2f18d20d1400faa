"""Relative links from a page to the files of a run, only to those that exist."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from harness.core.errors import InputError
from harness.core.run.run_dir import AttemptDir, RunDir
from harness.infra.inputs.text_file import exists
from harness.judge.report.model import ReportCell


@dataclass(frozen=True, kw_only=True)
class Link:
    text: str
    href: str  # relative to the page, with "/" and percent-encoding: valid in a file system and on a web server


def link_from(folder: Path, text: str, target: Path) -> Link | None:
    """A relative link from a page in `folder` to a file anywhere; None if there is no such file."""
    if not exists(target):
        return None
    return Link(text=text, href=quote(Path(os.path.relpath(target, folder)).as_posix()))


@dataclass(frozen=True)
class RunFiles:
    """Links from a page in a run directory; none without a directory, as for a report that is rendered alone."""

    root: Path | None = None
    up: str = ""  # from the page to the run directory

    def link(self, text: str, path: str) -> Link | None:
        """The link to a file of the run, or of the folder above it; None if the path leads elsewhere, or to nothing."""
        plain = PurePosixPath(path)
        outside = plain.is_absolute() or ".." in plain.parts[1:]
        if self.root is None or outside or not exists(self.root / path):
            return None
        return Link(text=text, href=self.up + quote(path))

    def of_cell(self, cell: ReportCell) -> list[Link]:
        """Log and record of one rank, see `_rank_of`, and the other files of the newest attempt."""
        if self.root is None:
            return []
        try:
            attempt = AttemptDir(RunDir(self.root).attempt(cell.id, cell.attempts).root.relative_to(self.root))
        except InputError:  # an id that no file can have
            return []
        rank = _rank_of(cell)
        folder = attempt.root.as_posix()
        found = [
            self.link(f"log of rank {rank}", cell.failure.log if cell.failure else attempt.log(rank).as_posix()),
            self.link("all logs", f"{folder}/log/"),
            self.link(f"record of rank {rank}", attempt.record(rank).as_posix()),
            self.link("all records", f"{folder}/ranks/"),
            self.link("configuration", attempt.config.as_posix()),
            self.link("result", attempt.result.as_posix()),
            self.link("folder of the cell", f"{attempt.root.parent.as_posix()}/"),
        ]
        return [link for link in found if link]

    def of_run(self) -> list[Link]:
        """The run directory and its files, its comparison, the history and the index of runs."""
        names = {
            "run directory": "./",
            "report.json": "report.json",
            "matrix with all values": "matrix.resolved.yaml",
            "events": "events.jsonl",
            "comparison with an earlier run": "compare.html",
            "history": "../history.html",
            "all runs": "../index.html",
        }
        return [link for text, path in names.items() if (link := self.link(text, path))]

    def report_of(self, run_id: str) -> Link | None:
        """The report of another run beside this one."""
        plain = PurePosixPath(run_id).name == run_id
        return self.link(run_id, f"../{run_id}/report.html") if run_id and plain else None


def _rank_of(cell: ReportCell) -> int:
    """The rank whose files explain the cell: the one that failed first, else that of the first finding, else rank 0."""
    if cell.failure:
        return cell.failure.rank
    found = cell.findings[0].where.get("rank") if cell.findings else None
    return found if isinstance(found, int) else 0
