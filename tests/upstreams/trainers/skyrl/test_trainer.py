"""What the trainer needs of a stack."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from harness.core.outcomes import Missing
from harness.upstreams.skyrl.node_trainer import SkyrlTrainer
from tests.runtime.conftest import config
from tests.upstreams.data_paths.test_table import fact

WORKER = "skyrl.backends.skyrl_train.workers.megatron.megatron_worker"
MODULES = (WORKER, "skyrl.train.dataset.collators", "skyrl.train.sft_trainer", "megatron.bridge.peft.utils")


@pytest.fixture
def utils(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Empty modules of SkyRL and Megatron-Bridge; returns the latter's."""
    for module in MODULES:
        parts = module.split(".")
        for name in (".".join(parts[: end + 1]) for end in range(len(parts))):
            if name not in sys.modules:
                monkeypatch.setitem(sys.modules, name, ModuleType(name))
    return sys.modules[MODULES[-1]]


def test_without_megatron_bridge_it_is_named() -> None:
    found = SkyrlTrainer.unavailable(config("skyrl"))
    assert isinstance(found, Missing)
    assert "megatron-bridge is not installed" in found.reason


def test_a_release_without_such_a_worker_is_named(utils: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    older = SimpleNamespace(init_model=print, ppo_train=print)
    monkeypatch.setattr(sys.modules[WORKER], "MegatronPolicyWorkerBase", older, raising=False)
    assert "has no MegatronPolicyWorkerBase.forward_backward" in fact(SkyrlTrainer.unavailable(config("skyrl")))


def test_functions_that_megatron_bridge_lacks_are_added(utils: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from megatron.core.distributed import finalize_model_grads

    whole = dict.fromkeys(("init_model", "forward_backward", "optim_step", "get_lr"), print)
    monkeypatch.setattr(sys.modules[WORKER], "MegatronPolicyWorkerBase", SimpleNamespace(**whole), raising=False)
    assert SkyrlTrainer.unavailable(config("skyrl")) is None
    assert utils.enable_expert_parallel_grad_sync_in_finalize([]) is None
    assert utils.finalize_model_grads_with_expert_adapter_sync is finalize_model_grads


def test_functions_that_megatron_bridge_has_are_kept(utils: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utils, "enable_expert_parallel_grad_sync_in_finalize", max, raising=False)
    SkyrlTrainer.unavailable(config("skyrl"))
    assert utils.enable_expert_parallel_grad_sync_in_finalize is max
