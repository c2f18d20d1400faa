"""A fault in one part of a layer, found by running its cell and the control again."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.campaign import launch, plan_run
from harness.core.cell.identity import cell_id
from harness.core.errors import InputError
from harness.core.run.run_dir import RunDir, write_json
from harness.core.run.run_plan import Expansion
from harness.core.stack import Checkout, ReadyStack, Stack
from harness.faults.catalogue import FAULTS
from harness.faults.spec import FaultSpec
from harness.launch.local import LocalLauncher
from harness.runs.evidence_files import read_plan
from harness.triage.operations import explain_operations
from harness.triage.selftest import plan_faults
from tests.cli.runs import simulated_run
from tests.launch.stacks.test_checkout import repository


def _planned(folder: Path, fault: str) -> tuple[RunDir, FaultSpec]:
    """A run of a fault's cell and its control, planned and never started."""
    spec = next(one for one in FAULTS if one.name == fault)
    plan = plan_faults([spec])
    cells = tuple(cell for cell in plan.expansion.cells if cell.id != cell_id(spec.twin))
    run = RunDir(folder / plan.run_id)
    plan_run.write_plan(run, replace(plan, expansion=Expansion(cells=cells, rejected=())))
    return run, spec


@pytest.mark.train
def test_the_first_differing_operation_of_a_faulty_cell_is_the_faulty_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, spec = _planned(tmp_path, "window-one-token-longer-on-one-tp-rank")
    code = explain_operations(str(run.root), cell_id(spec.faulty), tmp_path, layer=2, as_json=True)
    assert code == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    rows = found["rows"]
    first = rows[found["first"]]
    assert (first["module"], first["name"]) == ("self_attention.core_attention", "returns")
    before = rows[: found["first"]]
    assert not any(row["differs"] for row in before)
    received = next(row for row in reversed(before) if row["name"] == "receives")
    assert received["module"] == first["module"]
    assert {row["off"]["held"] for row in before if row["off"]} >= {"whole", "shards"}
    assert [row for row in rows if row["kind"] == "communication"]
    assert found["ranks"] == [0, 1]
    assert found["cell_mode"].startswith("torch.utils._debug_mode.DebugMode")
    assert Path(found["run"], "plan.json").is_file()


@pytest.mark.train
def test_a_cell_that_the_oracle_computed_is_shown_beside_it_and_its_control_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = next(one for one in FAULTS if one.name == "window-one-token-longer-on-one-tp-rank")
    plan = plan_faults([spec])
    run = RunDir(tmp_path / plan.run_id)
    plan_run.write_plan(run, plan)
    launch.launch(run, plan, LocalLauncher(), stream=sys.stderr)
    for config, first in ((spec.faulty, ("self_attention.core_attention", "returns")), (spec.control, None)):
        explain_operations(str(run.root), cell_id(config), tmp_path, layer=2, as_json=True)
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert (found["reference"], found["control"]) == ("oracle", None)
        compared = [(row["module"], row["name"]) for row in found["rows"] if row["off"]]
        modules = [f"self_attention.{name}" for name in ("linear_qkv", "core_attention", "linear_proj")]
        modules += ["pre_mlp_layernorm", "mlp.linear_fc1", "mlp.linear_fc2", ""]
        assert [module for module, name in compared if name == "returns"][1:] == modules
        assert ("self_attention.core_attention", "receives") in compared
        row = None if found["first"] is None else found["rows"][found["first"]]
        assert (row and (row["module"], row["name"])) == first


def test_a_layer_that_does_not_exist_and_a_cell_without_a_reference_are_refused(tmp_path: Path) -> None:
    run = simulated_run(tmp_path)
    with pytest.raises(InputError, match=r"--layer 99: no such layer.*0 \(the embedding\) to"):
        explain_operations(str(run.root), "*-sft", tmp_path, layer=99, as_json=False)
    with pytest.raises(InputError, match="the oracle did not compute it, and it has no control"):
        explain_operations(str(run.root), "*-unpacked", tmp_path, layer=1, as_json=False)
    with pytest.raises(InputError, match="3 cells match"):
        explain_operations(str(run.root), "*", tmp_path, layer=1, as_json=False)


def test_without_a_finding_that_names_a_layer_the_user_must_name_one(tmp_path: Path) -> None:
    run = simulated_run(tmp_path)
    with pytest.raises(InputError, match=r"no finding of .* names a layer.*--layer"):
        explain_operations(str(run.root), "*-sft", tmp_path, layer=None, as_json=False)


def test_a_working_tree_that_has_changed_since_the_run_is_refused(tmp_path: Path) -> None:
    run = simulated_run(tmp_path / "runs")
    source = repository(tmp_path / "source")
    checkout = Checkout(package="megatron-lm", repository=str(source), ref="")
    ready = ReadyStack(requested=Stack(name="default", checkouts=(checkout,)), commits={"megatron-lm": "0" * 40})
    write_json(run.plan, replace(read_plan(run), stacks={"default": ready}))
    with pytest.raises(InputError, match=r"megatron-lm in .* changed from 0{40} to .*do not explain this run"):
        explain_operations(str(run.root), "*-sft", tmp_path, layer=1, as_json=False)
    assert not (run.root / "operations").exists()
