from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.core.data_paths.forbidden import FORBIDDEN_CASES
from harness.core.run.records import ImportProof, RankRecord, Refusal
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.required import facts
from harness.judge.required.expected import Expected
from tests.judge.simulator import config_of, evidence_for

FORBIDDEN = "offline-micro-batch-2"
CASE = FORBIDDEN_CASES[FORBIDDEN]
ON_GPU = {"device": "NVIDIA H200", "torch_device": "cuda:0", "backend": "nccl"}
GLOO_STUBS = ["torch.distributed.ProcessGroup.send"]


def problems_of(evidence: CellEvidence, rank: int = 0) -> list[str]:
    return list(facts.problems(Expected(evidence), evidence.records[rank]))


def problems_after(change: Callable[[RankRecord], object]) -> list[str]:
    """Problems of rank 1 after a change of its record."""
    evidence = evidence_for(config_of("sft", tp=2))
    change(evidence.records[1])
    return problems_of(evidence, 1)


def on_gpu(record: RankRecord) -> None:
    record.environment |= ON_GPU
    record.cpu_stubs = []


@pytest.mark.parametrize("layout", [{}, {"tp": 2, "pp": 2}, {"cp": 2, "dp": 2}])
def test_clean_records_have_no_problem(layout: dict[str, Any]) -> None:
    evidence = evidence_for(config_of("sft", **layout))
    assert [problem for rank in evidence.records for problem in problems_of(evidence, rank)] == []


@pytest.mark.parametrize("name", [name for name in facts.ENVIRONMENT if name != "torch_device"])
@pytest.mark.parametrize("gone", [True, False], ids=["absent", "empty"])
def test_every_fact_of_the_environment_must_be_there(name: str, gone: bool) -> None:
    def change(record: RankRecord) -> None:
        record.environment[name] = ""
        if gone:
            del record.environment[name]

    assert problems_after(change) == [f"environment: {name} is missing"]


def test_a_rank_without_a_torch_device_cannot_explain_its_cpu_stubs() -> None:
    assert problems_after(lambda record: record.environment.pop("torch_device")) == [
        "environment: torch_device is missing",
        "cpu_stubs: 2 CPU stubs on None over gloo",
    ]


def test_of_several_missing_facts_the_first_is_named() -> None:
    def change(record: RankRecord) -> None:
        record.environment = {"torch_device": "cpu"}

    assert problems_after(change) == ["environment: host is missing"]


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_rank_on_a_gpu_may_use_nccl_or_gloo(backend: str) -> None:
    def change(record: RankRecord) -> None:
        on_gpu(record)
        record.environment["backend"] = backend
        record.gloo_stubs = GLOO_STUBS if backend == "gloo" else []

    assert problems_after(change) == []


@pytest.mark.parametrize(
    "found",
    [
        {"device": "NVIDIA H200", "torch_device": "cpu", "backend": "gloo"},
        {"device": "cpu", "torch_device": "cuda:0", "backend": "nccl"},
        {"device": "cpu", "torch_device": "cpu", "backend": "nccl"},
        {"device": "NVIDIA H200", "torch_device": "cuda:0", "backend": "mpi"},
        {"device": "another", "torch_device": "xpu:0", "backend": "gloo"},
    ],
)
def test_device_and_backend_must_fit_together(found: dict[str, str]) -> None:
    def change(record: RankRecord) -> None:
        record.environment |= found
        record.cpu_stubs = record.cpu_stubs if found["torch_device"] == "cpu" else []

    device, torch_device, backend = (found[name] for name in ("device", "torch_device", "backend"))
    assert problems_after(change) == [
        f"environment: device '{device}', torch_device '{torch_device}' and backend '{backend}' contradict each other"
    ]


