"""`harness contracts`: asks in each stack of a matrix whether upstream keeps what it promises about packing.

Each suite of harness/contracts is run by pytest in the environment of the stack, which is made as for `harness run`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.core.errors import InputError, Problem
from harness.core.outcomes import EXIT_FAIL, EXIT_PASS, EXIT_UNDECIDED
from harness.core.run.records import RankRecord
from harness.core.run.run_dir import write_atomic
from harness.core.serialization import from_jsonable, loads
from harness.core.stack import DEFAULT, ReadyStack, Stack
from harness.core.text import counted, visible
from harness.infra import screen
from harness.infra.files import is_file, matrix_path
from harness.inputs.matrix_file import read_matrix
from harness.judge.import_check import import_problem
from harness.launch.stacks import build, interpreters
from harness.launch.stacks.node_code import agent_environment, copy_node_code
from harness.launch.stacks.prepare import prepare
from harness.matrix.load import Matrix, load
from harness.matrix.stacks.recipes import RECIPES, recipe_name
from harness.matrix.stacks.section import PYTHONS, EnvironmentRequest
from harness.reporting.console import say

SUITES = ("refusals", "upstream_tests")
LIMIT_S = 1800.0  # of a suite
_PYTEST = "pytest==9.2.0"  # for stacks that have none
_SHOWN = 600  # characters of what a suite printed
_MAX_NAMES = 3  # of tests that share a reason
_STATES = ("passed", "failed", "error", "known", "skipped")


@dataclass(frozen=True)
class Case:
    """One test of a suite, as JUnit XML has it."""

    name: str
    state: str  # of _STATES; known: a gap of upstream that a test expects, and fails without
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What a suite found in a stack. `problem`: why it proves nothing; `absent`: why the stack has nothing to run."""

    stack: str
    suite: str
    cases: Sequence[Case] = ()
    problem: str = ""
    absent: str = ""
    junit: ElementTree.Element | None = field(default=None, compare=False)

    def number(self, state: str) -> int:
        return sum(case.state == state for case in self.cases)

    @property
    def verdict(self) -> str:
        """PASS only if a test passed and none failed; known gaps do not count."""
        if self.number("failed"):
            return "FAIL"
        if self.problem or self.number("error"):
            return "ERROR"
        return "PASS" if self.number("passed") else "NOT_RUN"


def contracts(
    names: Sequence[str],
    *,
    only: Collection[str],
    suites: Collection[str],
    expression: str,
    junit: Path | None,
) -> int:
    """Run the suites in the stacks of matrices and recipes; print a table, and what did not pass; the exit code.

    `only`, `suites`: names of stacks and suites; empty: all.
    """
    if unknown := [suite for suite in suites if suite not in SUITES]:
        raise InputError(Problem(key="--suite", message="no such suite", found=unknown[0], allowed=", ".join(SUITES)))
    chosen_suites = [suite for suite in SUITES if not suites or suite in suites]
    ready = prepare(_chosen(names, only), say).values()
    found = [ran for stack in ready for ran in _run(stack, chosen_suites, expression)]
    if expression and not any(ran.cases or ran.problem for ran in found):
        raise InputError(Problem(key="-k", message="no test has a name that it chooses", found=expression))
    if junit is not None:
        write_atomic(junit, _merged(found))
    _print(found)
    return exit_code(found, expression)


def exit_code(found: Sequence[Ran], expression: str = "") -> int:
    """Return the exit code: every suite of every stack must pass, and nothing run proves nothing.

    `expression`: of -k. A suite of which it chooses no test is left out, if the stack has another one that passes.
    """
    passed = {ran.stack for ran in found if ran.verdict == "PASS"}
    left_out = [ran for ran in found if expression and ran.stack in passed and not (ran.cases or ran.problem)]
    verdicts = {ran.verdict for ran in found if ran not in left_out}
    if "FAIL" in verdicts:
        return EXIT_FAIL
    return EXIT_PASS if verdicts == {"PASS"} else EXIT_UNDECIDED


def _chosen(names: Sequence[str], only: Collection[str]) -> list[Stack]:
    """Return the stacks of the matrices, each once, and those of the recipes; without `only`, all."""
    stacks: dict[str, Stack] = {}
    for name in names:
        for stack in _stacks_of(name):
            if stacks.setdefault(stack.name, stack) != stack:
                hint = "run the matrices one by one"
                raise InputError(Problem(message=f"two matrices define a stack {stack.name}", file=name, hint=hint))
    if unknown := [name for name in only if name not in stacks]:
        raise InputError(Problem(key="--stack", message="no such stack", found=unknown[0], allowed=", ".join(stacks)))
    chosen = [stack for stack in stacks.values() if not only or stack.name in only]
    if inside := next((stack for stack in chosen if stack.container), None):
        raise InputError(f"stack {inside.name} is a container of a cluster, and contracts run on this machine")
    return chosen


def _stacks_of(name: str) -> list[Stack]:
    recipe = recipe_name(name)
    if recipe in RECIPES and not is_file(Path(name)):
        from harness.inputs.working_tree import working_tree

        values = {"name": "contracts", "matrix": {"packing": "unpacked", "stack": recipe}}
        matrix = load(values, file=name, lines={}, read_lengths=lambda _: (), tree_of=working_tree)
    else:
        matrix = read_matrix(matrix_path(name))
    used = _used(matrix)
    return [Stack(name=DEFAULT, interpreter=sys.executable) if one == DEFAULT else matrix.stacks[one] for one in used]


