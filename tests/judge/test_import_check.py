"""A module from outside its stack makes the cell an ERROR, and both paths are named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.outcomes import LaneVerdict, Outcome
from harness.core.run.records import ImportProof
from harness.core.run.run_plan import XFail
from harness.core.stack import ModuleHome, ReadyStack, Stack
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.import_check import home_of, import_problem
from tests.judge.simulator import config_of, drop_params, evidence_for, judge

ENVIRONMENT, WORKTREE = "/cache/environments/e", "/cache/checkouts/lm"
HOMES = (
    ModuleHome(prefix="megatron.core", folders=(WORKTREE,)),
    ModuleHome(prefix="", folders=(ENVIRONMENT,)),
)
STACK = ReadyStack(requested=Stack(name="over_main"), homes=HOMES)
CORE = ImportProof(module="megatron.core", version="0.20", path=f"{WORKTREE}/megatron/core/__init__.py")
TORCH = ImportProof(module="torch", version="2.15", path=f"{ENVIRONMENT}/lib/torch/__init__.py")
STRAY = ImportProof(module="megatron.core.utils", version="0.17.1", path="/other/megatron/core/utils.py")


def ran_with(*proofs: ImportProof, stack: ReadyStack | None = STACK, xfail: XFail | None = None) -> CellEvidence:
    evidence = evidence_for(replace(config_of("sft", tp=2), stack="over_main"), xfail)
    evidence.stack = stack
    for record in evidence.records.values():
        record.imports = list(proofs)
        record.modules = {"megatron.core": "parallel_state"} if CORE in proofs else {}
    return evidence


def test_modules_in_the_folders_of_the_stack_do_not_change_the_verdict() -> None:
    assert judge(ran_with(CORE, TORCH)).outcome is Outcome.PASS


def test_a_module_from_another_folder_is_an_error_that_names_both_paths_and_the_ranks() -> None:
    verdict = judge(ran_with(CORE, TORCH, STRAY))
    assert verdict.outcome is Outcome.ERROR
    assert verdict.reason == (
        "wrong code under test: megatron.core.utils 0.17.1 came from /other/megatron/core/utils.py on ranks 0, 1, "
        "but stack over_main has it in /cache/checkouts/lm"
    )
    assert set(verdict.lanes.values()) == {LaneVerdict.SKIP}


def test_one_rank_with_a_module_from_another_folder_is_enough() -> None:
    evidence = ran_with(CORE, TORCH)
    evidence.records[1].imports.append(STRAY)
    assert "on rank 1, but" in judge(evidence).reason


def test_submodules_recorded_by_name_are_judged_too() -> None:
    evidence = ran_with(CORE, TORCH)
    evidence.records[1].modules = {"megatron.core": "utils transformer/"}
    assert judge(evidence).outcome is Outcome.PASS
    homes = (ModuleHome(prefix="megatron.core.transformer", folders=("/other",)), *HOMES)
    evidence.stack = replace(STACK, homes=homes)
    assert judge(evidence).reason == (
        f"wrong code under test: megatron.core.transformer 0.20 came from "
        f"{WORKTREE}/megatron/core/transformer/__init__.py on rank 1, but stack over_main has it in /other"
    )


def test_a_folder_whose_name_only_starts_the_same_is_another_folder() -> None:
    stray = replace(TORCH, path=f"{ENVIRONMENT}-old/lib/torch/__init__.py")
    assert "torch 2.15 came from" in judge(ran_with(CORE, stray)).reason


@pytest.mark.parametrize("xfail", [None, XFail(pattern="*", reason="known")])
def test_an_import_problem_outranks_a_failed_check_and_an_expected_failure(xfail: XFail | None) -> None:
    evidence = ran_with(CORE, TORCH, STRAY, xfail=xfail)
    for record in evidence.records.values():
        drop_params(record)
    assert judge(evidence).outcome is Outcome.ERROR


def test_a_completed_rank_without_recorded_imports_is_an_error() -> None:
    evidence = ran_with(CORE)
    evidence.records[1].imports, evidence.records[1].modules = [], {}
    assert judge(evidence).reason == "wrong code under test: rank 1 completed but recorded no imports"


def test_a_rank_that_was_killed_before_it_recorded_imports_is_no_import_problem() -> None:
    evidence = ran_with(CORE)
    evidence.records[1].imports, evidence.records[1].modules, evidence.records[1].ended = [], {}, "killed"
    assert import_problem(evidence.stack, evidence.records) == ""


def test_the_default_stack_may_take_its_modules_from_anywhere() -> None:
    assert judge(ran_with(CORE, TORCH, STRAY, stack=None)).outcome is Outcome.PASS


def test_further_misplaced_modules_are_counted() -> None:
    reason = judge(ran_with(STRAY, replace(TORCH, path="/other/torch.py"))).reason
    assert reason.endswith("/cache/checkouts/lm; other modules in wrong folders: 1")


@pytest.mark.parametrize(
    ("module", "folder"),
    [
        ("megatron.core", WORKTREE),
        ("megatron.core.a.b", WORKTREE),
        ("megatron.core_extra", ENVIRONMENT),
        ("torch", ENVIRONMENT),
    ],
)
def test_the_most_specific_home_counts(module: str, folder: str) -> None:
    home = home_of(module, HOMES)
    assert home is not None
    assert home.folders == (folder,)


def test_a_module_without_a_requirement_has_no_home() -> None:
    assert home_of("torch", HOMES[:1]) is None
