from __future__ import annotations

from dataclasses import replace

from harness.core.run.provenance import Provenance
from harness.core.run.report import Report
from harness.core.stack import StackFacts, Version
from harness.reporting.summaries import CanaryCount, canary_counts, versions


def test_canaries_are_in_matrix_order_and_results_by_frequency(broken_report: Report) -> None:
    results = [{"padding": "did not end", "order": "ran"}, {"padding": "ran"}, {"padding": "ran", "order": "ran"}]
    cells = [replace(broken_report.cells[0], canaries=result) for result in results]
    assert canary_counts(replace(broken_report, cells=cells)) == [
        CanaryCount("padding", "ran", 2),
        CanaryCount("padding", "did not end", 1),
        CanaryCount("order", "ran", 2),
    ]


def test_without_canaries_there_are_no_counts(broken_report: Report) -> None:
    cells = [replace(cell, canaries={}) for cell in broken_report.cells]
    assert canary_counts(replace(broken_report, cells=cells)) == []


def test_versions_of_the_environment_of_the_harness() -> None:
    packages = {"megatron-core": "0.19.2", "torch": "2.15.0"}
    found = versions(Provenance(packages=packages, python="3.12.1"), "default")
    assert (found["megatron-core"], found["torch"], found["python"]) == ("0.19.2", "2.15.0", "3.12.1")
    assert found["transformer-engine"] == "not installed"


def test_versions_are_those_that_ranks_of_the_stack_imported() -> None:
    def named(**versions: str) -> list[Version]:
        return [Version(name=name.replace("_", "."), version=version) for name, version in versions.items()]

    stacks = {
        "old": StackFacts(packages=tuple(named(torch="2.15.0"))),
        "new": StackFacts(packages=tuple(named(torch="2.9.0"))),
    }
    by_stack = {
        "old": named(megatron_core="0.17.1", megatron_bridge="0.4.2"),
        "new": [*named(megatron_core="0.19.2"), *named(megatron_core="0.19.3")],
    }
    facts = Provenance(imports_of_stacks=by_stack, stacks=stacks)
    old, new = versions(facts, "old"), versions(facts, "new")
    assert (old["megatron-core"], new["megatron-core"]) == ("0.17.1", "0.19.2, 0.19.3")
    assert (old["torch"], new["torch"]) == ("2.15.0", "2.9.0")
    assert old["megatron-bridge"] == "0.4.2"
    assert "megatron-bridge" not in new
