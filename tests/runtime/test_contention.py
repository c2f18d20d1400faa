from pathlib import Path

import pytest

from harness.core.run.records import MAX_CONTENTION
from harness.runtime.contention import Contention

SECOND = 1_000_000_000


def counted(file: Path, ran: float, waited: float) -> None:
    file.write_text(f"{round(ran * SECOND)} {round(waited * SECOND)} 7\n")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "schedstat"


def test_a_process_that_never_waits_has_its_core(file: Path) -> None:
    counted(file, 3, 0)
    assert Contention(file).factor() == 1


def test_the_factor_is_that_of_the_busiest_time(file: Path) -> None:
    contention = Contention(file)
    counted(file, 1, 1)
    assert contention.factor() == 2
    counted(file, 2, 4)  # one second more on a core, three more waiting
    assert contention.factor() == 4
    counted(file, 4, 4)
    assert contention.factor() == 4


def test_too_short_a_time_is_not_measured(file: Path) -> None:
    contention = Contention(file)
    counted(file, 0.01, 5)
    assert contention.factor() == 1
    counted(file, 0.06, 5.06)  # together with what came before
    assert contention.factor() == MAX_CONTENTION


def test_the_kernel_counts_this_process() -> None:
    assert Contention()._read()[0] > 0


def test_without_the_file_deadlines_stay(tmp_path: Path) -> None:
    assert Contention(tmp_path / "absent").factor() == 1
