"""SkyRL's Megatron policy worker, from its wheel: it trains as one rank does, and edits of it fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from harness.matrix.stacks.recipes import RECIPES
from tests.cli.conftest import harness, only_run, write_matrix

pytestmark = pytest.mark.train
LIMIT_S = 1800  # an environment is made and Transformer Engine is compiled when this machine has none
RECIPE = "skyrl-0.4.0"
AXES = ("tp", "pp", "cp", "dp")


class Edit(NamedTuple):
    """One wrong line in SkyRL, which does harm in one layout only."""

    axis: str  # that is 2 in this layout
    module: str  # in skyrl.backends.skyrl_train
    right: str
    wrong: str
    found: tuple[str, str]  # by which check, and a part of its message
    lanes: tuple[str, str] = ("pass", "fail")  # metadata, numerics


EDITS = (
    Edit(
        "cp",
        "workers.megatron.megatron_model_wrapper",
        "                loss = policy_loss * grad_sum_correction_factor\n",
        "                loss = policy_loss * grad_sum_correction_factor * mpu.get_context_parallel_world_size()\n",
        ("parameter_gradients", "the ratio is x cp on all that differ"),
    ),
    Edit(
        "pp",
        "workers.megatron.megatron_model_wrapper",
        "                new_attention_mask = None\n                # The trunk ignores position_ids",
        "                new_attention_mask = None\n"
        "                if not mpu.is_pipeline_first_stage(ignore_virtual=True):\n"
        "                    packed_seq_params = None\n"
        "                # The trunk ignores position_ids",
        ("params_present", "no packed params at stage 1"),
        ("fail", "fail"),
    ),
    Edit(
        "tp",
        "workers.megatron.megatron_worker",
        '        grad_norm = self.strategy.optimizer_step(self.optimizer, self.model, self.scheduler, name="actor")\n',
        '        grad_norm = self.strategy.optimizer_step(self.optimizer, self.model, self.scheduler, name="actor")\n'
        "        grad_norm = grad_norm * mpu.get_tensor_model_parallel_world_size()\n",
        ("reported", "reported gradient norm of step 0"),
    ),
    Edit(
        "dp",
        "workers.worker_utils",
        '    status_sum = strategy.all_reduce(sum_metrics, op="sum", group=group)\n',
        '    status_sum = strategy.all_reduce(sum_metrics, op="mean", group=group)\n',
        ("reported", "reported loss of step 0"),
    ),
)
# Imported by Python when it starts: it edits the source of modules when they are loaded, from where they are installed.
HOOK = """
import json, sys
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path

EDITS = json.loads((Path(__file__).parent / "edits.json").read_text())

class Edited(SourceFileLoader):
    def get_code(self, name):
        source = Path(self.path).read_text()
        for right, wrong in EDITS[name]:
            assert source.count(right) == 1, name
            source = source.replace(right, wrong)
        return compile(source, self.path, "exec")

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in EDITS:
            return None
        spec = PathFinder.find_spec(name, path)
        spec.loader = Edited(name, spec.origin)
        return spec

sys.meta_path.insert(0, Finder)
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Any]]:
    """Cells of the wheel and of the edited one, by their stack and the axis that is 2."""
    folder = tmp_path_factory.mktemp("skyrl")
    hook = folder / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(HOOK)
    edits: dict[str, list[tuple[str, str]]] = {}
    for edit in EDITS:
        edits.setdefault(f"skyrl.backends.skyrl_train.{edit.module}", []).append((edit.right, edit.wrong))
    (hook / "edits.json").write_text(json.dumps(edits))
    first, *others = RECIPES[RECIPE].layers
    stacks = {"wheel": RECIPE, "edited": [{**first, "env": {"PYTHONPATH": str(hook)}}, *others]}
    case = [{axis: 2 if axis == two else 1 for axis in AXES} for two in AXES]
    matrix = {"case": case, "stack": list(stacks), "packing": ["skyrl"], "trainer": ["skyrl"]}
    matrix |= {"micro_batch_size": [4], "distributed_optimizer": ["on"]}
    whole = {"name": "edits", "train": {"steps": 2, "global_batch": 16}, "launch": {"deadline_s": 300}}
    text = json.dumps(whole | {"stacks": stacks, "matrix": matrix})
    done = harness("run", write_matrix(folder, text), cwd=folder, timeout=LIMIT_S)
    assert done.returncode == 1, done.stdout + done.stderr
    report = json.loads((only_run(folder / "reports") / "report.json").read_text())
    cells = [cell for cell in report["cells"] if cell["role"] == "cell"]
    return {(cell["axes"]["stack"], two_of(cell["axes"])): cell for cell in cells}


def two_of(axes: dict[str, Any]) -> str:
    return next(axis for axis in AXES if axes[axis] == 2)


@pytest.mark.parametrize("axis", AXES)
def test_it_trains_as_one_rank_does(ran: dict[tuple[str, str], dict[str, Any]], axis: str) -> None:
    cell = ran["wheel", axis]
    assert (cell["outcome"], cell["findings"]) == ("PASS", [])


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.axis)
def test_an_edit_fails_in_its_place(ran: dict[tuple[str, str], dict[str, Any]], edit: Edit) -> None:
    cell = ran["edited", edit.axis]
    assert (cell["outcome"], cell["lanes"]["metadata"], cell["lanes"]["numerics"]) == ("FAIL", *edit.lanes)
    check, text = edit.found
    messages = [finding["message"] for finding in cell["findings"] if finding["check"] == check]
    assert any(text in message for message in messages), [item["message"] for item in cell["findings"]]


@pytest.mark.long
def test_the_shipped_matrix_passes(tmp_path: Path, root: Path) -> None:
    done = harness("run", root / "matrices" / "trainer_skyrl.yaml", cwd=tmp_path, timeout=3600)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((only_run(tmp_path / "reports") / "report.json").read_text())
    assert report["rejected"] == []
    assert sum(cell["role"] == "cell" for cell in report["cells"]) == 20
