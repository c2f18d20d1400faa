from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.run.run_dir import RunDir, write_json
from harness.core.run.run_plan import WorkOrder, cell_attempts, read_work_order, write_work_order

ORDER = WorkOrder(cells=cell_attempts([("a", 1), ("b", 2)]), parallel_ranks=4)


def test_a_work_order_is_read_as_it_was_written(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write_work_order(run, "local", ORDER)
    assert read_work_order(run, "local") == ORDER
    assert read_work_order(run, "local").attempts == {"a": 1, "b": 2}


def test_the_file_holds_only_the_fields_that_are_set(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write_work_order(run, "local", ORDER)
    cells = '[{"cell": "a", "attempt": 1}, {"cell": "b", "attempt": 2}]'
    assert run.submission("local").read_text() == f'{{"cells": {cells}, "parallel_ranks": 4}}\n'


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"cells": []}, "parallel_ranks"),
        ({"cells": [{"cell": "a"}], "parallel_ranks": 1}, "attempt"),
        ({"cells": [], "parallel_ranks": 1, "startup_s": 1.0}, "startup_s"),
        ([], "mapping"),
    ],
)
def test_a_damaged_work_order_is_refused_with_the_name_of_the_field(tmp_path: Path, values: object, named: str) -> None:
    run = RunDir(tmp_path)
    write_json(run.submission("local"), values)
    with pytest.raises(TypeError, match=named):
        read_work_order(run, "local")
