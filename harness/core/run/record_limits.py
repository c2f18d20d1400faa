"""Limits on what a rank records, shared by the recorder and the judge."""

from __future__ import annotations

PROJECTIONS = 2  # random projections in a fingerprint
MOST_TOKEN_LOSSES = 8192  # per rank and pass, checked per micro-batch: more would make records larger than useful
