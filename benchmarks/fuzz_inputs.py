"""Mutated inputs through the command line: `python benchmarks/fuzz_inputs.py [--count 100000] [--seed 1] [--run DIR]`.

Matrices, cluster profiles, job templates, files of lengths, and every file, log and history of a finished run are
mutated (fuzz_mutations.py), values of options and names of files are replaced (fuzz_runs.py), and passed to the command
line's main function. Each input must end with an exit code and a message: no traceback, no "internal error", no secret,
in a CI job no command of the CI system, at most 5 s of processor time and 500 MB. Nothing is launched. `--run`: a
finished run; without it a small one is trained.

The same seed and number give the same input: `--seed S --only N` repeats one and shows its output; `--keep` keeps its
files. Exit code 1 when an input broke a rule.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(Path(__file__).parent))

from fuzz_corpus import MATRIX, Corpus, corpus_of, prepare  # noqa: E402 - beside this file
from fuzz_mutations import SECRET  # noqa: E402

SECONDS, BYTES = 5.0, 500 * 2**20
BATCH = 50  # inputs per forked process
SIGNS = ("internal error", "cannot continue", "Traceback (most recent call last)")
CI = "GITHUB_ACTIONS"
CI_COMMAND = re.compile(r"^\s*::|##(?:vso)?\[|section_(?:start|end):\d", re.MULTILINE)


@dataclass(frozen=True)
class Result:
    """The result of one input. `broken`: the rule that it broke; empty for none."""

    number: int
    what: str  # e.g. "matrix verify"
    code: int
    seconds: float
    broken: str = ""


class _TooSlowError(BaseException):
    """An input exceeded its processor time. Not an Exception, so that the harness does not catch it."""


def train(folder: Path) -> tuple[Path, Path]:
    """Train a small run; returns its folder and its history."""
    (folder / "fuzz.yaml").write_text(MATRIX)
    command = [sys.executable, "-m", "harness", "run", "fuzz.yaml", "--run-dir", "runs"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    [run] = (folder / "runs").glob("fuzz-*")
    return run, folder / "runs" / "history.sqlite"


def run_one(corpus: Corpus, number: int, seed: int, *, keep: bool = False, echo: bool = False) -> Result:
    """Run and judge one input."""
    folder = Path(tempfile.mkdtemp(prefix=f"input-{number}-"))
    written = io.BytesIO()
    output = io.TextIOWrapper(written, encoding="utf-8", errors="backslashreplace")
    words: list[str] = []
    what, code, broken = "?", -1, ""
    begin = time.process_time()
    try:
        what, words = prepare(corpus, number, seed, folder)
        os.environ[CI] = "true" if number % 3 == 0 else ""
        begin = time.process_time()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), _timed(2 * SECONDS):
            code, broken = _called(words)
    except _TooSlowError:
        broken = f"more than {2 * SECONDS:g} s of processor time"
    seconds = time.process_time() - begin
    output.flush()
    text = written.getvalue().decode()
    if echo:
        suffix = f", {broken}" if broken else ""
        print(f"{what}: harness {' '.join(words)}\n{text}exit code {code}, {seconds:.2f} s{suffix}")
    broken = broken or _leak(text, words) or _verdict(code, seconds, text, folder)
    if keep:
        print(f"files: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return Result(number, what, code, seconds, broken)


def _called(words: list[str]) -> tuple[int, str]:
    from harness.cli.cli import main as command_line

    try:
        return command_line(words), ""
    except SystemExit as error:  # of argparse
        return error.code if isinstance(error.code, int) else 1, ""
    except Exception as error:
        return -1, f"{type(error).__name__} left the command line: {_innermost(error)}"


def _verdict(code: int, seconds: float, text: str, folder: Path) -> str:
    """The rule that an input broke; empty for none."""
    sign = next((sign for sign in SIGNS if sign in text), "")
    if sign:
        line = next(line for line in text.splitlines() if sign in line)
        return f"{sign}: {line.replace(str(folder), 'FOLDER')[:300]}"
    if code not in (0, 1, 2, 3):
        return f"exit code {code}"
    if code in (2, 3) and not text.strip():
        return f"exit code {code} without a message"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if peak > BYTES:
        return f"{peak / 1e6:.0f} MB of memory"
    return f"{seconds:.1f} s of processor time" if seconds > SECONDS else ""


def _leak(text: str, words: list[str]) -> str:
    """What was printed that must not be; empty for nothing. `report` has commands for the CI system to execute."""
    if SECRET in text:
        return "a secret is printed"
    command = CI_COMMAND.search(text) if os.environ[CI] and words[0] != "report" else None
    return f"a command of a CI system is printed: {text[command.start() :][:80]!r}" if command else ""


def _innermost(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}: {error}"[:300]


@contextlib.contextmanager
def _timed(seconds: float) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise _TooSlowError

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def batch(corpus: Corpus, numbers: range, seed: int) -> list[Result]:
    """Run inputs in a new process; an input that ends the process, or uses too much memory, breaks a rule."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        try:
            _run_all(corpus, numbers, seed, writing)
        except BaseException:  # a defect of the fuzzer; the child must not clean up what the parent still needs
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        found = [Result(**json.loads(line)) for line in stream]
    _, status = os.waitpid(child, 0)
    if len(found) < len(numbers):
        if status:
            found.append(Result(numbers[len(found)], "?", -1, 0.0, f"the process ended with status {status}"))
        found += batch(corpus, numbers[len(found) :], seed) if len(found) < len(numbers) else []
    return found


