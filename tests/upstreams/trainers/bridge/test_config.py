"""A cell as keywords of upstream's configuration classes, which are not installed here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from harness.core.cell.arguments import Arguments, merged
from harness.core.cell.axes import axes, dotted, with_value
from harness.core.cell.config import CellConfig
from harness.core.packing.documents import mix
from harness.matrix.rules.table import rejections
from harness.probe.truth import StepTruth
from harness.runtime.device.placement import choose_device
from harness.upstreams.megatron_bridge.node_config import container
from harness.upstreams.megatron_bridge.node_offline import write_documents
from harness.upstreams.node_tokenizer import text
from tests.runtime.conftest import config
from tests.upstreams.trainers.megatron.test_flags import OTHER_VALUES

CPU = choose_device(0, 1, "cpu")
CLASSES = {
    "megatron.bridge.training.config": (
        "ConfigContainer",
        "TrainingConfig",
        "ValidationConfig",
        "OptimizerConfig",
        "SchedulerConfig",
        "DistributedDataParallelConfig",
        "DistributedInitConfig",
        "RNGConfig",
        "CheckpointConfig",
        "LoggerConfig",
    ),
    "megatron.bridge.training.tokenizers.config": ("TokenizerConfig",),
    "megatron.bridge.models.gpt_provider": ("GPTModelProvider",),
    "megatron.bridge.peft.lora": ("LoRA",),
    "megatron.bridge.data.builders.gpt_sft": ("GPTSFTDatasetConfig",),
    "megatron.bridge.data.packing.config": ("PackedSequenceSpecs",),
}


class Fields(SimpleNamespace):
    """A configuration of upstream with whatever fields it is given."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)


@pytest.fixture(autouse=True)
def classes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules whose classes keep the keywords that they get."""
    for name, known in CLASSES.items():
        module = ModuleType(name)
        vars(module).update(dict.fromkeys(known, Fields), local_layer_spec="local")
        for parent in (name.rsplit(".", count)[0] for count in range(name.count(".") - 1, 0, -1)):
            if parent not in sys.modules:
                monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
        monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(sys.modules[name.rpartition(".")[0]], name.rpartition(".")[2], module, raising=False)
    yield


def made(cell: CellConfig) -> Any:
    return container(cell, Path("/data"), CPU)


def plain() -> CellConfig:
    return replace(config("bridge_offline"), trainer="bridge", documents=mix("uncut", 64, 2))


def test_it_holds_data_layout_and_optimizer() -> None:
    cell = replace(plain(), distributed_optimizer="on")
    found = made(cell)
    assert found.model.transformer_layer_spec == "local"
    assert found.dataset.offline_packing_specs.packed_train_data_path == Path("/data/rows.idx.parquet")
    assert found.tokenizer.tokenizer_model == "/data/tokenizer"
    assert found.train.global_batch_size == len(cell.rows(0))
    assert found.optimizer.use_distributed_optimizer and found.ddp.use_distributed_optimizer
    assert (found.dist.distributed_backend, found.optimizer.clip_grad) == ("gloo", 0.0)


def test_upstreams_loader_keeps_its_defaults() -> None:
    assert not hasattr(made(plain()).dataset, "dataloader_type")
    assert not hasattr(made(plain()).model, "variable_seq_lengths")


COSINE = replace(config().train, lr_decay_style="cosine", lr_warmup_iters=1, min_lr=1e-4)


@pytest.mark.parametrize(
    ("changes", "where", "wanted"),
    [
        ({"distributed_optimizer": "overlap"}, "ddp", {"overlap_grad_reduce": True, "overlap_param_gather": True}),
        ({"distributed_optimizer": "overlap"}, "optimizer", {"overlap_param_gather": True}),
        ({"train": COSINE}, "scheduler", {"lr_decay_style": "cosine", "lr_warmup_iters": 1, "end_weight_decay": 0.01}),
        ({"train": COSINE}, "optimizer", {"lr": 0.001, "min_lr": 1e-4}),
        ({"recompute": "full"}, "model", {"recompute_granularity": "full", "recompute_num_layers": 1}),
        ({"dtype": "bf16"}, "model", {"bf16": True, "pipeline_dtype": torch.bfloat16}),
        ({"dtype": "bf16"}, "optimizer", {"bf16": True, "params_dtype": torch.bfloat16}),
    ],
)
def test_an_axis_is_a_field(changes: dict[str, Any], where: str, wanted: dict[str, Any]) -> None:
    found = vars(getattr(made(replace(plain(), **changes)), where))
    assert {name: found[name] for name in wanted} == wanted


def test_arguments_of_the_optimizer_are_fields() -> None:
    given = Arguments(merged({"clip_grad": ("0.5",), "weight_decay": ("0.1",)}))
    found = made(replace(plain(), args=given))
    assert (found.optimizer.clip_grad, found.optimizer.weight_decay) == (0.5, 0.1)
    assert (found.scheduler.start_weight_decay, found.scheduler.end_weight_decay) == (0.1, 0.1)


def test_transformer_engine_has_upstreams_default_layers() -> None:
    assert not hasattr(made(replace(plain(), attention="te", dtype="bf16")).model, "transformer_layer_spec")


VALUES = OTHER_VALUES | {"packing": "sft", "documents": "adversarial", "pad_to_max_length": True}


def asked_of_upstream(cell: CellConfig, folder: Path) -> tuple[str, list[str]]:
    written = []
    for step in range(cell.train.steps):
        write_documents(folder, StepTruth(cell, step, 0), text)
        written.append((folder / "training.jsonl").read_text())
    return repr(made(cell)), written


@pytest.mark.parametrize("name", VALUES)
def test_no_axis_is_dropped_in_silence(name: str, tmp_path: Path) -> None:
    """Each changes the configuration or the data, or a rule rejects the cell."""
    axis = (axes() | dotted())[name]
    if name == "documents":
        changed = replace(plain(), documents=mix("adversarial", 64, 2))
    else:
        changed = with_value(plain(), axis, VALUES[name])
    assert rejections(changed) or asked_of_upstream(changed, tmp_path) != asked_of_upstream(plain(), tmp_path)
