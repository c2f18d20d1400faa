"""Forks: the wheel's code laid out as a checkout, with small edits, or with a pretrain_gpt.py of their own."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import megatron.core
import pytest

from tests.cli.conftest import harness, only_run, write_matrix
from tests.launch.stacks.test_checkout import git

pytestmark = pytest.mark.train
RENAMED = "moe_z_loss_coeff"
MATRIX = """\
name: fork
model: {{layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocab: 64}}
train: {{steps: 1}}
checks: {{canaries: none}}
stacks:
  fork: [{{python: {python}}}, {{checkout: {fork}, package: megatron-lm}}]
matrix:
  stack: fork
  case:
    - &case {{packing: reference, recompute: none, model.moe: null, model.mtp: null}}
    - {{<<: *case, recompute: full, model.mtp: {{}}}}
    - {{<<: *case, packing: sft}}
    - {{<<: *case, packing: scheduler}}
    - {{<<: *case, model.moe: {{z_loss_coeff: 0.1}}}}
"""

SCRIPT = """
from functools import partial
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.training import get_args

RIGHT, DOUBLED, UNMASKED = 1, 2, 3  # seeds

def loss_func(mask, output, model=None):
    loss, tokens = (output.float() * mask).sum(), mask.sum().int()
    return loss, tokens, {}

def forward_step(iterator, model):
    row, seed = next(iterator), get_args().seed
    offsets, longest = row["cu_seqlens"].unique(), int(row["max_seqlen"])
    lengths = {"max_seqlen_q": longest, "max_seqlen_kv": longest}
    params = PackedSeqParams(qkv_format="thd", cu_seqlens_q=offsets, cu_seqlens_kv=offsets, **lengths)
    given = None if seed == UNMASKED else row["loss_mask"]
    more = {"labels": row["labels"], "loss_mask": given, "packed_seq_params": params}
    output = model(row["tokens"], row["position_ids"], None, **more)
    return output * 2 if seed == DOUBLED else output, partial(loss_func, row["loss_mask"], model=model)
"""
SEEDS = """\
name: script
model: {{layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocab: 64, mtp: {{layers: 1}}}}
train: {{steps: 1, global_batch: 4, seq_length: 64}}
checks: {{canaries: none}}
stacks:
  fork: [{{python: {python}}}, {{checkout: {fork}, package: megatron-lm}}]
matrix: {{stack: fork, packing: sft, train.seed: [1, 2, 3]}}
"""
RENAMES = {  # stack -> old and new name, in all files
    "module": ("packed_seq_params import", "packed_params import"),
    "field": ("max_seqlen_q", "longest_q"),
}
NAMES = """\
name: names
model: {{layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocab: 64}}
train: {{steps: 1, global_batch: 4, seq_length: 64}}
checks: {{canaries: none}}
stacks:
  module: [{{python: {python}}}, {{checkout: {folder}/module, package: megatron-lm}}]
  field: [{{python: {python}}}, {{checkout: {folder}/field, package: megatron-lm}}]
matrix: {{stack: [module, field], packing: reference}}
"""


@pytest.fixture(scope="module")
def fork(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the code of the wheel, which has neither pretrain_gpt.py nor wrap_data_iterator; one field is
    renamed, and what recomputes prediction layers is wrapped.
    """
    folder = copied(tmp_path_factory.mktemp("fork"))
    for file in (folder / "megatron").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if RENAMED in text:
            file.write_text(text.replace(RENAMED, "moe_router_z_loss_coeff"), encoding="utf-8")
    prediction = folder / "megatron" / "core" / "transformer" / "multi_token_prediction.py"
    wrapped = (
        "\n\n_upstream = MultiTokenPredictionLayer._checkpointed_forward\n"
        "MultiTokenPredictionLayer._checkpointed_forward = lambda *args, **kwargs: _upstream(*args, **kwargs)\n"
    )
    prediction.write_text(prediction.read_text(encoding="utf-8") + wrapped, encoding="utf-8")
    return committed(folder)


def copied(folder: Path) -> Path:
    """The folder, with the code of the wheel."""
    package = Path(str(megatron.core.__file__)).parents[1]
    shutil.copytree(package, folder / "megatron", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def committed(folder: Path) -> Path:
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "fork")
    return folder


def run(folder: Path, fork: Path, more: str = "", *options: str) -> tuple[int, str, dict[str, Any]]:
    """Exit code, output and report."""
    matrix = write_matrix(folder, MATRIX.format(fork=fork, python=sys.executable) + more)
    done = harness("run", matrix, *options, cwd=folder)
    assert done.returncode in (0, 3), done.stdout + done.stderr
    report = json.loads((only_run(folder / "reports") / "report.json").read_text())
    return done.returncode, done.stdout + done.stderr, report


