from __future__ import annotations

from typing import Any

from harness.judge.report.stack_versions import versions


def test_versions_of_the_environment_of_the_harness() -> None:
    found = versions({"packages": {"megatron-core": "0.19.2", "torch": "2.15.0"}, "python": "3.12.1"}, "default")
    assert (found["megatron-core"], found["torch"], found["python"]) == ("0.19.2", "2.15.0", "3.12.1")
    assert found["transformer-engine"] == "not installed"


def test_versions_are_those_that_ranks_of_the_stack_imported() -> None:
    def named(**versions: str) -> list[dict[str, str]]:
        return [{"name": name.replace("_", "."), "version": version} for name, version in versions.items()]

    stacks = {"old": {"packages": named(torch="2.15.0")}, "new": {"packages": named(torch="2.9.0")}}
    by_stack = {
        "old": named(megatron_core="0.17.1", megatron_bridge="0.4.2"),
        "new": [*named(megatron_core="0.19.2"), *named(megatron_core="0.19.3")],
    }
    facts: dict[str, Any] = {"imports_of_stacks": by_stack, "stacks": stacks}
    old, new = versions(facts, "old"), versions(facts, "new")
    assert (old["megatron-core"], new["megatron-core"]) == ("0.17.1", "0.19.2, 0.19.3")
    assert (old["torch"], new["torch"]) == ("2.15.0", "2.9.0")
    assert old["megatron-bridge"] == "0.4.2"
    assert "megatron-bridge" not in new
