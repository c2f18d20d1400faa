"""Facts in which the ranks of a cell, its control and its result must agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.core.outcomes import Rejection
from harness.core.run.cell_result import CellResult
from harness.core.run.records import ImportProof, RankRecord
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.required import facts
from harness.judge.required.expected import Expected
from tests.judge.simulator import config_of, evidence_for


def differences(evidence: CellEvidence) -> list[str]:
    return list(facts.disagreements(Expected(evidence), evidence.records))


def proof(module: str, version: str = "1.0") -> ImportProof:
    return ImportProof(module=module, version=version, path="/stack/x.py")


@pytest.mark.parametrize("layout", [{}, {"tp": 2, "pp": 2}, {"cp": 2, "dp": 2}])
def test_clean_evidence_agrees(layout: dict[str, Any]) -> None:
    evidence = evidence_for(config_of("sft", **layout))
    assert evidence.result is not None
    assert differences(evidence) == []
    assert list(facts.result_problems(Expected(evidence), evidence.result)) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            lambda record: record.environment.update(backend="nccl"),
            "environment: backend is 'nccl', on rank 0 'gloo'",
        ),
        (
            lambda record: record.environment.update(attention="flash"),
            "environment: attention is 'flash', on rank 0 'harness reference attention'",
        ),
        (lambda record: record.environment.update(dtype="bf16"), "environment: dtype is 'bf16', on rank 0 'fp32'"),
        (lambda record: record.cpu_stubs.pop(), "cpu_stubs are not those of rank 0 of the same node"),
        (lambda record: record.gloo_stubs.append("x"), "gloo_stubs are not those of rank 0 of the same node"),
        (
            lambda record: record.environment.update(NCCL_ALGO="Tree", NVTE_X="1"),
            "environment: NCCL_ALGO is 'Tree', on rank 0 of the same node None",
        ),
        (
            lambda record: record.environment.update(host="node-2"),
            "environment: host is 'node-2', on rank 0 of the same node 'node-1'",
        ),
        (lambda record: setattr(record, "warmup_rounds", 3), "warmup_rounds is 3, on rank 0 0"),
        (
            lambda record: setattr(record.imports[1], "version", "2.14.0"),
            "imports: torch is 2.14.0 from /stack/torch/__init__.py, on rank 0 2.15.0 from /stack/torch/__init__.py",
        ),
        (
            lambda record: setattr(record.imports[1], "path", "/other/torch.py"),
            "imports: torch is 2.15.0 from /other/torch.py, on rank 0 2.15.0 from /stack/torch/__init__.py",
        ),
    ],
)
def test_ranks_of_a_cell_run_the_same_code_in_the_same_way(
    change: Callable[[RankRecord], object], problem: str
) -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    change(evidence.records[1])
    assert differences(evidence) == [f"record of rank 1: {problem}"]


def test_a_variable_that_only_the_first_rank_has_is_a_difference() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    for record in evidence.records.values():
        record.environment["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    evidence.records[0].environment["NCCL_ALGO"] = "Ring"
    assert differences(evidence) == [
        "record of rank 1: environment: NCCL_ALGO is None, on rank 0 of the same node 'Ring'"
    ]


def test_ranks_may_differ_in_processes_and_in_other_modules_that_only_one_imported() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    record = evidence.records[1]
    record.environment |= {"pid": "1", "placed": "elsewhere", "PATH": "/bin"}
    record.imports.append(proof("megatron.core.odd"))
    assert differences(evidence) == []


@pytest.mark.parametrize(("has", "lacks"), [(0, 1), (1, 0)])
def test_replicas_on_one_node_imported_the_same_top_modules(has: int, lacks: int) -> None:
    evidence = evidence_for(config_of("sft", dp=2))
    evidence.records[has].imports += [proof("skyrl"), proof("megatron.bridge")]
    assert differences(evidence) == [
        f"record of rank {lacks}: imports: megatron.bridge is missing, which rank {has} of the same node has"
    ]


@pytest.mark.parametrize("other", [{"tp": 2}, {"pp": 2}])
def test_ranks_with_other_work_may_have_imported_more(other: dict[str, int]) -> None:
    """Of a stage that reads data, only the first tensor parallel rank does."""
    evidence = evidence_for(config_of("sft", **other))
    evidence.records[0].imports.append(proof("megatron.training"))
    assert differences(evidence) == []


def test_variables_cpu_stubs_and_imports_may_differ_between_nodes() -> None:
    evidence = evidence_for(config_of("sft", tp=4))
    evidence.nodes = 2
    for rank in (2, 3):
        evidence.records[rank].environment |= {"host": "node-2", "NCCL_SOCKET_IFNAME": "eth1"}
        evidence.records[rank].cpu_stubs.pop()  # the agent there has imported one module less
    for rank in (0, 1):
        evidence.records[rank].imports.append(proof("megatron.bridge"))
    assert differences(evidence) == []


def test_nodes_may_be_on_one_host() -> None:
    evidence = evidence_for(config_of("sft", tp=4))
    evidence.nodes = 4
    assert differences(evidence) == []


def test_a_host_names_one_processor_on_all_ranks_and_in_the_control() -> None:
    evidence = evidence_for(config_of("sft", tp=4))
    evidence.nodes = 2
    for rank in (2, 3):
        evidence.records[rank].environment |= {"host": "node-2", "processor": "other x 4"}
    assert differences(evidence) == []
    evidence.records[3].environment["processor"] = "other x 8"
    assert evidence.control is not None
    evidence.control.records[0].environment["processor"] = "third x 4"
    assert differences(evidence) == [
        "environment: processor of rank 3 is 'other x 8', of rank 2 on the same host 'other x 4'",
        "environment: processor of the control's rank 0 is 'third x 4', of rank 0 on the same host 'processor x 8'",
    ]


def test_ranks_of_a_later_node_are_compared_with_the_first_one_there() -> None:
    evidence = evidence_for(config_of("sft", tp=4))
    evidence.nodes = 2
    for rank in (2, 3):
        evidence.records[rank].environment["host"] = "node-2"
    evidence.records[3].environment["NCCL_ALGO"] = "Tree"
    evidence.records[3].cpu_stubs.pop()
    assert differences(evidence) == [
        "record of rank 3: cpu_stubs are not those of rank 2 of the same node",
        "record of rank 3: environment: NCCL_ALGO is 'Tree', on rank 2 of the same node None",
    ]


def with_other_control(module: str) -> CellEvidence:
    """A cell whose control imported another version of a module."""
    evidence = evidence_for(config_of("sft"))
    assert evidence.control is not None
    for item in (evidence.records[0], evidence.control.records[0]):
        item.imports = [*item.imports, proof(module)]
    evidence.control.records[0].imports[-1] = proof(module, version="2.0")
    return evidence


def test_the_control_runs_the_same_upstream_code() -> None:
    assert differences(with_other_control("skyrl")) == [
        "record of the control: imports: skyrl is 2.0 from /stack/x.py, on the cell 1.0 from /stack/x.py"
    ]


def test_other_modules_of_the_control_are_not_compared() -> None:
    assert differences(with_other_control("numpy")) == []


def test_a_control_of_another_stack_is_not_compared() -> None:
    evidence = with_other_control("skyrl")
    evidence.cell = replace(evidence.cell, config=replace(evidence.cell.config, stack="core019"))
    assert differences(evidence) == []


def test_a_cell_without_a_control_is_compared_with_none() -> None:
    evidence = with_other_control("skyrl")
    evidence.control = None
    assert differences(evidence) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda result: result.ranks.pop(), "endings of 1 of 2 ranks"),
        (lambda result: result.ranks.append(result.ranks[0]), "endings of 3 of 2 ranks"),
        (
            lambda result: setattr(result.ranks[1], "ended", "killed"),
            "rank 1 killed with exit code 0, though its record says completed",
        ),
        (
            lambda result: setattr(result.ranks[1], "exit_code", -9),
            "rank 1 completed with exit code -9, though its record says completed",
        ),
        (
            lambda result: setattr(result.ranks[1], "hang", "all_reduce"),
            "rank 1 completed with exit code 0, hanging in all_reduce, though its record says completed",
        ),
        *(
            (
                lambda result, name=name, value=value: setattr(result.ranks[1], name, value),
                "rank 1 has signs of a hang (stack, flight, still_s), though its record says completed",
            )
            for name, value in (("stack", []), ("flight", ["all_reduce"]), ("still_s", 3.0))
        ),
        (lambda result: setattr(result, "reason", "no"), "status is completed, but reason is 'no'"),
        (lambda result: setattr(result, "first_failure_rank", 0), "status is completed, but first_failure_rank is 0"),
        (
            lambda result: setattr(result, "rejection", Rejection(rule="a", reason="b")),
            "status is completed, but rejection is Rejection(rule='a', reason='b', source='')",
        ),
    ],
)
def test_the_result_must_agree_with_the_records(change: Callable[[CellResult], object], problem: str) -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    assert evidence.result is not None
    change(evidence.result)
    assert list(facts.result_problems(Expected(evidence), evidence.result)) == [problem]
