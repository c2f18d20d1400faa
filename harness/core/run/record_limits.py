"""How much of some things a rank records: the recording side and the judge agree on it here."""

from __future__ import annotations

PROJECTIONS = 2  # random projections in a fingerprint
MOST_TOKEN_LOSSES = 8192  # per rank and pass, to the end of a micro-batch: more would make records larger than useful
