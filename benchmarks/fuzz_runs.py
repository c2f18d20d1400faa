"""Inputs of commands on finished runs: mutated files, logs and histories, odd options and odd names of files."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from fuzz_mutations import NUMBERS, TEXTS, mutate

COMMANDS = (("report", "--no-history"), ("status",), ("logs",), ("compare", "OTHER"), ("compare", "OTHER", "--json"))
LISTINGS = ("runs", "cells", "outcomes", "findings", "metrics")
ON_HISTORY = (
    (),
    *((name,) for name in LISTINGS),
    *(("export", name, "--format", form) for name in LISTINGS for form in ("csv", "json")),
    *(("html",),) * 4,
    ("prune", "--older-than", "1d", "--dry-run"),
    ("prune", "--keep-last", "1"),
    ("import", "RUN"),
)
SQL_VALUES = (
    *("x'fffe00'", "x''", "cast(x'ff41' as text)", "'abc'", "''", "NULL", "0", "-1", "5", "1.5", "9e999", "-9e999"),
    *("9223372036854775807", "'0001-01-01T00:00:00Z'", "'9999-12-31T23:59:59Z'", "'2026-13-01T00:00:00Z'", "'FAIL'"),
    *("char(0)", "'a' || char(10) || '::stop-commands::x'", "'##[error]x'", "hex(zeroblob(50000))", "'=1+1'"),
)
STATEMENTS = (
    *("DELETE FROM {table}", 'UPDATE OR IGNORE {table} SET "{column}" = {value} WHERE "{column}" > 1'),
    *('ALTER TABLE {table} DROP COLUMN "{column}"', 'ALTER TABLE {table} RENAME COLUMN "{column}" TO x'),
    *("DROP TABLE {table}", "PRAGMA user_version = 99", "DROP INDEX cells_series", "CREATE VIEW x AS SELECT 1"),
)
MOMENTS = (
    *("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:00-14:00", "1970-01-01", "99999w", "0h", "1d", "9999-12-31"),
    *("2026-01-01T00:00:00.123456+23:59", "20260801", "2026-W01-1", "-1d", "2026-08-01 06:00"),
)
OPTIONS = {
    "history": ("--since", "--until", "--limit", "--matrix", "--cell", "--stack", "--outcome"),
    "html": ("--days", "--since", "--until", "--cell"),
    "prune": ("--older-than", "--keep-last"),
    "compare": ("--slower-than", "--baseline"),
    "logs": ("--rank",),
    "run": ("--max-gpu-hours", "--only", "--cluster", "--notify"),
    "shrink": ("--rounds", "--check"),
}


def copied(source: Path, target: Path) -> Path:
    """A copy of a run, of links to its files: the harness replaces files, and so does `replaced`."""
    shutil.copytree(source, target, copy_function=os.link)
    return target


def replaced(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def of_run(source: Path, chance: random.Random, folder: Path) -> tuple[str, list[str]]:
    """Mutate one file of a copy of the run."""
    run = copied(source, folder / "runs" / "mutated")
    files = [path for path in sorted(run.rglob("*")) if path.is_file() and path.suffix not in (".html", ".log")]
    chosen = chance.choice(files)
    content = chosen.read_bytes()
    is_json = chosen.suffix in (".json", ".jsonl", ".progress", ".heartbeat")
    replaced(chosen, mutate(content, [path.read_bytes() for path in files[:5]], chance, is_json=is_json))
    verb, *more = chance.choice(COMMANDS)
    if chosen.name == "report.json" and chance.random() < 0.8:
        verb, more = "compare", chance.choice((["OTHER"], ["OTHER", "--json"], ["--baseline", "OTHER"]))
    words = [verb, str(run), *more]
    if "OTHER" in words:
        other = copied(source, folder / "runs" / "other")
        name = other / "report.json" if "--baseline" in words else other
        words = [str(name) if word == "OTHER" else word for word in words]
    kind = "record" if chosen.suffix == ".json" and "rank" in chosen.name else chosen.name
    return f"{kind} {verb}", words


def of_log(source: Path, chance: random.Random, folder: Path) -> tuple[str, list[str]]:
    """Mutate a log, or put something else in its place."""
    run = copied(source, folder / "runs" / "mutated")
    logs = sorted(run.rglob("*.log")) or [run / "submissions" / "x.log"]
    chosen = chance.choice(logs)
    content = chosen.read_bytes() if chosen.exists() else b""
    line = chance.choice(TEXTS).encode(errors="surrogatepass") + chance.choice((b"\n", b" ", b""))
    made = mutate(content + line, [content], chance, is_json=False)
    made = made * chance.choice((1, 1, 3, max(10**6 // (len(made) + 1), 1)))
    chosen.parent.mkdir(parents=True, exist_ok=True)
    replaced(chosen, b"x" * chance.choice((0, 0, 57340, 65530, 131065, 16380)) + made)
    what = chance.random()
    other = chosen.with_name(chance.choice(("rank-abc.log", "rank-\u00b23.log", "rank-00007.log", "x.out", "x.err")))
    if what < 0.1:
        other.symlink_to(chance.choice(("nowhere", "/dev/zero", ".", other.name)))
    elif what < 0.2:
        other.mkdir(exist_ok=True)
    elif what < 0.3:
        os.mkfifo(other)
    cell = chosen.parents[2].name if "cells" in chosen.parts else "*"
    more = chance.choice(([], [cell], [cell, "--rank", "0"], [cell, "--rank", "1"], ["*", "--rank", "0"]))
    return f"log {'rank' if '--rank' in more else 'tail'}", ["logs", str(run), *more]


def of_history(source: Path, history: Path, chance: random.Random, folder: Path) -> tuple[str, list[str]]:
    """Mutate the bytes of the history, or its values."""
    run, file = copied(source, folder / "runs" / "run"), folder / "history.sqlite"
    content = history.read_bytes()
    how = chance.random()
    file.write_bytes(
        b"" if how < 0.03 else content if how > 0.25 else mutate(content, [content], chance, is_json=False)
    )
    if how > 0.25:
        _change_values(file, chance)
    if chance.random() < 0.1:
        return "history report", ["report", str(run), "--history", str(file)]
    words = [str(run) if word == "RUN" else word for word in chance.choice(ON_HISTORY)]
    return f"history {words[0] if words else 'runs'}", ["history", *words, "--history", str(file)]


def _change_values(file: Path, chance: random.Random) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for _ in range(chance.choice((1, 1, 2, 4))):
            table = chance.choice(sorted(tables))
            column = chance.choice([str(row[1]) for row in connection.execute(f"PRAGMA table_info ({table})")] or ["x"])
            form = 'UPDATE OR IGNORE {table} SET "{column}" = {value}'
            form = chance.choice(STATEMENTS) if chance.random() < 0.15 else form
            with suppress(sqlite3.Error):
                connection.execute(form.format(table=table, column=column, value=chance.choice(SQL_VALUES)))


def of_options(source: Path, history: Path | None, matrix: Path, chance: random.Random, folder: Path) -> list[str]:
    """A valid command with one or two odd values of its options, or with the odd name of a file."""
    run = str(copied(source, folder / "runs" / "run"))
    kept = ["--history", str(history or folder / "none.sqlite")]
    value = chance.choice((*NUMBERS, *TEXTS, *MOMENTS, *MOMENTS)).replace("\0", "")
    if chance.random() < 0.4:
        return _named(value, run, matrix, chance, folder)
    name = chance.choice(tuple(OPTIONS))
    base = {
        "history": ["history", chance.choice(LISTINGS), *kept],
        "html": ["history", "html", *kept, "--output", str(folder / "page.html")],
        "prune": ["history", "prune", "--dry-run", *kept],
        "compare": ["compare", run, run],
        "logs": ["logs", run, "*"],
        "run": ["run", str(matrix), "--dry-run", "--run-dir", str(folder / "dry")],
        "shrink": ["shrink", run, "*"],
    }[name]
    words = [*base, f"{chance.choice(OPTIONS[name])}={value}"]
    more = chance.choice(MOMENTS + NUMBERS)
    return [*words, f"{chance.choice(OPTIONS[name])}={more}"] if chance.random() < 0.3 else words


def _named(name: str, run: str, matrix: Path, chance: random.Random, folder: Path) -> list[str]:
    """A command that reads, or writes below the folder, a file of this name."""
    below = str(folder / name.replace("/", "_").replace("..", "_"))
    form = chance.choice(("csv", "json"))
    choices = (
        *(["verify", "--", name], ["plan", "--", name], ["status", "--", name], ["logs", "--", name]),
        *(
            ["plan", str(matrix), f"--cluster={name}"],
            ["compare", run, f"--baseline={name}"],
            ["logs", run, "--", name],
        ),
        *(
            ["status", "--", "x", f"--run-dir={name}"],
            ["history", f"--history={name}"],
            ["history", f"--run-dir={name}"],
        ),
        *(["history", "export", "--format", form, f"--output={below}"], ["history", "html", f"--output={below}"]),
        *(["history", "import", run, f"--history={below}"], ["run", str(matrix), "--dry-run", f"--run-dir={below}"]),
        *(["report", run, f"--history={below}"], ["shrink", run, "--", name], ["doctor", f"--cluster=./{name}"]),
        ["bisect", str(matrix), f"--repo={name}", "--good=a", "--bad=b", f"--run-dir={below}"],
    )
    return chance.choice(choices)
