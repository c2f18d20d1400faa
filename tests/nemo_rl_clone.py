"""The clone of NeMo-RL that some tests take commits from; HARNESS_NEMO_RL_REPO names it."""

from __future__ import annotations

import os

import pytest

CLONE = os.environ.get("HARNESS_NEMO_RL_REPO", "")
needs_clone = pytest.mark.skipif(not CLONE, reason="HARNESS_NEMO_RL_REPO does not name a clone of NeMo-RL")
