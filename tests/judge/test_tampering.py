"""Every change of a field in any file is detected, except in the fields listed with a reason."""

from __future__ import annotations

import os
from pathlib import Path

from tests.judge.simulator import config_of, run_of
from tests.judge.tampering import tamper, unlisted, write_run

CANARIES = ("isolation", "order", "determinism", "padding", "rewriting", "repetition", "truncation")


def test_every_field_of_a_simulated_run_is_evidence_or_listed(tmp_path: Path) -> None:
    plan, evidence = run_of([config_of("reference", tp=2, pp=2, canaries=CANARIES)])
    found = tamper(write_run(tmp_path, plan, evidence), each=int(os.environ.get("HARNESS_TAMPER_EACH", "1")))
    assert sum(found.tried.values()) > 1000
    assert not unlisted(found), unlisted(found)
