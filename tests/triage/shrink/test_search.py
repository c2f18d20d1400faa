"""The search for the smallest cell, with predicates in place of training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.cell.arguments import Arguments, merged
from harness.core.cell.config import CANARIES, CellConfig, TrainConfig
from harness.core.cell.layout import Layout
from harness.core.cell.model import ModelConfig
from harness.core.cell.timing import TimingConfig
from harness.core.outcomes import Finding, Lane
from harness.core.packing.documents import DocumentsConfig, adversarial_mix, mix
from harness.features.experts.config import MoeConfig
from harness.features.prediction.config import MtpConfig
from harness.features.vision.config import VisionConfig
from harness.matrix.rules.table import rejections
from harness.triage.shrink.search import (
    Answer,
    Answers,
    Kind,
    Round,
    Smallest,
    changes,
    described,
    minimal_cell,
    needs_lines,
    normalized,
    reductions,
    search,
    size_of,
    smallest_text,
)

Predicate = Callable[[CellConfig], bool]
PASSES, SAME = Answer(kind=Kind.PASSES, text="passes"), Answer(kind=Kind.SAME, text="fails the same way")
BIG = CellConfig(
    layout=Layout(tp=2, pp=4, cp=2, sp=True),
    data_path="sft",
    documents=adversarial_mix(64, 2),
    variant="seq_length64",
)


def shrunk(start: CellConfig, fails: Predicate, most_rounds: int = 200) -> tuple[Smallest, dict[CellConfig, bool]]:
    """The result of a search, and every cell that it ran."""
    ran: dict[CellConfig, bool] = {}

    def answers(requested: Round) -> Answers:
        assert not ran.keys() & set(requested), "a cell is run twice"
        ran.update({config: fails(config) for config in requested})
        return {config: SAME if ran[config] else PASSES for config in requested}

    searching = search(start, most_rounds)
    given_: Mapping[CellConfig, Answer] | None = None
    while True:
        try:
            requested = next(searching) if given_ is None else searching.send(given_)
        except StopIteration as ended:
            return ended.value, ran
        given_ = answers(requested)


def lengths(config: CellConfig) -> list[int]:
    return [document.original_length for document in config.documents_of(0)]


def test_arguments_that_do_not_matter_are_removed() -> None:
    given = merged({"clip_grad": ("0.5",), "weight_decay": ("0.1",), "adam_eps": ("1e-6",)})
    smallest, _ = shrunk(replace(BIG, args=Arguments(given)), lambda config: config.args.of("clip_grad") is not None)
    assert smallest.config is not None
    assert smallest.config.args.flags() == ["--clip-grad=0.5"]
    smallest, _ = shrunk(replace(BIG, args=Arguments(given)), lambda config: True)
    assert smallest.config is not None
    assert smallest.config.args == Arguments()


def test_ranks_documents_layers_and_steps_that_do_not_matter_are_removed() -> None:
    smallest, ran = shrunk(BIG, lambda config: config.layout.tp >= 2 and config.layout.pp >= 3)
    assert smallest.config is not None
    assert smallest.config.layout == Layout(tp=2, pp=3)
    assert smallest.config.model.layers == 3
    assert lengths(smallest.config) == [1]
    assert smallest.config.train.steps == 1
    assert smallest.minimal
    assert smallest.tried == len(ran)


def test_needs_are_listed_with_what_happens_without_them() -> None:
    smallest, _ = shrunk(BIG, lambda config: config.layout.tp >= 2 and config.layout.pp >= 3)
    assert needs_lines(smallest) == [
        "needs tp >= 2 and pp >= 3: with tp 1 it passes; with pp 2 it passes",
    ]


def test_documents_that_trigger_the_failure_are_kept() -> None:
    smallest, _ = shrunk(BIG, lambda config: {19, 73} <= set(lengths(config)) and config.train.seq_length == 64)
    assert smallest.config is not None
    assert smallest.config.documents == DocumentsConfig(mode="file", lengths=(19, 73))
    assert smallest.config.train.global_batch == 2
    assert smallest.config.layout == Layout()
    assert described(smallest.config) == (
        "tp1-pp1-cp1-sft: 1 rank, 1 layer, 2 documents (lengths 19, 73), rows of 64, 1 step"
    )


def test_parts_of_the_model_and_options_that_do_not_matter_are_removed() -> None:
    model = ModelConfig(moe=MoeConfig(aux_loss="aux_loss"), mtp=MtpConfig(), tied=True)
    start = replace(BIG, data_path="reference", model=model, dtype="bf16", micro_batch_size=2)
    smallest, _ = shrunk(start, lambda config: config.model.balanced)
    assert smallest.config is not None
    assert smallest.config.model == ModelConfig(layers=1, moe=MoeConfig(aux_loss="aux_loss"))
    assert (smallest.config.dtype, smallest.config.micro_batch_size) == ("fp32", 1)
    assert needs_lines(smallest) == [
        "needs moe moe4x2-aux_loss: with moe moe4x2 it passes",
    ]


def test_a_mix_whose_masks_matter_stays_a_mix() -> None:
    smallest, _ = shrunk(BIG, lambda config: any(document.masked for document in config.documents_of(0)))
    assert smallest.config is not None
    assert smallest.config.documents.mode == "adversarial"
    assert len(lengths(smallest.config)) == 7


@pytest.mark.parametrize("turns", [1, 3])
def test_documents_keep_their_turns_only_if_they_matter(turns: int) -> None:
    talked = replace(BIG, documents=mix("multi_turn", 64, 2))
    smallest, _ = shrunk(talked, lambda config: config.documents.turns >= turns)
    assert smallest.config is not None
    assert smallest.config.documents == DocumentsConfig(mode="file", lengths=(1,), turns=turns)


def test_a_finding_that_does_not_reproduce_ends_the_search() -> None:
    smallest, ran = shrunk(BIG, lambda config: False)
    assert smallest.config is None
    assert smallest.rounds == 1
    assert normalized(BIG) in ran
    assert "did not reproduce" in smallest_text(smallest, "smallest.yaml")


def test_the_number_of_rounds_can_be_limited() -> None:
    smallest, _ = shrunk(BIG, lambda config: config.layout.pp >= 3, most_rounds=1)
    assert smallest.config is not None
    assert not smallest.minimal
    assert needs_lines(smallest) == ["it may not be the smallest: the limit of rounds was reached"]


def test_a_smaller_cell_that_cannot_be_judged_is_not_chosen() -> None:
    searching = search(BIG, 50)
    requested = next(searching)
    try:
        while True:
            usable = {config: config.layout.tp == 2 for config in requested}
            unusable = Answer(kind=Kind.UNUSABLE, text="cannot be judged: no torch")
            requested = searching.send({config: SAME if usable[config] else unusable for config in requested})
    except StopIteration as ended:
        smallest: Smallest = ended.value
    assert smallest.config is not None
    assert smallest.config.layout == Layout(tp=2)
    assert needs_lines(smallest) == ["tp >= 2: with tp 1 it cannot be judged: no torch"]


def test_changes_as_text() -> None:
    before = normalized(replace(BIG, layout=Layout(pp=4)))
    assert before is not None
    (after,) = [item.config for item in reductions(before) if item.dimension.name == "pp" and item.to == 3]
    assert changes(before, after) == ("layers 4 -> 3", "pp 4 -> 3")


@pytest.mark.parametrize(
    ("lane", "check", "where", "canaries"),
    [
        (Lane.METADATA, "params_present", {"leg": "metadata"}, ()),
        (Lane.NUMERICS, "document_loss", {}, ()),
        (Lane.NUMERICS, "isolation", {"leg": "isolation-middle"}, ("isolation",)),
        (Lane.NUMERICS, "repetition", {}, ("repetition",)),
        (Lane.NUMERICS, "ended", {"leg": "order"}, ("order",)),
    ],
)
def test_only_the_canary_of_the_finding_is_kept(
    lane: Lane, check: str, where: dict[str, str], canaries: tuple[str, ...]
) -> None:
    finding = Finding(lane=lane, check=check, message="", where=where)
    assert minimal_cell(replace(BIG, canaries=CANARIES), finding, 1.0).canaries == canaries


def test_timing_is_kept_only_for_a_finding_of_its_lane() -> None:
    timed = replace(BIG, timing=TimingConfig(documents=(4, 16), turns="pair"))
    slow, wrong = (Finding(lane=lane, check="c", message="") for lane in (Lane.THROUGHPUT, Lane.NUMERICS))
    assert minimal_cell(timed, slow, 1.0).timing == TimingConfig(documents=(4, 16))
    assert minimal_cell(timed, wrong, 1.0).timing == TimingConfig()


@pytest.mark.parametrize(("took", "deadline"), [(1.0, 30.0), (20.0, 80.0), (100.0, 120.0), (120.5, 60.0)])
def test_the_deadline_of_tried_cells_follows_from_the_time_the_cell_took(took: float, deadline: float) -> None:
    finding = Finding(lane=Lane.NUMERICS, check="ended", message="")
    assert minimal_cell(BIG, finding, took).deadline_s == deadline


def test_rows_get_shorter_with_their_documents() -> None:
    start = replace(BIG, layout=Layout(), documents=DocumentsConfig(mode="file", lengths=(7, 70)))
    start = replace(start, train=replace(start.train, global_batch=2))
    made = {item.config.train.seq_length: lengths(item.config) for item in reductions(start)}
    assert (made[16], made[32]) == ([2, 22], [4, 38])


thresholds = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2, 4]),
        "pp": st.integers(1, 4),
        "cp": st.integers(1, 2),
        "dp": st.integers(1, 2),
        "steps": st.integers(1, 4),
        "documents": st.integers(1, 8),
        "layers": st.integers(1, 8),
    }
)


def reaches(config: CellConfig, least: Mapping[str, int]) -> bool:
    sizes = {name: getattr(config.layout, name) for name in ("tp", "pp", "cp", "dp")}
    sizes |= {"steps": config.train.steps, "documents": config.train.global_batch, "layers": config.model.layers}
    return all(sizes[name] >= number for name, number in least.items())


LARGE = CellConfig(
    layout=Layout(tp=4, pp=4, cp=2, dp=2, vpp=2, sp=True),
    data_path="reference",
    model=ModelConfig(layers=8),
    train=TrainConfig(steps=4, global_batch=8),
    documents=adversarial_mix(64, 2),
)


@pytest.mark.slow
@given(thresholds)
def test_the_result_of_any_search_is_minimal_and_never_larger_than_the_start(least: dict[str, int]) -> None:
    smallest, ran = shrunk(LARGE, lambda config: reaches(config, least))
    end = smallest.config
    assert end is not None
    assert smallest.minimal
    assert reaches(end, least)
    assert size_of(end) <= size_of(LARGE)
    assert not rejections(end)
    smaller = [item.config for item in reductions(end)]
    assert not [config for config in smaller if not rejections(config) and ran.get(config, True)]


@given(st.lists(st.integers(1, 90), min_size=1, max_size=20))
def test_no_reduction_makes_anything_larger(made: list[int]) -> None:
    start = replace(LARGE, documents=DocumentsConfig(mode="file", lengths=tuple(made)))
    start = replace(start, train=replace(start.train, global_batch=len(made)))
    for item in reductions(start):
        assert all(new <= old for new, old in zip(plain_sizes(item.config), plain_sizes(start), strict=True))


def plain_sizes(config: CellConfig) -> tuple[int, ...]:
    layout = config.layout
    ranks = (layout.tp, layout.pp, layout.cp, layout.dp, layout.ep, layout.vpp, int(layout.sp))
    tokens = (len(lengths(config)), sum(lengths(config)), config.train.seq_length, config.train.steps)
    return (*ranks, config.micro_batch_size, config.model.layers, *tokens)


def test_a_search_is_deterministic() -> None:
    def tried() -> list[CellConfig]:
        return list(shrunk(LARGE, lambda config: config.layout.pp >= 2 and config.layout.dp >= 2)[1])

    assert tried() == tried()


def test_a_search_of_a_large_cell_takes_few_rounds() -> None:
    smallest, ran = shrunk(LARGE, lambda config: config.layout.tp >= 2 and config.layout.pp >= 3)
    assert smallest.rounds <= 6
    assert len(ran) <= 60


@pytest.mark.parametrize("count", [1, 2, 3, 9, 64])
def test_one_document_of_many_is_found(count: int) -> None:
    made = tuple(range(10, 10 + count))
    start = replace(BIG, layout=Layout(), documents=DocumentsConfig(mode="file", lengths=made))
    start = replace(start, train=replace(start.train, global_batch=count, seq_length=128))
    wanted = made[count // 2]
    smallest, ran = shrunk(start, lambda config: wanted in lengths(config))
    assert smallest.config is not None
    assert lengths(smallest.config) == [wanted]
    assert len(ran) < 80


@pytest.mark.parametrize("images", [0, 1])
def test_documents_keep_their_images_only_if_they_matter(images: int) -> None:
    documents = DocumentsConfig(mode="file", lengths=(30, 20), images=1)
    seeing = replace(BIG, data_path="unpacked", model=ModelConfig(vision=VisionConfig()), documents=documents)
    smallest, _ = shrunk(seeing, lambda config: config.documents.images >= images and config.model.vision is not None)
    assert smallest.config.documents.images == images
