"""Signals that end a launcher raise what Ctrl-C raises."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from harness.infra.process import Stopped, end_on_signals, signal_name

ENDING = [signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Restore the handlers of this process after each test."""
    before = {number: signal.getsignal(number) for number in ENDING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_is_raised_as_an_interrupt_with_its_name(number: signal.Signals) -> None:
    signal.signal(number, signal.SIG_DFL)
    end_on_signals()
    with pytest.raises(KeyboardInterrupt) as raised:
        signal.raise_signal(number)
    assert isinstance(raised.value, Stopped)
    assert signal_name(raised.value) == number.name


def test_a_signal_that_the_caller_ignores_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    end_on_signals()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    signal.raise_signal(signal.SIGHUP)


def test_an_interrupt_without_a_name_is_ctrl_c() -> None:
    assert signal_name(KeyboardInterrupt()) == "SIGINT"
