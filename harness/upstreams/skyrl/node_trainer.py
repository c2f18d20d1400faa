"""`skyrl`: SkyRL's Megatron policy worker, called as its SFT trainer calls it, in ranks that the harness has forked.

Each rank makes a MegatronPolicyWorkerBase, the class that SkyRL makes a Ray actor of; Ray is imported, but not started.
torch.distributed is initialised already, which upstream allows (`init_worker_process_group`). node_attach.py observes
the worker from outside, node_config.py writes the model folder that it reads, node_documents.py makes its batches.
"""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from harness.core.cell.config import CellConfig
from harness.runtime.device import trainer_stubs
from harness.runtime.device.placement import barrier
from harness.runtime.recording.recorder import Recorder
from harness.upstreams.node_base import RankContext
from harness.upstreams.node_lookup import Unavailable, module_unavailable, not_in_release, release
from harness.upstreams.node_wrappers import use_own_layers
from harness.upstreams.skyrl.node_attach import HOME, Attached
from harness.upstreams.skyrl.node_config import trainer_config, write_files
from harness.upstreams.skyrl.node_documents import batch_of

_WORKER = f"{HOME}.workers.megatron.megatron_worker"


class SkyrlTrainer:
    """Serves one rank."""

    def __init__(self, context: RankContext, recorder: Recorder) -> None:
        self.context, self.recorder = context, recorder

    @staticmethod
    def unavailable(config: CellConfig) -> Unavailable:
        os.environ["HF_HUB_OFFLINE"] = "1"  # read when the packages are imported
        if missing := module_unavailable("megatron.bridge.peft.utils", "megatron.bridge"):
            return missing
        _complete_bridge()
        for module in (_WORKER, "skyrl.train.dataset.collators", "skyrl.train.sft_trainer"):
            if missing := module_unavailable(module, "skyrl"):
                return missing
        worker = vars(importlib.import_module(_WORKER)).get("MegatronPolicyWorkerBase")
        needed = ("init_model", "forward_backward", "optim_step", "get_lr")
        absent = [name for name in needed if not hasattr(worker, name)]
        reason = f"{release('skyrl')} has no MegatronPolicyWorkerBase.{absent[0]}" if absent else ""
        return not_in_release(reason, "skyrl") if absent else None

    def run(self) -> None:
        config, folder = self.context.config, self.context.folder / "data"
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"  # required by Megatron with tp or cp on older GPUs
        if self.context.is_rank_zero:
            write_files(folder, config)
        barrier(self.context.device)
        self.recorder.progress("training", 0, 0, "setup")  # from here on, exceptions come from the code under test
        if self.context.device.kind == "cpu":
            self.recorder.record.cpu_stubs += trainer_stubs.install()
        use_own_layers(config)
        attached = Attached(self.context, self.recorder)
        with redirect_stdout(sys.stderr):
            worker = self._worker(folder)
            attached.built(worker.actor_module, worker.optimizer)
            for step in range(config.train.steps):
                attached.train(worker, batch_of(config, step, worker))

    def _worker(self, folder: Path) -> Any:
        local_rank = os.environ["LOCAL_RANK"]
        worker = importlib.import_module(_WORKER).MegatronPolicyWorkerBase(
            cfg=trainer_config(self.context.config, self.context.device),
            world_size=int(os.environ["WORLD_SIZE"]),
            rank=int(os.environ["RANK"]),
            local_rank=int(local_rank),
            master_addr=os.environ["MASTER_ADDR"],
            master_port=os.environ["MASTER_PORT"],
            # SkyRL's own sequence parallelism (Ulysses) for its FSDP worker, not Megatron's.
            sequence_parallel_size=1,
        )
        os.environ["LOCAL_RANK"] = local_rank  # the worker sets 0, since Ray shows each actor one GPU
        worker.init_worker_process_group()
        worker.init_model(str(folder), self.context.config.train.steps)
        return worker


def _complete_bridge() -> None:
    """Add the two functions that SkyRL 0.4.0 imports and no release of Megatron-Bridge has, up to 0.6.2.

    They concern LoRA on experts. Without it the first one does nothing, and the second one is Megatron's.
    """
    utils: Any = importlib.import_module("megatron.bridge.peft.utils")
    finalize: Any = importlib.import_module("megatron.core.distributed").finalize_model_grads
    absent = {
        "enable_expert_parallel_grad_sync_in_finalize": lambda model: None,
        "finalize_model_grads_with_expert_adapter_sync": finalize,
    }
    for name, function in absent.items():
        if not hasattr(utils, name):
            setattr(utils, name, function)
