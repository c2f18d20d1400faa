from __future__ import annotations

from dataclasses import replace

from harness.core.run.provenance import Provenance
from harness.core.stack import StackFacts, Version
from harness.reporting.compare.runs import Moved, differences, differences_text, stack_facts, with_counts
from tests.sample_report import sample_report
from tests.two_runs import NEW, OLD, in_stack


def test_the_default_stack_has_the_installed_packages_of_provenance() -> None:
    facts = stack_facts(sample_report().provenance, "default")
    assert facts == {"megatron-core": "0.19.2", "torch": "2.9.0+cpu", "python": "3.12.4"}


def test_a_stack_of_the_matrix_has_commits_packages_and_variables() -> None:
    report = in_stack(sample_report(), OLD, torch="2.9.0")
    stack = report.provenance.stacks["main"]
    checkout = replace(stack.checkouts[0], reverted=("abc", "def"))
    stack = replace(stack, env={"NCCL_ALGO": "Ring"}, checkouts=(checkout,))
    provenance = replace(report.provenance, stacks={"main": stack})
    facts = {
        "megatron-lm": OLD,
        "megatron-lm without": "abc, def",
        "torch": "2.9.0",
        "variable NCCL_ALGO": "Ring",
        "python": "3.12.4",
    }
    assert stack_facts(provenance, "main") == facts
    assert stack_facts(provenance, "unheard of") == {}


def test_a_container_has_the_modules_that_ranks_imported() -> None:
    core, torch = Version(name="megatron.core", version="0.19.2"), Version(name="torch", version="2.9.0")
    provenance = Provenance(
        stacks={"nemo": StackFacts(container="nemo:latest")},
        imports_of_stacks={"nemo": [core, torch], "default": [Version(name="torch", version="2.15.0")]},
    )
    facts = stack_facts(provenance, "nemo")
    assert facts == {"imported megatron.core": "0.19.2", "imported torch": "2.9.0", "container": "nemo:latest"}


def test_a_moved_checkout_comes_first_with_the_number_of_commits() -> None:
    before = {"torch": "2.9.0", "six": "1.16", "megatron-lm": OLD}
    after = {"torch": "2.9.1", "regex": "2026.1", "megatron-lm": NEW}
    found = with_counts(differences(before, after), {(OLD, NEW): Moved(added=312, removed=0)})
    assert [item.text for item in found] == [
        "megatron-lm 5e4fc931ba..d30e165203, 312 commits",
        "torch 2.9.0 -> 2.9.1",
        "regex 2026.1 added",
        "six 1.16 removed",
    ]
    assert differences_text(found, most=1) == "megatron-lm 5e4fc931ba..d30e165203, 312 commits; 3 more"


def test_without_a_repository_the_ends_of_the_range_are_shown() -> None:
    (only,) = differences({"megatron-lm": OLD}, {"megatron-lm": NEW})
    assert only.text == "megatron-lm 5e4fc931ba..d30e165203"


def test_texts_of_a_move_back_and_of_a_move_to_another_branch() -> None:
    assert Moved(added=0, removed=1).text == "back by 1 commit"
    assert Moved(added=2, removed=3).text == "2 commits added, 3 removed"
