"""What `harness explain --operations` refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.app.commands.operations import explain_operations
from harness.core.errors import InputError
from tests.app.runs import simulated_run


def test_a_layer_that_does_not_exist_and_a_control_are_refused(tmp_path: Path) -> None:
    run = simulated_run(tmp_path)
    with pytest.raises(InputError, match=r"--layer 99: no such layer.*0 \(the embedding\) to"):
        explain_operations(str(run.root), "*-sft", tmp_path, layer=99, as_json=False)
    with pytest.raises(InputError, match="is a control"):
        explain_operations(str(run.root), "*-unpacked", tmp_path, layer=1, as_json=False)
    with pytest.raises(InputError, match="2 cells match"):
        explain_operations(str(run.root), "*", tmp_path, layer=1, as_json=False)


def test_without_a_finding_that_names_a_layer_the_user_must_name_one(tmp_path: Path) -> None:
    run = simulated_run(tmp_path)
    with pytest.raises(InputError, match=r"no finding of .* names a layer.*--layer"):
        explain_operations(str(run.root), "*-sft", tmp_path, layer=None, as_json=False)
