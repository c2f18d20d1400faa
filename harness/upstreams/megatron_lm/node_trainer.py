"""`megatron`: pretrain_gpt.py or pretrain_hybrid.py of a Megatron-LM checkout, run as a script, nothing edited.

Each rank runs it as torchrun would, with the cell as its command line. node_attach.py observes it from outside,
node_files.py writes what it reads. torch.distributed is initialised already, which upstream allows
(`_initialize_distributed`).
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from contextlib import redirect_stdout
from typing import Any

from harness.core.cell.config import CellConfig
from harness.core.outcomes import Missing
from harness.runtime.device import trainer_stubs
from harness.runtime.device.placement import barrier
from harness.runtime.recording.recorder import Recorder
from harness.upstreams.megatron_lm import node_sft_checkout
from harness.upstreams.megatron_lm.node_attach import Attached
from harness.upstreams.megatron_lm.node_files import HELPERS, write_files
from harness.upstreams.megatron_lm.node_flags import flags, use_own_hybrid_layers
from harness.upstreams.megatron_lm.node_scheduler import schedules
from harness.upstreams.node_base import RankContext
from harness.upstreams.node_lookup import Unavailable, is_installed, module_unavailable, not_in_release, release
from harness.upstreams.node_wrappers import use_own_layers

_PACKAGES = ("datasets", "psutil", "transformers")  # that upstream imports, and does not bring
_NEEDED = ("megatron.training.training", *_PACKAGES, "tokenizers")


class MegatronTrainer:
    """Serves one rank."""

    def __init__(self, context: RankContext, recorder: Recorder) -> None:
        self.context, self.recorder = context, recorder

    @staticmethod
    def unavailable(config: CellConfig) -> Unavailable:
        if missing := node_sft_checkout.no_script(config):
            return missing
        if lacking := [name for name in _PACKAGES if not is_installed(name)]:
            how = "not in this stack, but upstream's trainer imports them; add them to `packages` of the stack"
            return Missing(reason=f"{', '.join(lacking)}: {how}")
        os.environ["HF_HUB_OFFLINE"] = "1"  # read when the packages are imported
        for module in _NEEDED:
            if missing := module_unavailable(module, module.partition(".")[0]):
                return missing
        return _without_data_set(config)

    def run(self) -> None:
        config, folder = self.context.config, self.context.folder / "data"
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"  # required by validate_args with tp or cp
        datasets: Any = importlib.import_module("datasets")
        datasets.config.HF_DATASETS_CACHE = folder / "cache"  # else one folder per cell stays in the user's cache
        if self.context.is_rank_zero:
            write_files(folder, config)
        barrier(self.context.device)
        self.recorder.progress("training", 0, 0, "setup")  # from here on, exceptions come from the code under test
        training: Any = importlib.import_module("megatron.training.training")
        if self.context.device.kind == "cpu":
            self.recorder.record.cpu_stubs += trainer_stubs.install()
        use_own_layers(config)
        use_own_hybrid_layers(config)
        # Before the script runs, which imports names from this module and calls them there.
        Attached(training, self.context, self.recorder)
        arguments = flags(config, folder, self.context.device)
        with node_sft_checkout.command_line(arguments), redirect_stdout(sys.stderr):
            # As a script: what stands under `if __name__ == "__main__"` is upstream's, and is under test.
            runpy.run_path(f"{node_sft_checkout.find()}/{node_sft_checkout.script(config)}.py", run_name="__main__")


def _without_data_set(config: CellConfig) -> Unavailable:
    """Return why the data set's helpers are missing: upstream compiles them into the checkout, which cells share, when
    it starts; so they must be there.
    """
    if config.path.scheduled and not schedules():
        return not_in_release(f"{release('megatron.core')} has no --sequence-packing-scheduler", "megatron.core")
    if config.path.chats and config.data_files == 1:
        return None
    if config.data_path == "inter_document" and not _masks_between_documents():
        reason = f"{release('megatron.core')} has no --dataloader-inter-document-masking"
        return not_in_release(reason, "megatron.core")
    try:
        importlib.import_module(HELPERS)
    except ImportError as error:
        need = "a blend" if config.path.chats else f"packing {config.data_path}"
        how = "add `setup` to the checkout as matrices/trainer.yaml does"
        return Missing(reason=f"{need} needs {HELPERS}, which this checkout has not compiled ({error}); {how}")
    return None


def _masks_between_documents() -> bool:
    upstream: Any = importlib.import_module("megatron.core.datasets.gpt_dataset")
    return hasattr(upstream.GPTDatasetConfig, "inter_document_masking")
