"""Devices and tensor factories: the CPU where upstream asks for CUDA, and nothing is pinned.

Each test runs in a separate process, since stubs cannot be removed.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from harness.runtime.device.cpu_factories import rows
from tests import forked

INSTALL = """
import threading
import torch
from harness.runtime.device.cpu_stubs import install
install()
x = torch.ones(2, requires_grad=True)
"""


def run(program: str) -> None:
    forked.run(INSTALL + program)


def test_devices_are_cpu_and_nothing_is_pinned() -> None:
    run("""
made = [
    torch.zeros(2, device="cuda"), torch.tensor([1], device=torch.device("cuda", 0), pin_memory=True),
    torch.empty(2, pin_memory=True), torch.normal(0.0, 1.0, (2,), device="cuda:0"), torch.fft.fftfreq(4, device="cuda"),
    torch.empty_like(x, device="cuda"), torch.nested.nested_tensor([[1.0]], device="cuda"),
    x.to("cuda"), x.to(torch.device("cuda"), torch.float64), x.to(device="cuda"), x.new_zeros(2, device="cuda"),
    torch.nn.Linear(2, 2, device="cuda").weight, torch.nn.Linear(2, 2, device="meta").to_empty(device="cuda").weight,
]
assert [tensor.device.type for tensor in made] == ["cpu"] * len(made), made
assert not any(tensor.is_pinned() for tensor in made)
assert x.to("cuda") is x and made[8].dtype is torch.float64
assert torch.zeros(2, device="meta").device.type == x.to("meta").device.type == "meta"
""")


def test_a_device_is_cpu_and_remains_a_device() -> None:
    run("""
import copy, pickle
cpu = torch.zeros(1).device
for made in (
    torch.device("cuda"), torch.device("cuda", 1), torch.device(type="cuda", index=0),
    torch.device(f"cuda:{torch.cuda.current_device()}"), torch.device(torch.cuda.current_device()),
):
    assert made == cpu and made.type == "cpu" and isinstance(made, torch.device), made
meta = torch.device("meta")
assert meta.type == "meta" and isinstance(meta, torch.device) and not isinstance("cpu", torch.device)
assert pickle.loads(pickle.dumps(meta)) == copy.deepcopy(meta) == meta
assert isinstance(None, torch.device | None) and torch.zeros(1, device=meta).device == meta
try:
    torch.device("nonsense")
except RuntimeError:
    pass
else:
    raise AssertionError
""")


def test_a_default_device_is_cpu_too() -> None:
    run("""
with torch.device("cuda"):
    assert torch.zeros(2).device.type == "cpu"
with torch.device("meta"):
    assert torch.zeros(2).device.type == "meta" and torch.zeros(2, device="cuda").device.type == "cpu"
torch.set_default_device("cuda")
assert torch.zeros(2).device.type == "cpu"
""")


@pytest.mark.parametrize("backward", ["torch.autograd.backward(loss)", "loss.backward()"])
def test_it_holds_in_backward_passes(backward: str) -> None:
    """NeMo-RL makes a pinned tensor there."""
    run(f"""
class Pinned(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x
    @staticmethod
    def backward(ctx, gradient):
        return gradient * torch.tensor([2.0], device="cpu", pin_memory=True).cuda()

loss = Pinned.apply(x).sum()
{backward}
assert x.grad.tolist() == [2.0, 2.0], x.grad
""")


def test_it_holds_in_threads() -> None:
    run("""
made = []
thread = threading.Thread(target=lambda: made.append(torch.zeros(2, device="cuda")))
thread.start()
thread.join()
assert made[0].device.type == "cpu"
""")


@pytest.mark.parametrize("call", ["torch.empty(2**62, device='cuda')", "torch.device('nonsense')"])
def test_what_torch_refuses_is_blamed_on_the_caller(call: str) -> None:
    """Upstream makes a rotary table of an uninitialised max_seqlen's length."""
    run(f"""
from harness.core.upstream import UNOWNED, owner_of
from harness.runtime.recording.errors import frames_of
try:
    {call}
except RuntimeError as error:
    frames = frames_of(error)
assert any("cpu_factories" in frame for frame in frames), frames
assert {{owner_of(frame) for frame in frames}} == {{UNOWNED}}, frames
""")


def test_no_factory_of_torch_is_forgotten() -> None:
    """Every operator of this torch that takes a device, by its schema."""
    schemas: Any = torch._C._jit_get_all_schemas()  # type: ignore[attr-defined]
    operators = {schema.name for schema in schemas if any(argument.name == "device" for argument in schema.arguments)}
    called = {name.removeprefix("aten::") for name in operators if name.startswith("aten::")}
    public = {name for name in called if name[0] != "_" and (hasattr(torch, name) or hasattr(torch.Tensor, name))}
    assert len(public) > 40
    # A generator, a file and pinning: upstream asks for none of them on CUDA without a guard.
    assert public - {name for _, name, _ in rows()} == {"Generator", "from_file", "is_pinned", "pin_memory"}
