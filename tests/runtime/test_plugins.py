"""What ranks load of plug-ins."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.errors import InputError
from harness.core.plugins import Plugin, PluginEntry
from harness.core.run.run_dir import RunDir, write_json
from harness.probe.model.builders import MODELS
from harness.runtime.load import load_plugins
from harness.runtime.plugins import activate


def named(run: RunDir, value: str) -> None:
    entries = (
        PluginEntry(group="checks", name="c", value="gone:X"),
        PluginEntry(group="models", name="m", value=value),
    )
    write_json(run.plugins, [Plugin(name="one", version="1.0", entries=entries)])


def test_only_what_ranks_need_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir(tmp_path)
    load_plugins(run)  # without plug-ins
    monkeypatch.setattr("harness.runtime.plugins.MODELS", made := {})
    named(run, "math:sqrt")
    load_plugins(run)
    assert made["m"](4) == 2
    assert MODELS == {}


def test_a_package_that_this_stack_cannot_import_is_named(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    named(run, "gone.model:build")
    with pytest.raises(
        InputError, match=r"plug-in one 1\.0: packing_harness\.models: m = gone\.model:build: .*No module"
    ):
        activate(run)
