"""Small sizes with the structure of the run."""

from typing import Any

import pytest

from harness.core.cell.config import CellConfig, ModelConfig
from harness.core.cell.layout import Layout
from harness.features.experts.layers import frequency as checked
from harness.features.experts.layers import with_experts
from harness.features.prediction.config import MtpConfig
from harness.matrix.intake.shrink import Shrunk, shrink
from harness.matrix.rules.packing import layers_by_pp, stages_by_pp

RUN: dict[str, Any] = {
    "tp": 4,
    "pp": 4,
    "cp": 2,
    "dp": 16,
    "sp": True,
    "model.layers": 32,
    "model.hidden": 4096,
    "model.heads": 32,
    "model.kv_heads": 8,
    "model.ffn": 14336,
    "train.seq_length": 8192,
    "train.global_batch": 64,
    "dtype": "bf16",
}


def shrunk(most_ranks: int = 8, **changes: Any) -> Shrunk:
    return shrink({**RUN, **{name.replace("__", "."): value for name, value in changes.items()}}, most_ranks)


def test_the_layout_is_kept_but_for_replicas() -> None:
    assert shrunk().layouts[0] == {"tp": 4, "pp": 4, "cp": 2, "dp": 2, "sp": True}


def test_heads_keep_their_proportion_and_are_split_by_tp() -> None:
    keys = shrunk().keys
    assert (keys["model.kv_heads"], keys["model.heads"], keys["model.hidden"]) == (4, 16, 128)


def test_fewer_groups_than_tp_are_kept() -> None:
    assert shrunk(model__kv_heads=2).keys["model.kv_heads"] == 2


def test_each_chunk_has_a_layer() -> None:
    assert shrunk(vpp=2).keys["model.layers"] == 8


def test_experts_are_the_least_that_ep_divides_and_topk_needs() -> None:
    keys = shrunk(ep=4, model__moe__experts=128, model__moe__topk=6).keys
    assert (keys["model.moe.experts"], keys["model.moe.topk"]) == (12, 6)


@pytest.mark.parametrize(
    ("frequency", "layout", "small"),
    [
        ("[0]*3+[1]*29", {}, "[0,1,1,1]"),
        ("[0,1]*16", {}, "[0,1,0,1]"),
        ("4", {}, "[1,0,1,0]"),
        ("[0]*3+[1]*29", {"pp": 1}, "[0,1]"),
        ("[0]*3+[1]*29", {"last_stage_layers": 5}, "[0,1,1,1,1,1,1]"),
        ("1", {}, "1"),
    ],
)
def test_dense_layers_and_layers_with_experts_follow_each_other_as_in_the_run(
    frequency: str, layout: dict[str, Any], small: str
) -> None:
    keys = shrunk(model__moe__experts=128, model__moe__layer_freq=checked(frequency), **layout).keys
    assert keys["model.moe.layer_freq"] == small
    assert len(with_experts(small, keys["model.layers"])) == keys["model.layers"]


def test_replicas_are_as_many_as_experts_need() -> None:
    assert shrunk(ep=32, model__moe__experts=128, model__moe__topk=2).layouts[0]["dp"] == 16


@pytest.mark.parametrize("most_ranks", [1, 2, 4, 8, 16])
def test_smaller_layouts_fit(most_ranks: int) -> None:
    assert all(Layout(**layout).world_size <= most_ranks for layout in shrunk(most_ranks).layouts[1:])


def test_smaller_layouts_have_all_dimensions_and_a_middle_stage() -> None:
    sizes = [(layout["tp"], layout["pp"], layout["cp"]) for layout in shrunk().layouts[1:]]
    assert sizes == [(2, 2, 2), (2, 4, 1)]


def test_a_layout_that_fits_has_no_smaller_ones() -> None:
    assert len(shrunk(tp=1, pp=1, cp=2, dp=2, sp=False).layouts) == 1