def _used(matrix: Matrix) -> list[str]:
    """Return the stacks that rows of the matrix name; the default one if there is a row that names none."""
    rows = [row.values for rows in matrix.axes.dimensions for row in rows] + [row.values for row in matrix.axes.include]
    named = list(dict.fromkeys(row["stack"] for row in rows if "stack" in row))
    return named or [DEFAULT]


def _run(stack: ReadyStack, suites: Iterable[str], expression: str) -> Iterator[Ran]:
    name = stack.requested.name
    for suite in suites:
        say(f"stack {name}: {suite}")
        if stack.error:
            yield Ran(stack=name, suite=suite, problem=f"the stack cannot be used: {stack.error}")
            continue
        with tempfile.TemporaryDirectory(prefix="harness-contracts-") as folder:
            yield _suite(stack, suite, expression, Path(folder))


def _suite(stack: ReadyStack, suite: str, expression: str, folder: Path) -> Ran:
    name, report = stack.requested.name, folder / "report.xml"
    argv = [stack.python, "-m", "harness.contracts", suite, str(report)]
    argv += ["-k", expression] if expression else []
    argv += [] if "pytest" in stack.packages else ["--pytest", _pytest_folder(stack)]
    env = interpreters.clean_environment(agent_environment(stack, copy_node_code(folder / "code")))
    try:
        done = subprocess.run(
            argv,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Ran(stack=name, suite=suite, problem=f"pytest did not end: {error}")
    said = " ".join(done.stdout[-_SHOWN:].split())
    if not report.is_file():
        if done.returncode == 0:
            return Ran(stack=name, suite=suite, absent=done.stdout.strip().splitlines()[-1])
        return Ran(stack=name, suite=suite, problem=f"pytest ended with {done.returncode} and without a report: {said}")
    junit, imports = ElementTree.parse(report).getroot(), report.with_suffix(".json")
    if imports.is_file():
        record = from_jsonable(RankRecord, loads(imports.read_text(encoding="utf-8")))
        problem = import_problem(stack, {0: record})
    else:
        problem = f"the process ended with {done.returncode} after its tests: {said}"
    return Ran(stack=name, suite=suite, cases=cases_of(junit), problem=problem, junit=junit)


def _pytest_folder(stack: ReadyStack) -> str:
    """Return where pytest is installed, apart from the stack, whose packages stay as they are."""
    version = ".".join(stack.python_version.split(".")[:2])
    request = EnvironmentRequest(pythons=tuple(dict.fromkeys([version, *PYTHONS])), packages=(_PYTEST,))
    found = build.build(request, say)
    return str(next(Path(found.prefix).glob("lib/python*/site-packages")))


def cases_of(junit: ElementTree.Element) -> list[Case]:
    """Return the tests in pytest's JUnit XML. One that passes and has an error in its teardown is there twice."""
    found = []
    for case in junit.iter("testcase"):
        name = case.get("name", "")
        told = {child.tag: child for child in case}
        state, element = "passed", None
        if "failure" in told:
            state, element = "failed", told["failure"]
        elif "error" in told:
            state, element = "error", told["error"]
        elif "skipped" in told:
            element = told["skipped"]
            state = "known" if element.get("type") == "pytest.xfail" else "skipped"
        found.append(Case(name, state, "" if element is None else _first_line(element)))
    return found


def _first_line(element: ElementTree.Element) -> str:
    text = element.get("message") or element.text or ""
    return " ".join(text.split("\n")[0].split())


def _print(found: Sequence[Ran]) -> None:
    """A table, then what did not pass, with equal reasons in one line."""
    heads = ("result", "stack", "suite", *_STATES)
    rows = [(ran.verdict, ran.stack, ran.suite, *(str(ran.number(state)) for state in _STATES)) for ran in found]
    widths = [max(len(row[column]) for row in (heads, *rows)) for column in range(len(heads))]
    for row in (heads, *rows):
        texts = [text.ljust(width) for text, width in zip(row[:3], widths)]
        numbers = [text.rjust(width) for text, width in zip(row[3:], widths[3:])]
        screen.out("  ".join([*texts, *numbers]))
    for ran in found:
        absent = f"{ran.absent}; --suite names those to run" if ran.absent else ""
        if why := ran.problem or absent or ("" if ran.cases else "no test has a name that -k chooses"):
            screen.out(screen.beside(f"{ran.verdict} {ran.stack} {ran.suite}  ", why))
        told: dict[tuple[str, str], list[str]] = {}
        for case in ran.cases:
            if case.state != "passed":
                told.setdefault((case.state, case.why), []).append(case.name)
        for (state, why), names in told.items():
            which = counted(len(names), "test") if len(names) > _MAX_NAMES else ", ".join(names)
            screen.out(screen.beside(f"{state} {ran.stack} {ran.suite}  ", f"{which}: {why}"))


def _merged(found: Iterable[Ran]) -> str:
    """One JUnit XML; a suite that proves nothing has an error."""
    root = ElementTree.Element("testsuites")
    for ran in found:
        suite = ElementTree.SubElement(root, "testsuite", name=f"{ran.stack} {ran.suite}")
        suite.extend(() if ran.junit is None else ran.junit.iter("testcase"))
        if ran.problem or ran.absent:
            case = ElementTree.SubElement(suite, "testcase", classname=ran.suite, name="the suite")
            tag = "error" if ran.problem else "skipped"
            ElementTree.SubElement(case, tag, message=visible(ran.problem or ran.absent))
        cases = suite.findall("testcase")
        suite.set("tests", str(len(cases)))
        for tag, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
            suite.set(name, str(sum(case.find(tag) is not None for case in cases)))
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
