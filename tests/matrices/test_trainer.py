"""Megatron-LM's training script, from the clone HARNESS_MEGATRON_LM_REPO: it passes, and edits of it fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cli.conftest import harness, only_run, write_matrix
from tests.megatron_clone import CLONE, needs_clone

pytestmark = [pytest.mark.train, needs_clone]
MAIN = "d98e8a64dd"


def report_of(folder: Path, text: str) -> tuple[int, dict[str, Any]]:
    done = harness("run", write_matrix(folder, text), cwd=folder, timeout=3600)
    runs = only_run(folder / "reports") / "report.json"
    assert runs.is_file(), done.stdout + done.stderr
    return done.returncode, json.loads(runs.read_text())


def test_the_shipped_matrix_passes(tmp_path: Path, root: Path) -> None:
    text = (root / "matrices" / "trainer.yaml").read_text().replace("../../Megatron-LM", CLONE)
    code, report = report_of(tmp_path, text)
    odd = {cell["id"]: cell["findings"][:1] for cell in report["cells"] if cell["outcome"] not in ("PASS", "XFAIL")}
    assert (code, odd) == (0, {})
    cells = only_run(tmp_path / "reports") / "cells"
    trained = [cell["id"] for cell in report["cells"] if cell["role"] == "cell"]
    # What upstream's data sets cache is in the cell's folder, not in the user's.
    assert [cell for cell in trained if not any((cells / cell / "attempt-1" / "data").rglob("cache"))] == []
    assert sum(cell["role"] == "cell" for cell in report["cells"]) >= 60


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("sft_micro_batches_and_stages", "stage 0 sends (128, 1, 32), stage 1 receives (64, 2, 32)\n"),
        ("sft_evaluation_under_cp", "evaluation loss: 2.7500 with cp 1, 3.5000 with cp 2\n"),
        (
            "blend_under_cp",
            "a batch with dataset_id, tokens, labels, loss_mask, position_ids raises IndexError: tuple index "
            "out of range\n",
        ),
        ("inter_document_stages", "get_batch on that stage raises TypeError: 'NoneType' object is not an iterator\n"),
        (
            "inter_document_under_cp",
            "positions of the tokens [0, 1, 2, 3, 4, 5, 6, 7], of their rotary embedding [0, 1, 6, 7, 0, 1, 6, 7]\n",
        ),
        ("log_interval_of_one", "losses [4.0, 2.0, 1.0], printed [4.0, 3.0, 1.0]\n"),
        (
            "distributed_optimizer_without_te",
            "state_dict of an optimizer without an update raises AssertionError: it cannot be loaded\n",
        ),
        (
            "prediction_layers_without_te",
            "raises TypeError: isinstance() arg 2 must be a type, a tuple of types, or a union\n",
        ),
        (
            "micro_batches_of_five_rows",
            "2 rows, 64 tokens on this rank: the router gets (64, 1, 4)\n"
            "4 rows, 128 tokens on this rank: the router gets (64, 2, 4)\n"
            "5 rows, 160 tokens on this rank: the router gets (64, 2, 5)\n",
        ),
        ("tokens_dropped_by_position", "of tokens 0 to 7 an expert with room for 4 takes [4, 5, 6, 7]\n"),
        (
            "global_aux_loss_of_other_lengths",
            "replicas with (8, 56) tokens take (16, 112) for the number of all tokens, 64\n",
        ),
        ("packed_token_counts", "40 tokens: counted 40, with two chunks 80, after an evaluation 80\n"),
    ],
)
def test_a_reproducer_shows_the_fault(root: Path, name: str, printed: str) -> None:
    script = root / "docs" / "reproducers" / f"{name}.py"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)],
        env={**os.environ, "PYTHONPATH": CLONE},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.endswith(printed)  # upstream logs to standard output too


class Edit(NamedTuple):
    """One wrong line in upstream's trainer."""

    file: str
    right: str
    wrong: str
    found: tuple[str, str]  # by which check, and a part of its message
    step: int = 0  # of the first finding
    lanes: tuple[str, str] = ("pass", "fail")  # metadata, numerics
    clip_grad: str = "null"
    moe: str = "null"


