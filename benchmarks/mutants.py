"""Mutation testing with mutmut: finds changes of the code that decides verdicts which no unit test detects.

    python benchmarks/mutants.py rules                  # a group of GROUPS, with its tests
    python benchmarks/mutants.py checks --only 'step_*' # modules of the group whose names match

Each mutant is one small change; it survives when the module's tests pass with it. A survivor needs a test that kills
it, or a reason in tests/mutants_accepted.toml. Changes of words in a message are counted separately: tests check the
numbers and names in a message, not its wording. Prints a table of modules and every survivor without a reason, which
makes the exit code 1. mutmut runs in a copy of the tree, by `uv run --with`; minutes to an hour on two cores.
"""

from __future__ import annotations

import argparse
import fnmatch
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tokenize
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import tomllib

MUTMUT = "mutmut==3.8.1"
ROOT = Path(__file__).resolve().parent.parent
ACCEPTED = ROOT / "tests/mutants_accepted.toml"
# Group -> modules, and tests in addition to the test file of each module.
GROUPS: dict[str, tuple[list[str], list[str]]] = {
    "rules": (
        [
            "harness/matrix/rules/*.py",
            "harness/features/*/rules.py",
            "harness/upstreams/*/rules.py",
            "harness/upstreams/*/spec.py",
        ],
        [str(path.relative_to(ROOT)) for path in ROOT.glob("tests/matrix/rules/test_*.py")]
        + ["tests/core/packing/test_arithmetic.py"],
    ),
    "packing": (["harness/core/packing/*.py", "harness/core/cell/layout.py"], []),
    "checks": (
        ["harness/judge/checks/*.py", "harness/features/*/checks.py"],
        [str(path.relative_to(ROOT)) for path in ROOT.glob("tests/judge/checks/*/test_*.py")],
    ),
    "oracle": (
        ["harness/oracle/*.py"],
        [f"tests/oracle/test_{name}.py" for name in ("parts", "hugging_face", "train", "vision")],
    ),
    "verdict": (
        ["harness/judge/verdict.py", "harness/core/outcomes.py"],
        [f"tests/judge/test_{name}.py" for name in ("verdict_whole", "verdict_resumed", "earlier_attempts")],
    ),
    "slurm": (
        [f"harness/launch/slurm/{name}.py" for name in ("follow", "client")],
        [
            f"tests/launch/slurm/test_{name}.py"
            for name in ("client_commands", "closing", "expected_start", "follower", "follower_questions", "retry")
        ],
    ),
}
_MIRRORS = {"tests/core/packing/test_options.py": "tests/core/packing/test_arithmetic.py"}
_CONFIG = """
[tool.mutmut]
source_paths = ["harness"]
also_copy = ["harness", "sbatch_templates", "matrices", "docs", "README.md", "ARCHITECTURE.md"]
pytest_add_cli_args = ["-p", "no:cacheprovider", "-W", "ignore"]
use_git_change_detection = false
track_dependencies = false
"""
_SURVIVORS = """
import json
from pathlib import Path
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.stats import status_by_exit_code
for meta in sorted(Path("mutants").rglob("*.meta")):
    path = meta.relative_to("mutants").with_suffix("")
    for name, code in json.loads(meta.read_text())["exit_code_by_key"].items():
        status = status_by_exit_code[code]
        print(json.dumps([name, status, "" if status == "killed" else get_diff_for_mutant(name, path=path)]))
"""


class Mutant(NamedTuple):
    """A change of one module. `status` of mutmut; `removed` and `added`: stripped lines joined by a space."""

    module: str
    name: str
    status: str
    removed: str = ""
    added: str = ""

    @property
    def wording(self) -> bool:
        """Whether only words of a string change, not the names between its braces."""
        return bool(self.removed) and _plain(self.removed) == _plain(self.added)