def outcomes(report: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Name -> outcome and reason, without the added controls."""
    found = [(one["id"], one["outcome"], one["reason"]) for one in report["cells"] if one["role"] == "cell"]
    found += [(one["id"], "REJECTED", one["reason"]) for one in report["rejected"]]
    return {name.rpartition("-")[0]: (outcome, reason) for name, outcome, reason in found}


def test_what_a_fork_has_renamed_is_an_error_that_names_it_and_what_it_has_wrapped_runs(
    fork: Path, tmp_path: Path
) -> None:
    code, output, report = run(tmp_path, fork)
    found = outcomes(report)
    lost = {
        "tp1-pp1-cp1-sft-fork": "pretrain_gpt.py",
        "tp1-pp1-cp1-scheduler-fork": "megatron.core.datasets.data_schedule.wrap_data_iterator",
        "tp1-pp1-cp1-reference-moe4x2-z0.1-fork": "has no field moe_z_loss_coeff (model.moe.z_loss_coeff)",
    }
    passed = {"tp1-pp1-cp1-reference-fork", "tp1-pp1-cp1-reference-mtp1-fork-recompute-full"}
    assert {name for name, (outcome, _) in found.items() if outcome == "PASS"} == passed
    assert {name for name, (outcome, _) in found.items() if outcome == "ERROR"} == lost.keys()
    for name, absent in lost.items():
        assert absent in found[name][1]
        assert f"looked for in the checkout {fork}" in found[name][1]
        assert name in output
    assert code == 3


def test_a_matrix_can_allow_what_a_fork_lacks(fork: Path, tmp_path: Path) -> None:
    more = "may_reject:\n  - {pattern: '*-scheduler-fork', reason: this fork has no scheduler}\n"
    code, _, report = run(tmp_path, fork, more, "--only", "*-scheduler-fork", "--only", "*-reference-fork")
    assert {name: outcome for name, (outcome, _) in outcomes(report).items()} == {
        "tp1-pp1-cp1-reference-fork": "PASS",
        "tp1-pp1-cp1-scheduler-fork": "REJECTED",
    }
    assert code == 0


def test_what_a_script_does_around_its_call_of_the_model_is_under_test(tmp_path: Path) -> None:
    script = copied(tmp_path / "fork") / "pretrain_gpt.py"
    script.write_text(SCRIPT)
    text = SEEDS.format(fork=committed(script.parent), python=sys.executable)
    done = harness("run", write_matrix(tmp_path, text), cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    report = json.loads((only_run(tmp_path / "reports") / "report.json").read_text())
    cells = {one["axes"]["train.seed"]: one for one in report["cells"] if one["role"] == "cell"}
    assert [cells[seed]["outcome"] for seed in (1, 2, 3)] == ["PASS", "FAIL", "FAIL"], cells
    assert all(cell["lanes"]["metadata"] == "pass" for cell in cells.values())
    checks = [{finding["check"] for finding in cells[seed]["findings"]} for seed in (2, 3)]
    assert "document_loss" in checks[0] and "mtp_loss" in checks[1], checks


def test_cells_that_need_a_renamed_module_or_field_are_errors_that_name_it(tmp_path: Path) -> None:
    for name, (old, new) in RENAMES.items():
        for file in copied(tmp_path / name).rglob("*.py"):
            file.write_text(file.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
        if name == "module":
            core = tmp_path / name / "megatron" / "core"
            (core / "packed_seq_params.py").rename(core / "packed_params.py")
        committed(tmp_path / name)
    done = harness("run", write_matrix(tmp_path, NAMES.format(folder=tmp_path, python=sys.executable)), cwd=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    report = json.loads((only_run(tmp_path / "reports") / "report.json").read_text())
    found = {(one["axes"]["stack"], one["role"]): (one["outcome"], one["reason"]) for one in report["cells"]}
    where = "looked for in the checkout"
    for role in ("control", "cell"):
        outcome, reason = found["module", role]
        assert outcome == "ERROR" and f"has no megatron.core.packed_seq_params, {where} {tmp_path}/module" in reason
        assert "harness/probe/built.py needs it (Imports the modules under test" in reason
    assert found["field", "control"][0] == "PASS"
    outcome, reason = found["field", "cell"]
    assert outcome == "ERROR" and f"PackedSeqParams.max_seqlen_q (rule stack.data_path), {where}" in reason
