"""Rules of upstream's own trainers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.core.cell.arguments import Arguments, merged
from harness.core.cell.canary_legs import legs_of
from harness.core.cell.config import CellConfig, ModelConfig, TrainConfig
from harness.core.cell.layout import Layout
from harness.core.packing.documents import DocumentsConfig, mix
from harness.core.packing.options import PackingOptions
from harness.features.experts.config import MoeConfig
from harness.features.prediction.config import MtpConfig
from harness.matrix.rules.table import rejections
from harness.matrix.rules.trainer import equal_steps
from tests.matrix.helpers import expand_axes, names

SAME = DocumentsConfig(mode="file", lengths=(16, 8, 24, 4))
MOCK = DocumentsConfig(mode="distribution", min_seq_len=4, max_seq_len=24, mean_seq_len=10, mock=True)


def cell(**more: Any) -> CellConfig:
    kept: dict[str, Any] = {"data_path": "sft", "documents": SAME, "train": TrainConfig(global_batch=4)} | more
    return CellConfig(layout=Layout(), trainer="megatron", **kept)


def test_a_trainer_reads_the_data_of_its_own_paths() -> None:
    assert rejections(cell()) == ()
    (found,) = rejections(cell(data_path="reference"))
    assert found.rule == "trainer.data-path"
    able = "unpacked, sft, inter_document, scheduler and sft_scheduler"
    assert found.reason == f"trainer is megatron, which reads the data of packing {able}, and packing is reference"


def test_several_files_are_for_a_trainer_that_blends_and_a_step_that_fills_them() -> None:
    several = cell(data_files=2, documents=mix("plain", 64, 1), train=TrainConfig())
    assert rejections(several) == ()
    (found,) = rejections(replace(several, trainer="harness"))
    assert found.rule == "trainer.files"
    assert found.reason == "data_files is 2, and trainer is harness; only megatron reads several files"
    (found,) = rejections(replace(several, data_files=8))
    assert found.reason == f"data_files is 8, and a step has {len(several.rows(0))} rows"


def test_documents_that_upstream_packs_fit_their_data_set() -> None:
    read = cell(data_path="scheduler")
    assert rejections(read) == ()
    (found,) = rejections(replace(read, layout=Layout(dp=4), train=TrainConfig(global_batch=6)))
    assert found.rule == "trainer.replicas"
    assert found.reason == "a step has 6 documents, which 4 replicas cannot read in equal numbers"
    (found,) = rejections(replace(read, documents=replace(SAME, lengths=(64, 8))))
    assert (found.rule, found.reason[:33]) == ("trainer.truncation", "document 0 of step 0 has 65 token")
    (found,) = rejections(replace(read, options=PackingOptions(pad_seq_to_mult=2)))
    assert found.rule == "trainer.padding"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"data_path": "sft"}, "only packing scheduler and sft_scheduler has mock data sets"),
        ({"documents": replace(MOCK, turns=2)}, "mock documents have no turns"),
        ({"documents": replace(MOCK, min_seq_len=1)}, "a document of one token has no label"),
        ({"train": TrainConfig(global_batch=4)}, "upstream's loader refuses a data set of no samples"),
        ({"model": ModelConfig(vocab=23)}, "token 23 of a mock document is not in model.vocab"),
    ],
)
def test_mock_documents_are_those_of_upstream_or_rejected(changed: dict[str, Any], reason: str) -> None:
    train = TrainConfig(global_batch=4, eval_interval=1)
    mock = cell(data_path="sft_scheduler", documents=MOCK, train=train)
    assert rejections(mock) == ()
    (found,) = rejections(replace(mock, **changed))
    assert found.rule == "trainer.mock" and reason in found.reason


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dynamic_context_parallel", ()),
        ("hybrid_context_parallel", ()),
        ("sequence_packing_scheduler", ("default_dynamic_cp",)),
    ],
)
def test_groups_of_context_ranks_that_change_have_no_plan(name: str, words: tuple[str, ...]) -> None:
    (found,) = rejections(cell(data_path="scheduler", args=Arguments(merged({name: words}))))
    assert found.rule == "trainer.dynamic-cp"
    assert "only Transformer Engine's takes a group per micro-batch" in found.reason
    assert rejections(cell(args=Arguments(merged({"sequence_packing_scheduler": ("dp_balanced",)})))) == ()


def test_some_data_only_a_trainer_reads() -> None:
    masked = cell(data_path="inter_document", documents=mix("plain", 64, 1), train=TrainConfig())
    assert rejections(masked) == ()
    (found,) = rejections(replace(masked, trainer="harness"))
    assert found.rule == "trainer.needed"
    assert found.reason == "trainer is harness, and only trainer megatron reads the data of packing inter_document"


def test_unpacked_rows_of_the_pretraining_data_set_have_no_masks() -> None:
    unpacked = cell(data_path="unpacked", train=TrainConfig())
    assert rejections(replace(unpacked, documents=mix("plain", 64, 1))) == ()
    (found,) = rejections(replace(unpacked, documents=mix("uncut", 64, 1)))
    assert (found.rule, found.reason[:28]) == ("trainer.masks", "document 6 of step 0 is mask")
    cut = DocumentsConfig(mode="file", lengths=(80,))
    (found,) = rejections(replace(unpacked, documents=cut))
    assert found.reason.startswith("document 0 of step 0 is truncated, and GPTDataset")
    assert rejections(replace(unpacked, documents=cut, trainer="harness")) == ()


def test_every_step_must_have_the_same_number_of_rows() -> None:
    uneven = DocumentsConfig(mode="file", lengths=(16, 8, 24, 4, 60, 60, 60, 60))
    (found,) = rejections(cell(documents=uneven))
    assert found.rule == "trainer.rows"
    assert found.reason.startswith("step 0 has 1 rows and step 1 has 4; --global-batch-size")
    own = replace(cell(documents=uneven), trainer="harness")
    assert rejections(own) == ()
    assert equal_steps(own) is None


def test_a_trainer_has_steps_to_train() -> None:
    (found,) = rejections(cell(train=TrainConfig(steps=0, global_batch=4)))
    assert found.rule == "trainer.steps"
    assert rejections(replace(cell(train=TrainConfig(steps=0, global_batch=4)), trainer="harness")) == ()


def test_skyrl_has_no_global_batch_size() -> None:
    uneven = DocumentsConfig(mode="file", lengths=(16, 8, 24, 4, 60, 60, 60, 60))
    found = rejections(replace(cell(documents=uneven, data_path="skyrl"), trainer="skyrl"))
    assert "trainer.rows" not in [rejection.rule for rejection in found]


def test_rows_of_all_steps_are_in_one_file_of_megatron_bridge() -> None:
    options = PackingOptions(pad_cu_seqlens=True, pad_to_max_length=True, metadata=True)
    own = {"data_path": "bridge_offline", "options": options, "train": TrainConfig(global_batch=2)}
    differing = replace(cell(documents=DocumentsConfig(mode="file", lengths=(16, 8, 24, 4)), **own), trainer="bridge")
    (found,) = rejections(differing)
    assert found.rule == "trainer.metadata"
    assert found.reason == "pad_cu_seqlens is true, and the longest rows and documents of step 0 and step 1 differ"
    assert rejections(replace(differing, documents=DocumentsConfig(mode="file", lengths=(16, 8)))) == ()


def test_megatron_bridge_has_one_global_batch_size() -> None:
    uneven = DocumentsConfig(mode="file", lengths=(16, 8, 24, 4, 60, 60, 60, 60))
    (found,) = rejections(replace(cell(documents=uneven, data_path="bridge_offline"), trainer="bridge"))
    assert found.reason == ("step 0 has 1 rows and step 1 has 4; TrainingConfig.global_batch_size is one for all steps")


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        ("model.rope_fusion", {"model": ModelConfig(rope_fusion=True)}),
        ("model.gathered_logits", {"model": ModelConfig(gathered_logits=True)}),
        ("model.softmax", {"model": ModelConfig(softmax="learnable")}),
        ("train.label_smoothing", {"train": TrainConfig(global_batch=4, label_smoothing=0.1)}),
    ],
)
def test_model_parts_without_flags_are_rejected(key: str, parts: dict[str, Any]) -> None:
    (found,) = rejections(cell(**parts))
    assert (found.rule, found.reason) == ("trainer.model", f"trainer megatron is not given {key}; use trainer: harness")


def test_experts_and_prediction_are_passed_to_megatrons_script_and_to_megatron_bridge() -> None:
    model = ModelConfig(moe=MoeConfig(), mtp=MtpConfig())
    assert rejections(cell(model=model)) == ()
    assert rejections(replace(cell(model=model, data_path="bridge_long"), trainer="bridge")) == ()
    found = {item.rule: item.reason for item in rejections(of_skyrl(model=model))}
    assert found["trainer.model"] == "trainer skyrl is not given model.moe; use trainer: harness"


def test_the_control_is_trained_by_the_harness() -> None:
    made = expand_axes({"packing": "sft", "trainer": ["harness", "megatron"], "tp": [1, 2]})
    assert len(names(made)) == 4
    (control,) = [cell for cell in made.cells if cell.role == "control"]
    assert control.config.trained_by_harness


def test_upstreams_trainer_runs_no_canary_leg() -> None:
    config = replace(cell(), canaries=("isolation", "order"))
    assert legs_of(replace(config, trainer="harness")) and not legs_of(config)


def test_megatron_bridge_gets_arguments_of_the_optimizer_and_fields() -> None:
    def given(name: str) -> CellConfig:
        args = Arguments(merged({name: ("1",)}))
        return replace(cell(data_path="bridge_offline", args=args), trainer="bridge")

    assert rejections(given("clip_grad")) == ()
    (found,) = rejections(given("log_interval"))
    assert found.rule == "trainer.args"
    what = "only arguments of the optimizer and fields of its configuration"
    assert found.reason == f"trainer is bridge, which gets {what}, not --log-interval=1"
    assert rejections(given("ddp.overlap_grad_reduce")) == ()


@pytest.mark.parametrize(
    ("trainer", "what"),
    [
        ("megatron", "any argument of the command line"),
        ("harness", "only arguments of the optimizer"),
    ],
)
def test_only_megatron_bridge_gets_fields_of_a_configuration(trainer: str, what: str) -> None:
    config = replace(cell(args=Arguments(merged({"ddp.bucket_size": ("7",)}))), trainer=trainer)
    (found,) = rejections(config)
    assert (found.rule, found.reason) == (
        "trainer.args",
        f"trainer is {trainer}, which gets {what}, not ddp.bucket_size=7",
    )


def of_skyrl(**more: Any) -> CellConfig:
    own = {"data_path": "skyrl", "distributed_optimizer": "on", "micro_batch_size": 2}
    return replace(cell(), **own | {"trainer": "skyrl"} | more)


def test_skyrls_worker_shards_the_optimizer_packs_and_neither_evaluates_nor_interleaves() -> None:
    assert rejections(of_skyrl()) == ()
    (found,) = rejections(of_skyrl(distributed_optimizer="off"))
    assert found.rule == "trainer.skyrl-optimizer"
    assert found.reason.startswith("distributed_optimizer is off, and SkyRL's worker always shards")
    (found,) = rejections(of_skyrl(options=PackingOptions(remove_microbatch_padding=False)))
    assert found.rule == "trainer.skyrl-packing"
    (found,) = rejections(of_skyrl(options=PackingOptions(calculate_per_token_loss=False)))
    assert found.rule == "loss.skyrl-means"
    (found,) = rejections(of_skyrl(train=replace(of_skyrl().train, eval_interval=1)))
    assert found.rule == "trainer.skyrl-evaluation"
    (found,) = rejections(of_skyrl(layout=Layout(pp=2, vpp=2), micro_batch_size=1))
    assert (found.rule, found.reason) == (
        "trainer.skyrl-vpp",
        "vpp is 2, and SkyRL's worker creates process groups without a virtual size, so no schedule interleaves",
    )
    others = {"distributed_optimizer": "off", "layout": Layout(pp=2, vpp=2), "micro_batch_size": 1}
    assert rejections(of_skyrl(trainer="harness", **others)) == ()


def test_documents_of_a_step_fill_whole_micro_batches_of_skyrls_worker() -> None:
    found = [item.rule for item in rejections(of_skyrl(micro_batch_size=3))]
    assert found == ["batch.rows-by-replicas"]


def test_trainers_that_pack_other_rows_do_not_share_the_rules_of_rows() -> None:
    matrix = {"packing": "skyrl", "trainer": ["skyrl", "harness"], "micro_batch_size": 3, "distributed_optimizer": "on"}
    made = expand_axes(matrix)
    assert [cell.axes["trainer"] for cell in made.rejected] == ["skyrl"]
    assert [cell.config.trainer for cell in made.cells if cell.role == "cell"] == ["harness"]


def ends_labelled(data_path: str, trainer: str, *lengths: int) -> dict[str, str]:
    config = cell(
        data_path=data_path,
        documents=DocumentsConfig(mode="file", lengths=lengths),
        train=TrainConfig(steps=1, global_batch=len(lengths), eod_mask_loss=False),
    )
    config = replace(config, trainer=trainer)
    return {item.rule: item.reason for item in rejections(config)}


def test_ends_of_documents_are_labelled_where_documents_fill_their_rows() -> None:
    assert ends_labelled("inter_document", "megatron", 20, 44, 2, 62) == {}
    assert ends_labelled("unpacked", "harness", 20, 44) == {}
    padded = ends_labelled("inter_document", "megatron", 20, 44, 30, 33)
    assert "row 1 of step 0 has padding, whose labels would count" in padded["trainer.ends"]
    assert "document 1 of step 0 has no token" in ends_labelled("inter_document", "megatron", 63, 1)["trainer.ends"]
    assert "only packing inter_document with trainer megatron" in ends_labelled("sft", "megatron", 63)["trainer.ends"]