@pytest.mark.parametrize(("requested", "gpu"), [("cpu", False), ("cuda", True), ("auto", False), ("auto", True)])
def test_a_rank_on_the_device_that_the_cell_asks_for_has_no_problem(requested: str, gpu: bool) -> None:
    evidence = evidence_for(replace(config_of("sft"), device=requested))
    if gpu:
        on_gpu(evidence.records[0])
    assert problems_of(evidence) == []


@pytest.mark.parametrize(("requested", "gpu", "found"), [("cuda", False, "cpu"), ("cpu", True, "cuda:0")])
def test_a_rank_on_another_device_is_named(requested: str, gpu: bool, found: str) -> None:
    evidence = evidence_for(replace(config_of("sft"), device=requested))
    if gpu:
        on_gpu(evidence.records[0])
    assert problems_of(evidence) == [f"environment: torch_device is {found}, the cell asks for {requested}"]


def test_the_dtype_must_be_the_one_of_the_cell() -> None:
    change = {"dtype": "bf16"}
    assert problems_after(lambda record: record.environment.update(change)) == [
        "environment: dtype is bf16, the cell's is fp32"
    ]


@pytest.mark.parametrize(
    ("names", "gpu", "problem"),
    [
        ([], False, "cpu_stubs: 0 CPU stubs on cpu over gloo"),
        (["torch.cuda.synchronize"], True, "cpu_stubs: 1 CPU stubs on cuda:0 over nccl"),
        (["torch.cuda.synchronize", ""], False, "cpu_stubs: a CPU stub has no name, or is listed twice"),
        (["torch.cuda.synchronize"] * 2, False, "cpu_stubs: a CPU stub has no name, or is listed twice"),
    ],
)
def test_cpu_stubs_are_distinct_names_on_the_cpu_only(names: list[str], gpu: bool, problem: str) -> None:
    def change(record: RankRecord) -> None:
        if gpu:
            on_gpu(record)
        record.cpu_stubs = names

    assert problems_after(change) == [problem]


@pytest.mark.parametrize(
    ("names", "backend", "problem"),
    [
        ([], "gloo", "gloo_stubs: 0 gloo stubs on cuda:0 over gloo"),
        (GLOO_STUBS, "nccl", "gloo_stubs: 1 gloo stubs on cuda:0 over nccl"),
        (GLOO_STUBS, None, "gloo_stubs: 1 gloo stubs on cpu over gloo"),
        (GLOO_STUBS * 2, "gloo", "gloo_stubs: a gloo stub has no name, or is listed twice"),
    ],
)
def test_ranks_that_share_a_gpu_and_no_others_have_gloo_stubs(
    names: list[str], backend: str | None, problem: str
) -> None:
    def change(record: RankRecord) -> None:
        if backend:
            on_gpu(record)
            record.environment["backend"] = backend
        record.gloo_stubs = names

    assert problems_after(change) == [problem]


def proof(module: str, version: str = "1.0", path: str = "/stack/x.py") -> ImportProof:
    return ImportProof(module=module, version=version, path=path)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda record: record.imports.append(record.imports[0]), "imports: a module is listed twice"),
        (lambda record: record.imports.pop(0), "imports: megatron.core is missing, so which code ran is unknown"),
        (lambda record: record.imports.pop(1), "imports: torch is missing, so which code ran is unknown"),
        (
            lambda record: record.imports.append(proof("skyrl", version="")),
            "imports: skyrl has version '' and path '/stack/x.py'",
        ),
        (
            lambda record: record.imports.append(proof("skyrl", path="x.py")),
            "imports: skyrl has version '1.0' and path 'x.py'",
        ),
        (lambda record: record.modules.update(torch=" "), "modules: torch has no submodules"),
        (lambda record: record.modules.clear(), "modules: megatron.core is missing"),
    ],
)
def test_the_code_that_ran_must_be_known(change: Callable[[RankRecord], object], problem: str) -> None:
    assert problems_after(change) == [problem]


def refusal(**fields: Any) -> Refusal:
    return Refusal(**{"validator": CASE.validator, "wanted": CASE.pattern} | fields)


