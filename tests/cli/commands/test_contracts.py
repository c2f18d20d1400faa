"""`harness contracts` as a user runs it: on the installed Megatron, and on a fork with a broken contract."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from harness.cli.commands.contracts import Case, Ran, cases_of, exit_code
from harness.contracts.upstream_tests import SELECTED
from harness.core.outcomes import EXIT_FAIL, EXIT_PASS, EXIT_UNDECIDED
from tests.bisected import Project, checkout, copied, matrix_of
from tests.cli.conftest import harness, write_matrix
from tests.launch.stacks.test_checkout import git

ATTENTION = "megatron/core/transformer/dot_product_attention.py"
REFUSAL = "packed_seq_params is None"
MATRIX = "name: here\nmatrix: {packing: unpacked}\n"


def rows(output: str) -> dict[tuple[str, str], tuple[str, list[int]]]:
    """(stack, suite) -> result and numbers of passed, failed, error, known, skipped."""
    lines = [line.split() for line in output.splitlines()]
    table = [line for line in lines if len(line) == 8 and line[-1].isdecimal()]
    return {(stack, suite): (result, [int(one) for one in numbers]) for result, stack, suite, *numbers in table}


@pytest.fixture(scope="module")
def fork(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A Megatron-LM that lets packed rows into its own attention, and has files of Megatron-Bridge's unit tests."""
    made = copied(tmp_path_factory.mktemp("fork"))
    made.commit("broken", ATTENTION, REFUSAL, "True")
    tests = made.folder / SELECTED[0].file
    tests.parent.mkdir(parents=True)
    tests.write_text(
        "import os, pytest\n"
        "def test_one(): assert 'megatron' in os.listdir('.')\n"
        "def test_two(): raise ValueError('two')\n"
        "@pytest.mark.skip(reason='of no use')\n"
        "def test_three(): pass\n"
    )
    other = made.folder / SELECTED[2].file
    other.write_text("def test_enable_packing(): raise ValueError('no GPU')\ndef test_other(): pass\n")
    git(made.folder, "add", ".")
    git(made.folder, "commit", "--quiet", "-m", "tests")
    return made


def test_the_installed_megatron_keeps_its_contracts_and_has_no_unit_tests(tmp_path: Path) -> None:
    done = harness("contracts", write_matrix(tmp_path, MATRIX), "--junit", "all.xml", cwd=tmp_path)
    assert done.returncode == EXIT_UNDECIDED, done.stdout + done.stderr
    assert rows(done.stdout) == {
        ("default", "refusals"): ("PASS", [2, 0, 0, 0, 18]),
        ("default", "upstream_tests"): ("NOT_RUN", [0, 0, 0, 0, 0]),
    }
    said = " ".join(done.stdout.split())
    assert "17 tests: megatron-bridge is not installed in this stack" in said
    assert "no checkout of this stack has upstream's unit tests of packing; --suite names those to run" in said
    suites = ElementTree.parse(tmp_path / "all.xml").getroot()
    assert [(suite.get("name"), suite.get("tests"), suite.get("skipped")) for suite in suites] == [
        ("default refusals", "20", "18"),
        ("default upstream_tests", "1", "1"),
    ]


def test_a_broken_contract_and_a_unit_test_that_fails_are_named(fork: Project, tmp_path: Path) -> None:
    matrix = write_matrix(tmp_path, matrix_of(checkout(fork.folder), axes="tp: 1", path="unpacked"))
    done = harness("contracts", matrix, cwd=tmp_path, env={"HARNESS_STACKS": str(tmp_path / "stacks")})
    assert done.returncode == EXIT_FAIL, done.stdout + done.stderr
    assert rows(done.stdout) == {
        ("here", "refusals"): ("FAIL", [1, 1, 0, 0, 18]),
        ("here", "upstream_tests"): ("FAIL", [1, 1, 1, 1, 1]),
    }
    said = " ".join(done.stdout.split())
    assert "[megatron-local-attention]: " in said
    assert "Megatron-LM DotProductAttention accepts the forbidden combination" in said
    assert "known here upstream_tests test_enable_packing: needs a GPU" in said
    assert "this checkout has no tests with packed_sequence or" in said


