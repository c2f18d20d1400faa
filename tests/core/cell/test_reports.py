from dataclasses import replace

import pytest

from harness.core.cell.arguments import Arguments, merged
from harness.core.cell.config import CellConfig, TrainConfig
from harness.core.cell.reports import counting_ranks, counts_packed, entry_point, log_interval, logged
from tests.judge.simulator import config_of


def cell(trainer: str, interval: str | None = None, steps: int = 4) -> CellConfig:
    given = {"log_interval": None if interval is None else (interval,)}
    train = TrainConfig(steps=steps, global_batch=8, seq_length=64)
    return replace(config_of("sft"), trainer=trainer, train=train, args=Arguments(merged(given)))


@pytest.mark.parametrize(
    ("trainer", "interval", "spans"),
    [
        ("megatron", None, [(0, 1), (0, 0), (0, 0), (0, 4)]),
        ("megatron", "1", [(0, 1), (1, 2), (2, 3), (3, 4)]),
        ("megatron", "2", [(0, 1), (0, 2), (0, 0), (2, 4)]),
        ("megatron", "100", [(0, 1), (0, 0), (0, 0), (0, 0)]),
        ("bridge", None, [(0, 1), (1, 2), (2, 3), (3, 4)]),
        ("skyrl", None, [(0, 0)] * 4),
    ],
)
def test_a_line_is_about_the_steps_since_the_last_interval(
    trainer: str, interval: str | None, spans: list[tuple[int, int]]
) -> None:
    config = cell(trainer, interval)
    assert [logged(config, step) for step in range(4)] == [range(*span) for span in spans]
    assert log_interval(config) >= 1


@pytest.mark.parametrize(
    ("trainer", "interval", "spans"),
    [
        ("megatron", None, [(1, 2), (0, 0), (1, 4)]),  # the first step of the process has a line
        ("megatron", "2", [(1, 2), (0, 0), (2, 4)]),
        ("bridge", None, [(1, 2), (2, 3), (3, 4)]),
    ],
)
def test_a_resumed_run_begins_its_sums_anew(trainer: str, interval: str | None, spans: list[tuple[int, int]]) -> None:
    config = replace(cell(trainer, interval), resume="same").resumed
    assert [logged(config, step) for step in config.steps] == [range(*span) for span in spans]


@pytest.mark.parametrize(
    ("trainer", "versions", "right"),
    [
        ("megatron", {"megatron.core": "0.17.1"}, False),
        ("megatron", {"megatron.core": "0.18.0"}, None),
        ("megatron", {"megatron.core": "0.19.0rc0+abc"}, True),
        ("megatron", {"megatron.core": "0.20.0"}, True),
        ("megatron", {"megatron.core": "1.0"}, True),
        ("megatron", {"torch": "2.15"}, None),
        ("bridge", {"megatron.bridge": "0.6.2", "megatron.core": "0.17.1"}, True),
        ("bridge", {"megatron.bridge": "0.5.0"}, False),
    ],
)
def test_the_version_says_whether_packed_tokens_are_counted(
    trainer: str, versions: dict[str, str], right: bool | None
) -> None:
    assert counts_packed(cell(trainer), versions) is right


def test_megatron_bridge_is_entered_by_another_function_when_it_continues() -> None:
    config = replace(cell("bridge"), resume="same")
    parts = [entry_point(part).rpartition(".")[2] for part in (config, config.resumed)]
    assert parts == ["pretrain", "finetune"]
    assert entry_point(cell("megatron")) == entry_point(cell("harness")) == ""


def test_only_the_first_stage_of_bridge_reads_all_that_it_counts() -> None:
    assert [counting_ranks(cell("bridge"), stage) for stage in (0, 1)] == [True, False]
    assert [counting_ranks(cell("megatron"), stage) for stage in (0, 1)] == [True, True]
    assert [counting_ranks(cell(name), 0) for name in ("harness", "skyrl")] == [False, False]
