"""Training runs as users have them, read by `run --from`: PASS on clones, and FAIL at the place of edits of them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from harness.inputs import yaml_file
from tests.cli.conftest import harness
from tests.cli.test_from_run import SFT_8B
from tests.matrix.intake.test_corpus import CORPUS
from tests.matrix.intake.test_projects import nested

pytestmark = [pytest.mark.train, pytest.mark.long]
DUMPED = "llama3_70b_sft_32gpu_h100_bf16_config"
SUBMODULE = "3rdparty/Megatron-LM"
SFT = "src/megatron/bridge/data/packing/gpt_sft.py"
DATA = "nemo_rl/models/megatron/data.py"


class Run(NamedTuple):
    """A training run, and the clone whose code it trains with."""

    clone: Path
    source: str


class Bug(NamedTuple):
    """A line of upstream's code, what takes its place, and where the report must see it first."""

    file: str
    line: str
    instead: str
    check: str
    message: str


MEGATRON = {
    "middle stages get no cu_seqlens": Bug(
        "megatron/core/utils.py",
        "            cu_seqlens = _broadcast_cu_seqlens()\n            _broadcast(max_seqlen)\n"
        "            if cp_size > 1:\n                cu_seqlens_padded = _broadcast_cu_seqlens()\n\n        batch = {",
        "            cu_seqlens = _broadcast_cu_seqlens()\n            _broadcast(max_seqlen)\n"
        "            if cp_size > 1:\n                cu_seqlens_padded = _broadcast_cu_seqlens()\n"
        "            cu_seqlens = cu_seqlens_padded = None\n\n        batch = {",
        "params_present",
        "stage 1",
    ),
    "documents leak into each other": Bug(
        "pretrain_gpt.py",
        "            cu_seqlens_q=cu_seqlens_for_params,\n            cu_seqlens_kv=cu_seqlens_for_params,",
        "            cu_seqlens_q=cu_seqlens_for_params[[0, -1]],\n"
        "            cu_seqlens_kv=cu_seqlens_for_params[[0, -1]],",
        "params_agree_plan",
        "cu_seqlens",
    ),
    "context ranks split rows, not documents": Bug(
        "megatron/core/utils.py",
        '    if use_per_sequence_balancing or batch.get("cu_seqlens") is None:',
        "    if True:",
        "tokens_placed",
        "cp",
    ),
    "positions go on from one document to the next": Bug(
        "megatron/core/models/common/embeddings/rope_utils.py",
        "    local_pos = token_pos - local_seq_start",
        "    local_pos = token_pos",
        "activations",
        "layer 1",
    ),
    "labels are those of the slot before": Bug(
        "megatron/training/datasets/sft_dataset.py",
        "torch.tensor(pack_targets[1:], dtype=torch.int64)",
        "torch.tensor(pack_targets[:-1], dtype=torch.int64)",
        "tokens_placed",
        "labels",
    ),
}


BRIDGE = {
    "middle stages get no metadata (2d58a6fe5)": Bug(
        "src/megatron/bridge/training/gpt_step.py",
        "    return uses_custom_attention_mask or _uses_packed_sequence_metadata(cfg)\n",
        "    return uses_custom_attention_mask\n",
        "params_present",
        "stage 1",
    ),
    "labels are the tokens": Bug(
        SFT,
        'item["input_ids"][item["seq_boundaries"][i] + 1 : item["seq_boundaries"][i + 1]]',
        'item["input_ids"][item["seq_boundaries"][i] : item["seq_boundaries"][i + 1] - 1]',
        "tokens_placed",
        "labels",
    ),
    "labels after a token that ends a turn do not count (84e7948ea)": Bug(
        SFT,
        "        loss_mask = torch.LongTensor(loss_mask)\n",
        "        loss_mask = torch.LongTensor(loss_mask)\n        loss_mask[tokens == self.tokenizer.eos_id] = 0\n",
        "tokens_placed",
        "loss_mask",
    ),
}
NEMO = {
    "rows of stages have no common length": Bug(
        DATA,
        "        pad_packed_seq_to = max_seq_len_in_batch\n",
        "        pad_packed_seq_to = None\n",
        "params_agree_plan",
        "not at the physical length",
    ),
    "padded offsets are those of tokens": Bug(
        DATA,
        "        cu_seqlens_q_padded=cu_seqlens_padded,\n        cu_seqlens_kv_padded=cu_seqlens_padded,\n"
        "        max_seqlen_q=int(max_seqlen),",
        "        cu_seqlens_q_padded=cu_seqlens,\n        cu_seqlens_kv_padded=cu_seqlens,\n"
        "        max_seqlen_q=int(max_seqlen),",
        "params_agree_plan",
        "cu_seqlens_q_padded",
    ),
    "log-probabilities are those of the slot after": Bug(
        "nemo_rl/distributed/model_utils.py",
        "seq_probs = probs[start_idx : end_idx - 1]",
        "seq_probs = probs[start_idx + 1 : end_idx]",
        "tokens_placed",
        "log_probs",
    ),
}