def _plain(code: str) -> list[str]:
    """The tokens of a line, without the words of its longer strings."""
    try:
        tokens = [token.string for token in tokenize.generate_tokens(io.StringIO(code).readline)]
    except (tokenize.TokenError, IndentationError, SyntaxError):
        tokens = re.findall(r'f?"[^"]*"|\S+', code)
    return [re.sub(r"(?<=})[^{}]*|^f?\"[^{}]*", "", item) if item.count(" ") > 1 else item for item in tokens]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("group", choices=GROUPS)
    parser.add_argument("--only", default="*", metavar="GLOB", help="only modules of the group whose name matches")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="show every survivor, including those with a reason")
    arguments = parser.parse_args()
    modules, tests = _chosen(arguments.group, arguments.only)
    if not modules:
        parser.error(f"no module of {arguments.group} is named {arguments.only}")
    with tempfile.TemporaryDirectory() as folder:
        _copy(Path(folder), modules, tests)
        _run(Path(folder), "mutmut", "run", "--max-children", str(arguments.workers))
        found = _results(Path(folder))
    return _report(found, show_all=arguments.list)


def _chosen(group: str, only: str) -> tuple[list[str], list[str]]:
    patterns, tests = GROUPS[group]
    files = sorted(file for pattern in patterns for file in ROOT.glob(pattern) if fnmatch.fnmatch(file.stem, only))
    modules = [str(file.relative_to(ROOT)) for file in files if file.stem != "__init__"]
    mirrors = [f"tests/{Path(name).parent.relative_to('harness')}/test_{Path(name).stem}.py" for name in modules]
    mirrors = [_MIRRORS.get(name, name) for name in mirrors]
    existing = [name for name in dict.fromkeys([*mirrors, *tests]) if (ROOT / name).exists()]
    return modules, existing


def _copy(folder: Path, modules: list[str], tests: list[str]) -> None:
    """Copy the committed tree, and add mutmut's section for these modules."""
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        packed.extractall(folder, filter="data")
    project = folder / "pyproject.toml"
    chosen = f"only_mutate = {modules!r}\npytest_add_cli_args_test_selection = {tests!r}\n"
    project.write_text(project.read_text() + _CONFIG + chosen.replace("'", '"'))


def _run(folder: Path, *words: str) -> str:
    """Output of a command that runs in `folder` with the packages of .venv and mutmut."""
    python = ROOT / ".venv/bin/python"
    command = [str(python.parent / "uv"), "run", "--quiet", "--no-project", "--python", str(python), "--with", MUTMUT]
    # Threads of OpenMP that torch started before mutmut forks hang its children, which mutmut counts as killed.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *words], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{words[0]} failed: {done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def _results(folder: Path) -> list[Mutant]:
    mutants = []
    for line in _run(folder, "python", "-c", _SURVIVORS).splitlines():
        name, status, diff = json.loads(line)
        change = [line for line in diff.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
        removed, added = (" ".join(line[1:].strip() for line in change if line[0] == sign) for sign in "-+")
        module, _, mutant = name.rpartition(".")
        mutants.append(Mutant(module, mutant, status, removed, added))
    return mutants


def _report(found: list[Mutant], *, show_all: bool) -> int:
    accepted = tomllib.loads(ACCEPTED.read_text())["mutant"]
    reasons = {(item["module"], item["from"], item.get("to")): item["reason"] for item in accepted}
    counts: dict[str, Counter[str]] = {}
    missing = []
    for mutant in found:
        kind = "killed" if mutant.status in ("killed", "timeout") else "unexplained"
        if kind == "unexplained" and mutant.wording:
            kind = "wording"
        reason = reasons.get((mutant.module, mutant.removed, mutant.added))
        reason = reason or reasons.get((mutant.module, mutant.removed, None))
        if kind == "unexplained" and reason:
            kind = "accepted"
        counts.setdefault(mutant.module, Counter())[kind] += 1
        if kind == "unexplained" or (show_all and kind != "killed"):
            missing.append(f"{kind}: {mutant.module} {mutant.name} ({mutant.status})\n{_change(mutant)}")
    print("\n".join(missing))
    kinds = ("killed", "wording", "accepted", "unexplained")
    print(f"{'module':52}{'mutants':>9}" + "".join(f"{kind:>13}" for kind in kinds))
    for module, count in sorted(counts.items()):
        print(f"{module:52}{count.total():>9}" + "".join(f"{count[kind]:>13}" for kind in kinds))
    return int(any(count["unexplained"] for count in counts.values()))


def _change(mutant: Mutant) -> str:
    return "\n".join([f"  - {mutant.removed}", f"  + {mutant.added}"])


if __name__ == "__main__":
    sys.exit(main())
