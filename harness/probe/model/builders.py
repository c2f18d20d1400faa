"""Models that plug-ins build, by their name as `model.builder`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.core.cell.config import CellConfig

# (configuration, upstream's TransformerConfig, virtual stage or None, arguments of GPTModel) -> a chunk of the model:
# GPTModel or a module with its attributes, whose parameters have the same names in every layout.
Builder = Callable[[CellConfig, Any, int | None, dict[str, Any]], Any]

MODELS: dict[str, Builder] = {}