BUGS = {
    (project, name): bug
    for project, bugs in (("megatron_lm", MEGATRON), ("bridge", BRIDGE), ("nemo_rl", NEMO))
    for name, bug in bugs.items()
}


def cloned(variable: str, folder: Path, *folders: str) -> Path:
    """Clone the repository that an environment variable names; `folders`: check out these alone."""
    source = os.environ.get(variable)
    if not source:
        pytest.skip(f"{variable} names no clone")
    subprocess.run(["git", "clone", "--quiet", "--no-checkout", source, str(folder)], check=True)
    if folders:
        subprocess.run(["git", "-C", str(folder), "sparse-checkout", "set", *folders], check=True)
    subprocess.run(["git", "-C", str(folder), "checkout", "--quiet"], check=True)
    return folder


@pytest.fixture(scope="module")
def megatron_lm(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("megatron_lm")
    (folder / "train.sh").write_text(SFT_8B)
    return Run(cloned("HARNESS_MEGATRON_LM_REPO", folder / "Megatron-LM"), str(folder / "train.sh"))


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("bridge")
    clone = cloned("HARNESS_MEGATRON_BRIDGE_REPO", folder / "Megatron-Bridge", "src", "3rdparty")
    pin = subprocess.check_output(["git", "-C", str(clone), "rev-parse", f"HEAD:{SUBMODULE}"], text=True).strip()
    megatron = cloned("HARNESS_MEGATRON_LM_REPO", clone / SUBMODULE)
    subprocess.run(["git", "-C", str(megatron), "checkout", "--quiet", pin], check=True)
    runs = yaml_file.read(CORPUS / "megatron-bridge.yaml").values["runs"]
    settings = next(run["settings"] for run in runs if run["path"].endswith(f" {DUMPED}"))
    (folder / "run_config.yaml").write_text(json.dumps(nested(settings)))
    return Run(clone, str(folder / "run_config.yaml"))


@pytest.fixture(scope="module")
def nemo_rl(tmp_path_factory: pytest.TempPathFactory) -> Run:
    clone = cloned("HARNESS_NEMO_RL_REPO", tmp_path_factory.mktemp("nemo_rl") / "RL")
    return Run(clone, "examples/configs/recipes/llm/sft-llama3.1-8b-1n8g-megatron-seqpack.yaml")


def verdict(run: Run, folder: Path) -> tuple[int, list[dict[str, Any]], str]:
    """Run it in the clone; return the exit code, the cells of report.json and the output."""
    for written in run.clone.glob("*.matrix.yaml"):
        written.unlink()
    done = harness("run", "--from", run.source, "--run-dir", str(folder), "--no-history", cwd=run.clone)
    (report,) = folder.glob("*/report.json")
    return done.returncode, json.loads(report.read_text())["cells"], done.stdout + done.stderr


@pytest.mark.parametrize("project", ["megatron_lm", "bridge", "nemo_rl"])
def test_main_passes(project: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    code, cells, said = verdict(request.getfixturevalue(project), tmp_path)
    assert code == 0, said
    assert {cell["outcome"] for cell in cells} == {"PASS"}


@pytest.mark.parametrize(("project", "name"), BUGS)
def test_a_bug_is_seen_at_its_place(project: str, name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    run, bug = request.getfixturevalue(project), BUGS[project, name]
    file = run.clone / bug.file
    text = file.read_text()
    assert text.count(bug.line) == 1, f"{bug.file} has changed: {bug.line}"
    file.write_text(text.replace(bug.line, bug.instead))
    try:
        code, cells, said = verdict(run, tmp_path)
    finally:
        file.write_text(text)
    assert code == 1, said
    first = next(cell["findings"][0] for cell in cells if cell["outcome"] == "FAIL")
    assert (first["check"], bug.message in first["message"]) == (bug.check, True), first
