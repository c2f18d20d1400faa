"""Which attention a cell gets on nodes with different hardware and packages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.core.cell.config import CellConfig, TrainConfig
from harness.core.cell.layout import Layout
from harness.core.cell.model import ModelConfig
from harness.core.cell.timing import TimingConfig
from harness.core.hardware import WITHOUT_VARIABLE, DevicePlacement, placed_rank
from harness.core.outcomes import Missing, Rejection
from harness.core.packing.documents import DocumentsConfig
from harness.core.packing.options import PackingOptions
from harness.features.attention import node_kinds
from harness.features.attention.config import MlaConfig
from harness.features.attention.limits import KERNELS, kind_of
from harness.features.attention.node_kinds import core_attention, described, resolved, unsupported_attention
from harness.features.attention.node_reference import ReferenceAttention, VarlenAttention
from harness.runtime import refusals
from harness.runtime.device.cuda_forks import Gpu
from harness.runtime.refusals import refusal

CPU, GPU = placed_rank("cpu", 0, 0, 1), placed_rank("auto", 1, 0, 1)
ENGINE = {"transformer-engine": "2.20.2", "transformer-engine-torch": "2.20.2"}
PADDED = PackingOptions(pad_seq_to_mult=8)


def cell(attention: str = "auto", *, dtype: str = "bf16", **more: Any) -> CellConfig:
    layout = {name: more.pop(name) for name in ("tp", "pp", "cp") if name in more}
    documents = DocumentsConfig(mode="file", lengths=(5,))
    return CellConfig(
        layout=Layout(**layout), data_path="reference", attention=attention, dtype=dtype, documents=documents, **more
    )


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Name -> version of the installed distributions; none until the test adds some."""
    packages: dict[str, str] = {}
    monkeypatch.setattr(node_kinds, "installed", packages.get)
    return packages


def rule(config: CellConfig, where: Any = GPU) -> str | None:
    return name_of(unsupported_attention(config, where))


def name_of(found: Rejection | Missing | None) -> str | None:
    return found.rule if isinstance(found, Rejection) else found and "missing"


def test_auto_is_the_best_attention_that_is_installed(stack: dict[str, str]) -> None:
    assert resolved(cell(), GPU).attention == "varlen"
    stack.update(ENGINE)
    assert resolved(cell(), GPU).attention == "te"
    assert resolved(cell(dtype="fp32"), GPU).attention == "reference"
    assert resolved(cell(), CPU).attention == "reference"
    assert resolved(cell("varlen"), CPU).attention == "varlen"


def test_auto_skips_a_kernel_that_cannot_run(stack: dict[str, str]) -> None:
    stack.update(ENGINE)
    assert resolved(cell(cp=2), placed_rank("auto", 2, 0, 2)).attention == "te"
    assert resolved(cell(cp=2), placed_rank("auto", 1, 0, 2)).attention == "te"
    assert resolved(cell(model=ModelConfig(mla=MlaConfig())), GPU).attention == "reference"
    stack["transformer-engine"] = "2.16.0"
    assert resolved(cell(), GPU).attention == "te"
    chosen = "te" if node_kinds.SETS_PAD_BETWEEN_SEQS else "varlen"
    assert resolved(cell(options=PADDED), GPU).attention == chosen


@pytest.mark.parametrize("kind", ["te", "te-flash", "te-fused", "varlen"])
def test_kernels_are_rejected_where_ranks_compute_on_the_cpu(stack: dict[str, str], kind: str) -> None:
    stack.update(ENGINE | {"flash-attn": "2.8.3"})
    assert rule(cell(kind, device="cpu"), CPU) == "attention.kernel-device"
    assert rule(cell(kind), CPU) == "missing"  # an ERROR, since the node's GPU may just be broken
    assert rule(cell(kind)) is None


def test_a_package_that_the_stack_does_not_have_is_an_error(stack: dict[str, str]) -> None:
    assert rule(cell("te-fused")) == "missing"
    stack["transformer-engine"] = "2.20.2"
    assert rule(cell("te")) == "missing"
    stack.update(ENGINE)
    assert rule(cell("te")) is None
    assert rule(cell("te-flash")) == "missing"