def test_changes_and_what_is_kept_together_are_the_whole_run() -> None:
    result = shrunk()
    assert "model.layers 32 -> 4" in map(str, result.changes)
    assert "dp 16 -> 1" in map(str, result.changes)
    named = {text.split()[0] for text in (*map(str, result.changes), *result.kept)}
    assert set(RUN) <= named


def test_a_layout_too_large_for_this_machine_is_not_kept() -> None:
    result = shrunk()
    assert {"tp 4 -> 2", "pp 4 -> 2 and 4", "cp 2 -> 2 and 1"} <= {*map(str, result.changes)}
    assert "tp 4" in shrunk(most_ranks=128).kept


def test_what_the_run_does_not_say_is_not_kept() -> None:
    assert "model.vocab" not in " ".join(shrunk().kept)
    assert "model.vocab 128" in shrunk(model__vocab=128).kept


@pytest.mark.parametrize(("multiple", "small"), [(64, 16), (8, 8)])
def test_documents_side_by_side_fit_into_a_row_whatever_they_are_padded_to(multiple: int, small: int) -> None:
    packed = {"packing_options.pad_seq_to_mult": multiple, "packing_options.max_tokens_per_microbatch": 16384}
    keys = shrink({**RUN, "tp": 1, "sp": False, "cp": 4, **packed}, 128).keys
    assert keys["packing_options.pad_seq_to_mult"] == small
    assert keys["packing_options.max_tokens_per_microbatch"] == 2 * keys["train.seq_length"]


@pytest.mark.parametrize(
    ("given", "scaled", "layers"),
    [
        ({"first_stage_layers": 5, "last_stage_layers": 7}, {"first_stage_layers": 1, "last_stage_layers": 1}, 6),
        ({"last_stage_layers": 11, "vpp": 1}, {"last_stage_layers": 2}, 5),
        ({"embedding_as_layer": True, "loss_as_layer": True}, {"embedding_as_layer": True, "loss_as_layer": True}, 6),
        ({"stages": "Et*7|t*8|t*8m|t*9L"}, {"stages": "Et|t|tm|ttL"}, 5),
    ],
)
def test_stages_of_unequal_size_are_scaled_and_fit_in_every_layout(
    given: dict[str, Any], scaled: dict[str, Any], layers: int
) -> None:
    result = shrunk(model__layers=32, **given)
    assert {name: result.layouts[0][name] for name in scaled} == scaled
    assert result.keys["model.layers"] == layers
    for layout in result.layouts:
        mtp = MtpConfig() if "m" in (layout.get("stages") or "") else None
        model = ModelConfig(layers=layers, mtp=mtp)
        config = CellConfig(layout=Layout(**layout), data_path="unpacked", model=model)
        assert (layers_by_pp(config), stages_by_pp(config)) == (None, None)


def test_a_schedule_warms_up_and_decays_within_the_steps() -> None:
    keys = shrunk(train__lr_warmup_iters=50, train__lr_decay_iters=2000, train__lr_decay_style="cosine").keys
    schedule = [keys[f"train.{name}"] for name in ("lr_warmup_iters", "lr_decay_iters", "lr_decay_style")]
    assert schedule == [1, None, "cosine"]


@pytest.mark.parametrize("given", [{"pp": 3}, {"pp": 6, "vpp": 2}, {"pp": 6, "vpp": 2, "first_stage_layers": 2}])
def test_layouts_have_the_same_axes_and_split_the_layers(given: dict[str, Any]) -> None:
    result = shrunk(**given)
    assert len({tuple(row) for row in result.layouts}) == 1
    for row in result.layouts:
        model = ModelConfig(layers=result.keys["model.layers"])
        assert layers_by_pp(CellConfig(layout=Layout(**row), data_path="unpacked", model=model)) is None


def test_experts_have_as_many_ranks_as_they_need() -> None:
    assert shrunk(dp=1, cp=1, ep=8, etp=1, model__moe__experts=128).layouts[0]["dp"] == 2


def test_expert_sizes_of_a_model_without_experts_are_dropped() -> None:
    assert "etp" not in shrunk(etp=1).layouts[0]