def test_a_choice_by_name(fork: Project, tmp_path: Path) -> None:
    matrix = write_matrix(tmp_path, matrix_of(checkout(fork.folder, ref=""), axes="tp: 1", path="unpacked"))
    chosen = harness("contracts", matrix, "-k", "cp-seq-length and megatron", cwd=tmp_path)
    assert rows(chosen.stdout)["here", "refusals"] == ("PASS", [1, 0, 0, 0, 0]), chosen.stdout + chosen.stderr
    assert chosen.returncode == EXIT_PASS
    suite = harness("contracts", matrix, "-k", "cp-seq-length and megatron", "--suite", "refusals", cwd=tmp_path)
    assert (suite.returncode, list(rows(suite.stdout))) == (EXIT_PASS, [("here", "refusals")])
    none = harness("contracts", matrix, "-k", "no_such_test", cwd=tmp_path)
    assert none.returncode == 2
    assert "-k: no test has a name that it chooses" in none.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("smok",), "no such file"),
        (("smoke", "--stack", "other"), "--stack: no such stack (found other; allowed: default)"),
        (("smoke", "--suite", "all"), "--suite: no such suite (found all; allowed: refusals, upstream_tests)"),
        (("removed.yaml",), "matrix.packing: was removed (found 'rules'"),
        (("container.yaml",), "stack image is a container of a cluster"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    write_matrix(tmp_path, "name: x\nmatrix: {packing: rules, forbidden: cp-mean-loss}\n", "removed.yaml")
    image = "name: x\nstacks: {image: {container: a.sif}}\nmatrix: {packing: sft, stack: image}\n"
    write_matrix(tmp_path, image, "container.yaml")
    done = harness("contracts", *words, cwd=tmp_path)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_a_stack_that_cannot_be_used_is_undecided(tmp_path: Path) -> None:
    text = f"name: x\nstacks: {{bare: {{python: {tmp_path / 'python'}}}}}\nmatrix: {{packing: sft, stack: bare}}\n"
    done = harness("contracts", write_matrix(tmp_path, text), cwd=tmp_path)
    assert done.returncode == EXIT_UNDECIDED, done.stdout + done.stderr
    assert {result for result, _ in rows(done.stdout).values()} == {"ERROR"}


JUNIT = """<testsuites><testsuite><testcase name="a"/>
<testcase name="b"><failure message="AssertionError: m&#10;x"/></testcase>
<testcase name="c"><skipped type="pytest.skip" message="no GPU"/></testcase>
<testcase name="d"><error message="e"/></testcase>
<testcase name="f"><skipped type="pytest.xfail" message="known"/></testcase></testsuite></testsuites>"""


def test_states_of_tests_are_those_of_pytest() -> None:
    assert cases_of(ElementTree.fromstring(JUNIT)) == [
        Case("a", "passed"),
        Case("b", "failed", "AssertionError: m"),
        Case("c", "skipped", "no GPU"),
        Case("d", "error", "e"),
        Case("f", "known", "known"),
    ]


@pytest.mark.parametrize(
    ("states", "verdict", "code"),
    [
        (["passed", "skipped", "known"], "PASS", EXIT_PASS),
        (["passed", "error", "failed"], "FAIL", EXIT_FAIL),
        (["passed", "error"], "ERROR", EXIT_UNDECIDED),
        (["skipped", "known"], "NOT_RUN", EXIT_UNDECIDED),
        ([], "NOT_RUN", EXIT_UNDECIDED),
    ],
)
def test_nothing_run_is_no_pass(states: list[str], verdict: str, code: int) -> None:
    ran = Ran(stack="s", suite="refusals", cases=[Case("t", state) for state in states])
    assert (ran.verdict, exit_code([ran])) == (verdict, code)


PASSED = Ran(stack="s", suite="refusals", cases=[Case("t", "passed")])


@pytest.mark.parametrize(
    "other",
    [
        Ran(stack="s", suite="upstream_tests", absent="no checkout"),
        Ran(stack="s", suite="upstream_tests", cases=[Case("t", "skipped")]),
        Ran(stack="other", suite="refusals"),
    ],
)
def test_a_suite_that_proves_nothing_is_not_hidden_by_one_that_passes(other: Ran) -> None:
    assert exit_code([PASSED, other]) == EXIT_UNDECIDED


def test_a_suite_without_a_test_that_was_chosen_by_name_does_not_count() -> None:
    none = Ran(stack="s", suite="upstream_tests")
    assert exit_code([PASSED, none], expression="cp") == EXIT_PASS
    assert exit_code([none], expression="cp") == EXIT_UNDECIDED
    assert exit_code([PASSED, Ran(stack="other", suite="refusals")], expression="cp") == EXIT_UNDECIDED
    skipped = Ran(stack="s", suite="upstream_tests", cases=[Case("t", "skipped")])
    assert exit_code([PASSED, skipped], expression="cp") == EXIT_UNDECIDED


def test_imports_from_elsewhere_prove_nothing() -> None:
    ran = Ran(stack="s", suite="refusals", cases=[Case("t", "passed")], problem="wrong code under test")
    assert (ran.verdict, exit_code([ran])) == ("ERROR", EXIT_UNDECIDED)
