"""Temporary files of torch elastic are removed with the cell."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, start_processes

from harness.node.process import temporary_files_in


def _rank(fails: bool) -> None:
    if fails:
        os._exit(3)


@pytest.mark.parametrize("fails", [False, True])
def test_forked_ranks_leave_no_temporary_file(fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = tmp_path / "system"
    system.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(system))
    with temporary_files_in(tmp_path / "own"):
        processes = start_processes(
            name="cell",
            entrypoint=_rank,
            args={0: (fails,), 1: (False,)},
            envs={0: {}, 1: {}},
            logs_specs=DefaultLogsSpecs(),
            start_method="fork",
        )
        made = [path.name for path in (tmp_path / "own").iterdir()]
        ended = processes.wait(timeout=60)
    assert any(name.startswith("torchelastic_") for name in made)
    assert ended is not None
    assert ended.is_failed() is fails
    assert list(tmp_path.rglob("*")) == [system]
    assert tempfile.gettempdir() == str(system)