TRAINING = "megatron/training/training.py"
EDITS = {
    "loss_times_cp": Edit(
        "pretrain_gpt.py",
        "loss = torch.sum(losses * loss_mask)\n",
        "loss = torch.sum(losses * loss_mask) * args.context_parallel_size\n",
        ("parameter_gradients", "the ratio is x cp or tp on all that differ"),
    ),
    "reported_loss": Edit(
        TRAINING,
        "loss_reduced[key] = val[0] / val[1]\n",
        "loss_reduced[key] = val[0] / val[1] / 3\n",
        ("reported", "reported loss of step 0"),
    ),
    "auxiliary_loss_twice": Edit(
        "megatron/training/argument_utils.py",
        "    config = config_class(**kw_args)\n\n    _apply_yarn",
        '    kw_args["moe_aux_loss_coeff"] *= 2\n    config = config_class(**kw_args)\n\n    _apply_yarn',
        ("aux_loss", "aux_loss of layer 1, micro-batch 0"),
        moe="{aux_loss: aux_loss}",
    ),
    "counted_twice": Edit(
        TRAINING,
        "args.consumed_train_samples += iteration_sequences\n",
        "args.consumed_train_samples += 2 * iteration_sequences\n",
        ("reported", "reported number of consumed samples of step 0"),
    ),
    "packed_tokens_of_one_replica": Edit(
        TRAINING,
        "        torch.distributed.all_reduce(t)\n        tp_size",
        "        tp_size",
        ("reported", "reported number of packed tokens of step 0"),
    ),
    "padded_row_counted": Edit(
        "pretrain_gpt.py",
        "        update_seqlen_stats_from_cu_seqlens(cu_seqlens)\n",
        "        update_seqlen_stats_from_cu_seqlens(cu_seqlens[[0, -1]])\n",
        ("reported", "reported sum of squared lengths of step 0"),
    ),
    "printed_norm": Edit(
        TRAINING,
        "            log_string += f' grad norm: {grad_norm:.3f} |'\n",
        "            log_string += f' grad norm: {2 * grad_norm:.3f} |'\n",
        ("printed", "printed grad norm of step 0"),
    ),
    "norms_not_reduced": Edit(
        "megatron/core/distributed/finalize_model_grads.py",
        "    _allreduce_non_tensor_model_parallel_grads(model, config, tp_group)\n",
        "    pass\n",
        ("replica_gradients", "layernorm.weight"),
    ),
    "rank_without_update": Edit(
        TRAINING,
        "        update_successful, grad_norm, num_zeros_in_grad = optimizer.step()\n",
        "        if iteration == 0 and torch.distributed.get_rank() == 1:\n"
        "            for group in optimizer.param_groups:\n"
        "                group['lr'] = 0.0\n"
        "        update_successful, grad_norm, num_zeros_in_grad = optimizer.step()\n",
        ("first_update", "change by the first update of "),
    ),
    "norm_of_one_rank": Edit(
        "megatron/core/optimizer/clip_grads.py",
        "            total_norm, op=torch.distributed.ReduceOp.SUM, group=grad_stats_parallel_group\n",
        "            total_norm.clone(), op=torch.distributed.ReduceOp.SUM, group=grad_stats_parallel_group\n",
        ("first_update", "first moment of "),
        clip_grad="0.1",
    ),
    "no_update": Edit(
        TRAINING,
        "        update_successful, grad_norm, num_zeros_in_grad = optimizer.step()\n",
        "        update_successful, grad_norm, num_zeros_in_grad = True, None, None\n",
        ("step_loss", "loss sum of step 1"),  # first, in step 0, comes the gradient norm that is not reported
    ),
    "micro_batch_too_many": Edit(
        TRAINING,
        "                num_microbatches=get_num_microbatches(),\n                seq_length=args.seq_length,\n",
        "                num_microbatches=get_num_microbatches() + 1,\n                seq_length=args.seq_length,\n",
        ("micro_batch_count", ""),
        lanes=("fail", "fail"),
    ),
    "row_read_twice": Edit(
        "megatron/training/datasets/data_samplers.py",
        "            batch.append(idx)\n            if len(batch) == self.micro_batch_times_data_parallel_size:\n"
        "                start_idx",
        "            batch.append(idx if idx < 4 else idx - 1)\n"
        "            if len(batch) == self.micro_batch_times_data_parallel_size:\n"
        "                start_idx",
        ("tokens_placed", "slots of tokens differ from the plan"),
        step=1,
        lanes=("fail", "fail"),
    ),
}


def git(clone: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    subprocess.run(["git", "-C", str(clone), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The cells of a matrix that trains with each edit, one per branch of a scratch clone, by the edit's name."""
    folder = tmp_path_factory.mktemp("edits")
    clone = folder / "clone"
    subprocess.run(["git", "clone", "--quiet", "--shared", CLONE, str(clone)], check=True)
    stacks = []
    for name, edit in EDITS.items():
        git(clone, "checkout", "-q", "-b", name, MAIN)
        file = clone / edit.file
        assert file.read_text().count(edit.right) == 1, name
        file.write_text(file.read_text().replace(edit.right, edit.wrong))
        git(clone, "commit", "-qam", name)
        data = "{packages: [datasets==5.2.0, transformers==5.12.1, psutil==7.2.2]}"
        stacks.append(f"  {name}: [{{checkout: {clone}, ref: {name}, package: megatron-lm}}, {data}]")
    cases = [
        f"    - {{stack: {name}, args.clip-grad: {edit.clip_grad}, model.moe: {edit.moe}}}\n"
        for name, edit in EDITS.items()
    ]
    text = "name: edits\ntrain: {steps: 2}\nmatrix:\n  trainer: [megatron]\n  packing: [sft]\n  tp: [2]\n  cp: [2]\n"
    text += f"  case:\n{''.join(cases)}stacks:\n" + "\n".join(stacks) + "\n"
    code, report = report_of(folder, text)
    assert code == 1
    return {cell["axes"]["stack"]: cell for cell in report["cells"] if cell["role"] == "cell"}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_of_upstreams_trainer_fails_in_its_place(edited: dict[str, dict[str, Any]], name: str) -> None:
    cell, edit = edited[name], EDITS[name]
    assert (cell["outcome"], cell["lanes"]["metadata"], cell["lanes"]["numerics"]) == ("FAIL", *edit.lanes)
    check, text = edit.found
    messages = [finding["message"] for finding in cell["findings"] if finding["check"] == check]
    assert any(text in message for message in messages), [item["message"] for item in cell["findings"]]
    assert cell["findings"][0]["where"]["step"] == edit.step
