from __future__ import annotations

from typing import Any

from harness.judge.report.stack_versions import versions


def test_versions_of_the_environment_of_the_harness() -> None:
    found = versions({"packages": {"megatron-core": "0.19.2", "torch": "2.15.0"}, "python": "3.12.1"}, "default")
    assert (found["megatron-core"], found["torch"], found["python"]) == ("0.19.2", "2.15.0", "3.12.1")
    assert found["transformer-engine"] == "not installed"


def test_versions_are_those_that_ranks_of_the_stack_imported() -> None:
    imports: dict[str, Any] = {"megatron.core 0.17.1": [], "megatron.core 0.19.2": [], "torch 2.15.0": []}
    stacks = {"old": {"packages": ["torch==2.15.0"]}, "new": {"packages": ["megatron-core==0.19.2"]}}
    by_stack = {"old": ["megatron.core 0.17.1", "megatron.bridge 0.4.2"], "new": ["megatron.core 0.19.2"]}
    facts: dict[str, Any] = {"imports": imports, "imports_of_stacks": by_stack, "stacks": stacks}
    old, new = versions(facts, "old"), versions(facts, "new")
    assert (old["megatron-core"], new["megatron-core"]) == ("0.17.1", "0.19.2")
    assert old["megatron-bridge"] == "0.4.2"
    assert "megatron-bridge" not in new


def test_versions_of_a_report_without_imports_of_stacks_come_from_it_only_where_they_are_clear() -> None:
    stacks = {"old": {"packages": ["megatron-core==0.17.1"]}}
    facts: dict[str, Any] = {
        "imports": {"megatron.core 0.17.1": [], "megatron.core 0.19.2": [], "torch 2.15.0": []},
        "stacks": stacks,
    }
    assert versions(facts, "old")["megatron-core"] == "0.17.1"
    assert versions(facts, "old")["torch"] == "2.15.0"
