"""Every field of every file of a real run with stages is changed, one at a time, and of one with experts those it adds.

In the ways that a field can be absent, and in one that it can be wrong; tests/judge has the others, on simulated runs.
With HARNESS_TAMPER_EACH=N all fields of both runs are changed in all ways, in N places.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.run.run_dir import RunDir
from harness.judge.required.not_evidence import NOT_EVIDENCE
from tests.app.conftest import harness
from tests.judge.tampering import KINDS, known, tamper, unlisted
from tests.judge.test_tampering import EACH, WHOLE, parts
from tests.processes import HUNG_S

COMMON = """
train: {steps: 2, global_batch: 4, seq_length: 32}
documents: {mode: file, lengths: [20, 9, 13, 7]}
"""
RUNS = {
    "stages": "matrix: {tp: 2, pp: 2, packing: sft}\nchecks: {canaries: all}\nmodel: {layers: 2}\n",
    "experts": "matrix: {case: [{tp: 2, cp: 2}, {tp: 1, cp: 1}], packing: reference, pad_seq_to_mult: 4}\n"
    "model: {layers: 2, moe: {experts: 4, aux_loss: aux_loss}}\n",
}
# What is changed of the second run: fields of which it has more than the first, and gradients of a lone control.
MORE = parts(
    "plan", "config", "record.routers", "record.workloads", "record.packed_params", "record.parameters", "record.steps"
)
WAYS = KINDS if WHOLE else ("drop", "empty", "fill", "negate")
ONLY = {"stages": ("",), "experts": MORE}
OF_OTHER_CELLS = {
    "record.refusal.type",
    "record.environment.device",
    "record.gloo_stubs.*",  # of ranks that share a GPU
    "record.timings.*.seconds",
    "record.upstream_tests.failures",  # of cells that run upstream's tests
    *(path for path in NOT_EVIDENCE if path.startswith(("lone.", "oracle.record.legs."))),
    "oracle.not_modelled",
    "record.batches.*.padding_mask",  # which the scheduler alone returns
    "record.legs.*.batches.*.padding_mask",
    "record.parameters.*.update.change.projections.*",
    "record.parameters.*.update.trained.projections.*",
    "record.parameters.*.update.trained.norm_sq",
    "record.legs.*.training.trained.*.projections.*",
}  # tests/judge/test_tampering.py changes them, the last ones of cells that are compared with their control

pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunDir]:
    return {name: _run(name, tmp_path_factory.mktemp(name)) for name in RUNS}


def _run(name: str, folder: Path) -> RunDir:
    (folder / "tamper.yaml").write_text(f"name: {name}\n{COMMON}{RUNS[name]}", encoding="utf-8")
    done = harness("run", "tamper.yaml", "--run-dir", "runs", "--no-history", cwd=folder, timeout=HUNG_S)
    assert done.returncode == 0, done.stdout + done.stderr
    [run] = (folder / "runs").glob(f"{name}-*")
    return RunDir(run)


@pytest.mark.parametrize("name", RUNS)
def test_every_field_of_a_real_run_is_evidence_or_listed(name: str, runs: dict[str, RunDir]) -> None:
    found = tamper(runs[name], each=EACH, only=ONLY[name], kinds=WAYS)
    assert sum(found.tried.values()) > 500
    assert not unlisted(found), unlisted(found)


def test_every_listed_field_can_be_changed_unnoticed(runs: dict[str, RunDir]) -> None:
    """A listed field whose change is noticed has become evidence, or no longer exists."""
    listed = NOT_EVIDENCE.keys() - OF_OTHER_CELLS
    only = (*(path.removesuffix(".*") for path in listed), "record.packed_params.*.forms")
    found = [tamper(run, only=only) for run in runs.values()]
    passed = {known(pattern) for one in found for pattern in one.passed}
    assert listed <= passed, listed - passed
