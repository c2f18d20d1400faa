"""Interleaving of two cells through files: turns are in order, and a cell gives up when the other is missing."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.cell.timing import TimingConfig
from harness.core.run.run_dir import RunDir
from harness.probe.legs.timing import Interleaver, turn_numbers
from harness.runtime.device.placement import Device
from harness.upstreams.node_base import RankContext
from tests.runtime.conftest import config


def side(root: Path, cell: str, *, first: bool, deadline_s: float = 60.0) -> Interleaver:
    settings = config(deadline_s=deadline_s)
    settings = replace(settings, timing=TimingConfig(turns="pair", first=first))
    place = settings.layout.coordinates(0)
    folder = RunDir(root).attempt(cell).root
    return Interleaver(
        RankContext(config=settings, place=place, device=Device(kind="cpu", backend="gloo"), folder=folder)
    )


def test_the_cells_alternate() -> None:
    assert list(turn_numbers(3, True)) == [(0, 0), (1, 2), (2, 4)]
    assert list(turn_numbers(3, False)) == [(0, 1), (1, 3), (2, 5)]


@pytest.mark.usefixtures("world_of_one")
def test_turns_are_in_order_whichever_cell_waits_first(tmp_path: Path) -> None:
    order: list[int] = []

    def play(turns: Interleaver, first: bool) -> None:
        for _, number in turn_numbers(3, first):
            assert turns._previous_is_over(number)
            order.append(number)
            turns.over(number)

    players = [
        threading.Thread(target=play, args=(side(tmp_path, f"cell-{first}", first=first), first))
        for first in (False, True)
    ]
    for player in players:
        player.start()
    for player in players:
        player.join()
    assert order == [0, 1, 2, 3, 4, 5]


@pytest.mark.usefixtures("world_of_one")
def test_a_cell_that_waits_too_long_gives_up_and_so_does_the_other(tmp_path: Path) -> None:
    patient, hasty = side(tmp_path, "a", first=True), side(tmp_path, "b", first=False, deadline_s=0.02)
    assert patient.wait(0)
    assert not hasty.wait(1)
    assert not patient.wait(4)  # at once, although it would wait for half a minute
    given_up = RunDir(tmp_path).interleaving("pair") / "attempt-1" / "given-up"
    assert json.loads(given_up.read_text())["turn"] in (1, 4)
