"""Recipes of Megatron-Bridge are found by the text of their files, so that finding one imports none."""

from __future__ import annotations

from pathlib import Path

from harness.upstreams.megatron_bridge.node_recipe import modules_of


def test_recipes_and_their_aliases_are_found(tmp_path: Path) -> None:
    for name, text in (
        ("llama/h100/llama3.py", "def llama3_2gpu_config(scheme: str):\n    ...\ndef _base_config():\n    ...\n"),
        ("llama/__init__.py", "from .h100.llama3 import (\n    llama3_2gpu_config as llama3_config,\n)\n"),
        ("utils/data.py", "def default_config():\n    ...\n"),
        ("common.py", "def common_config():\n    ...\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert modules_of(tmp_path) == {
        "llama3_config": "megatron.bridge.recipes.llama",
        "llama3_2gpu_config": "megatron.bridge.recipes.llama.h100.llama3",
    }