def _run_all(corpus: Corpus, numbers: range, seed: int, writing: int) -> None:
    """Write a line of JSON per input to a pipe."""
    with os.fdopen(writing, "w") as stream:
        for number in numbers:
            result = run_one(corpus, number, seed)
            stream.write(json.dumps(asdict(result)) + "\n")
            stream.flush()
            if "memory" in result.broken:
                return  # the peak of a process never falls: the other inputs need a new process


def warm(corpus: Corpus) -> None:
    """Run every command on valid input, so that the forked batches share imported modules and compiled patterns."""
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    shutil.copytree(corpus.run, folder / "runs" / "run")
    (folder / "matrix.yaml").write_text(f"{MATRIX}\nselect: covering\n")
    (folder / "fuzz.yaml").write_text("name: fuzz\nkind: slurm\nranks_per_node: 8\n")
    run, matrix = str(folder / "runs" / "run"), str(folder / "matrix.yaml")
    commands = [["verify", matrix], ["plan", matrix], ["run", matrix, "--dry-run", "--run-dir", str(folder / "dry")]]
    commands += [[*commands[2], "--cluster", str(folder / "fuzz.yaml")], ["history", "html"], ["history", "export"]]
    commands += [
        ["report", run],
        ["status", run],
        ["logs", run],
        ["compare", run, run],
        ["compare", run, run, "--json"],
    ]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for words in commands:
            _called(words)
    shutil.rmtree(folder)


def isolated(folder: Path) -> None:
    """Set the environment so that this machine's caches and histories are not used and no Slurm client is found."""
    names = {
        "XDG_CACHE_HOME": "cache",
        "HARNESS_STACKS": "stacks",
        "HARNESS_HISTORY": "history.sqlite",
        "TMPDIR": "inputs",
    }
    os.environ.update({name: str(folder / path) for name, path in names.items()})
    (folder / "inputs").mkdir()
    tempfile.tempdir = str(folder / "inputs")
    os.environ["PATH"] = "/usr/bin:/bin"
    os.environ["COLUMNS"] = "120"
    os.environ["GIT_ALLOW_PROTOCOL"] = "file"  # a host that does not answer would be waited for
    os.environ["FUZZ_PASSWORD"] = SECRET
    for name in ("HARNESS_CLUSTERS", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITLAB_CI", "CI"):
        os.environ.pop(name, None)


def fuzz(corpus: Corpus, count: int, seed: int, *, start: int = 0) -> list[Result]:
    """Run the inputs and print how they ended; returns those that broke a rule."""
    codes, slowest, broken = collections.Counter[str](), Result(0, "", 0, 0.0), []
    for first in range(start, start + count, BATCH):
        for result in batch(corpus, range(first, min(first + BATCH, start + count)), seed):
            codes[f"{result.what.split()[-1]}: exit code {result.code}"] += 1
            slowest = max(slowest, result, key=lambda item: item.seconds)
            if result.broken:
                broken.append(result)
                print(f"seed {seed} input {result.number} ({result.what}): {result.broken}", flush=True)
        if first // BATCH % 20 == 19:
            print(f"{first + BATCH - start:,} inputs, {len(broken)} broke a rule", file=sys.stderr, flush=True)
    for name, number in sorted(codes.items()):
        print(f"{number:8,}  {name}")
    print(
        f"{count:,} inputs of seed {seed}: {len(broken)} broke a rule; slowest {slowest.seconds:.2f} s ({slowest.what})"
    )
    return broken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", type=int, default=0, help="number of the first input (0)")
    parser.add_argument("--run", type=Path, metavar="DIR", help="a finished run; absent: a small one is trained")
    parser.add_argument("--only", type=int, metavar="N", help="run one input and show its output")
    parser.add_argument("--keep", action="store_true", help="with --only: keep its files")
    arguments = parser.parse_args()
    temporary = tempfile.mkdtemp(prefix="fuzz-inputs-")
    try:
        run, history = (arguments.run.resolve(), None) if arguments.run else train(Path(temporary))
        if history is None and (run.parent / "history.sqlite").is_file():
            history = run.parent / "history.sqlite"
        isolated(Path(temporary))
        if arguments.run:  # each input has hard links to the run's files, which need the same file system
            run = Path(shutil.copytree(run, Path(temporary) / "source" / run.name))
        corpus = corpus_of(run, history)
        if arguments.only is not None:
            return 1 if run_one(corpus, arguments.only, arguments.seed, keep=arguments.keep, echo=True).broken else 0
        warm(corpus)
        return 1 if fuzz(corpus, arguments.count, arguments.seed, start=arguments.start) else 0
    finally:
        if not arguments.keep:
            shutil.rmtree(temporary, ignore_errors=True)


if __name__ == "__main__":
    raise SystemExit(main())