@pytest.mark.parametrize("fields", [{"type": "ValueError", "message": "it must be 1"}, {}, {"allowed_refused": "no"}])
def test_the_answer_of_a_validator_has_no_problem(fields: dict[str, str]) -> None:
    evidence = evidence_for(replace(config_of("rules"), forbidden=FORBIDDEN))
    evidence.records[0].refusal = refusal(**fields)
    assert problems_of(evidence) == []


@pytest.mark.parametrize(
    ("forbidden", "answer", "problem"),
    [
        (FORBIDDEN, None, "refusal is missing"),
        ("", refusal(), "refusal is present, though the cell has no forbidden combination"),
        (
            FORBIDDEN,
            refusal(validator="x"),
            f"refusal: validator is 'x', that of {FORBIDDEN} is 'Megatron-Bridge ConfigContainer.validate'",
        ),
        (
            FORBIDDEN,
            refusal(wanted=""),
            f"refusal: wanted is '', that of {FORBIDDEN} is 'micro batch size should be 1'",
        ),
        (FORBIDDEN, refusal(type="ValueError"), "refusal has a message without a type, or a type without a message"),
        (FORBIDDEN, refusal(message="no"), "refusal has a message without a type, or a type without a message"),
    ],
)
def test_a_wrong_answer_of_a_validator_is_named(forbidden: str, answer: Refusal | None, problem: str) -> None:
    evidence = evidence_for(replace(config_of("rules"), forbidden=forbidden))
    evidence.records[0].refusal = answer
    assert problems_of(evidence) == [problem]


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("peak_memory_bytes", -1, "peak_memory_bytes is -1"),
        ("peak_reserved_bytes", -2, "peak_reserved_bytes is -2"),
        ("setup_s", -0.5, "setup_s is -0.5"),
        ("setup_s", float("nan"), "setup_s is nan"),
    ],
)
def test_sizes_and_times_are_not_negative(name: str, value: float, problem: str) -> None:
    assert problems_after(lambda record: setattr(record, name, value)) == [problem]


REFERENCE, VARLEN, ENGINE = "harness reference attention", "torch varlen_attn 2.15.0", "Transformer Engine 2.20.2, "


def attention_problems(requested: str, found: str, *, dtype: str = "bf16", gpu: bool = True) -> list[str]:
    evidence = evidence_for(replace(config_of("sft"), attention=requested, dtype=dtype))
    if gpu:
        on_gpu(evidence.records[0])
    evidence.records[0].environment["attention"] = found
    return problems_of(evidence)


@pytest.mark.parametrize(
    ("requested", "found"),
    [
        ("reference", REFERENCE),
        ("varlen", VARLEN),
        *((kind, ENGINE + kind) for kind in ("te", "te-flash", "te-fused")),
        *(("auto", found) for found in (REFERENCE, VARLEN, ENGINE + "te")),
    ],
)
def test_a_rank_with_the_attention_that_the_cell_asks_for_has_no_problem(requested: str, found: str) -> None:
    assert attention_problems(requested, found) == []


@pytest.mark.parametrize(
    ("requested", "found", "possible"),
    [
        ("te-flash", REFERENCE, "te-flash"),
        ("te-flash", ENGINE + "te-fused", "te-flash"),
        ("reference", VARLEN, "reference"),
        ("auto", ENGINE + "te-flash", "te or varlen or reference"),
        ("auto", "reference", "te or varlen or reference"),
    ],
)
def test_a_rank_with_another_attention_is_named(requested: str, found: str, possible: str) -> None:
    problem = f"environment: attention is {found!r}, the cell asks for {requested}: {possible}"
    assert attention_problems(requested, found) == [problem]


def test_on_the_cpu_auto_is_the_reference_attention() -> None:
    assert attention_problems("auto", REFERENCE, gpu=False) == []
    assert len(attention_problems("auto", VARLEN, gpu=False)) == 1
