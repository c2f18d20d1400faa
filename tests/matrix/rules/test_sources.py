"""Every rule says whose limit it is, and the functions that it cites are in upstream's code."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from harness.matrix.rules.table import RULES

# Project -> the variable that names a clone of it.
CLONES = {
    "Megatron-LM": "HARNESS_MEGATRON_LM_REPO",
    "Megatron-Bridge": "HARNESS_MEGATRON_BRIDGE_REPO",
    "SkyRL": "HARNESS_SKYRL_REPO",
    "NeMo-RL": "HARNESS_NEMO_RL_REPO",
}
OTHERS = ("verl", "Transformer Engine", "torch", "FlashAttention", "GPTDataset")
OF_BRANCH_DEV = ("_calculate_padding_divisor", "DefaultDynamicCPScheduler", "VarlenDataset", "MockSFTLowLevelDataset")
_NAME = re.compile(r"\b(?:[A-Z][a-z]+(?:[A-Z]\w*)+|[A-Z]{2,}[a-z]\w+|_*[a-z0-9]+(?:_[a-z0-9]+)+)\b")
_OF_THE_HARNESS = ("seq_length", "micro_batch_size", "micro_batch", "attention_mask")


def cited(project: str) -> list[tuple[str, str]]:
    """Return the rules that cite a project, with the names that they cite."""
    found = []
    for rule in RULES:
        for part in re.split(r"; |, (?=[A-Z])", rule.source):
            named = {name for name in [*CLONES, *OTHERS] if name in part}
            names = {name for name in _NAME.findall(part) if name not in (*CLONES, *OF_BRANCH_DEV, *_OF_THE_HARNESS)}
            found += [(rule.id, name) for name in sorted(names)] if named == {project} else []
    return found


def test_every_source_names_the_harness_or_a_project_first() -> None:
    whose = ("harness: ", "the rules of layouts", *(f"{name} " for name in (*CLONES, *OTHERS)))
    odd = [(rule.id, rule.source) for rule in RULES if not rule.source.startswith((*whose, "Megatron-LM", "GPTModel"))]
    assert odd == []


@pytest.mark.parametrize(("project", "variable"), CLONES.items())
def test_what_a_rule_cites_is_in_upstreams_code(project: str, variable: str) -> None:
    clone = os.environ.get(variable, "")
    if not clone:
        pytest.skip(f"{variable} does not name a clone of {project}")
    names = {name for _, name in cited(project)}
    assert names
    there = _names_in(clone, names)
    assert [(rule, name) for rule, name in cited(project) if name not in there] == []


def _names_in(clone: str, names: set[str]) -> set[str]:
    """Return those of the names that Python files of the clone's commit have as whole words."""
    wanted = [word for name in sorted(names) for word in ("-e", name)]
    command = ["git", "-C", clone, "grep", "-howF", *wanted, "HEAD", "--", "*.py"]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