@pytest.mark.parametrize(("package", "expected"), [("flash-attn", "attention.te-flash"), ("flash-attn-3", None)])
def test_padding_between_documents_needs_flash_attn_3(
    stack: dict[str, str], package: str, expected: str | None
) -> None:
    stack.update(ENGINE | {package: "1"})
    assert rule(cell("te-flash")) is None
    assert rule(cell("te-flash", options=PADDED)) == expected


def test_an_engine_that_ignores_padding_is_rejected_unless_the_path_sets_pad_between_seqs(
    stack: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.update(ENGINE | {"transformer-engine": "2.16.0+post"})
    monkeypatch.setattr(node_kinds, "SETS_PAD_BETWEEN_SEQS", False)
    assert rule(cell("te", options=PADDED)) == "attention.te-padding"
    assert rule(cell("te")) is None
    monkeypatch.setattr(node_kinds, "SETS_PAD_BETWEEN_SEQS", True)
    assert rule(cell("te", options=PADDED)) is None


def test_a_torch_without_varlen_attention_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_kinds.importlib.util, "find_spec", lambda name: None)
    assert rule(cell("varlen")) == "attention.varlen-torch"


H200 = Gpu(name="H200", capability=(9, 0), memory_bytes=1)


def test_packed_rows_that_cudnn_cannot_compute_deterministically_are_rejected_unless_timed(
    stack: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.update(ENGINE)
    monkeypatch.setattr(node_kinds, "SETS_PAD_BETWEEN_SEQS", True)
    for name in ("NVTE_ALLOW_NONDETERMINISTIC_ALGO", WITHOUT_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    long = replace(
        cell("te-fused"),
        model=ModelConfig(hidden=4096, heads=32, kv_heads=8),
        train=TrainConfig(steps=1, seq_length=8192, global_batch=2),
        documents=DocumentsConfig(mode="file", lengths=(8192,)),
    )
    gpu = DevicePlacement(kind="cuda", backend="nccl", index=0)
    found = node_kinds.unsupported_attention(long, gpu, (9, 0))
    assert isinstance(found, Rejection)
    assert found.rule == "attention.te-deterministic"
    assert "1 documents x 32 heads x 8191^2 = 2146959392 >= 2^30" in found.reason
    timed = replace(long, timing=TimingConfig(documents=(4,)))
    short = replace(long, documents=DocumentsConfig(mode="file", lengths=(1024,)))
    assert node_kinds.unsupported_attention(long, gpu, (10, 0)) is None
    for other in (timed, short, replace(long, attention="varlen"), replace(long, layout=Layout(tp=4, sp=True))):
        assert node_kinds.unsupported_attention(other, gpu, (9, 0)) is None
    assert node_kinds.resolved(replace(long, attention="auto"), gpu, (9, 0)).attention == "varlen"
    monkeypatch.setenv("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "1")
    assert node_kinds.unsupported_attention(long, gpu, (9, 0)) is None


def test_the_device_is_checked_before_the_kernel(stack: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    stack.update(ENGINE)
    gpus = [0]
    monkeypatch.setattr(refusals, "gpu_table", lambda: (H200,) * gpus[0])
    found = [refusal(config, 2) for config in (cell("te", tp=2, device="cuda"), cell("te", tp=2), cell(tp=2))]
    assert [name_of(item) for item in found] == ["missing", "missing", None]
    on_cpu = refusal(cell("te", tp=2, device="cpu"), 2)
    assert name_of(on_cpu) == "attention.kernel-device"
    gpus[0] = 1
    for config in (cell("te", tp=2), cell("te", cp=2), cell(pp=2)):  # two ranks share the GPU
        assert refusal(config, 2) is None


def test_modules_and_descriptions_of_the_kinds_without_requirements() -> None:
    assert [core_attention(kind) for kind in ("auto", "reference", "varlen")] == [
        ReferenceAttention,
        ReferenceAttention,
        VarlenAttention,
    ]
    assert described("reference") == "harness reference attention"
    assert [kind_of(described(kind)) for kind in (*KERNELS, "reference")] == [*KERNELS, "reference"]
    assert described("varlen").startswith("torch varlen_attn 2.")
