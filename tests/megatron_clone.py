"""The clone of Megatron-LM that some tests take commits from; HARNESS_MEGATRON_LM_REPO names it."""

from __future__ import annotations

import os

import pytest

CLONE = os.environ.get("HARNESS_MEGATRON_LM_REPO", "")
needs_clone = pytest.mark.skipif(not CLONE, reason="HARNESS_MEGATRON_LM_REPO does not name a clone of Megatron-LM")
