"""Names of the probable classes of fault, after the classes of the bug corpus (docs/checks.md).

A class is a guess from the pattern of what differs; the finding's numbers are the evidence.
"""

from __future__ import annotations

MIDDLE_STAGES = "A metadata: middle stages without cu_seqlens"
LAST_STAGE = "A metadata: last stage without cu_seqlens"
TP_RANKS = "A metadata: tp ranks > 0 without cu_seqlens"
LATER_CHUNKS = "A metadata: later model chunks without cu_seqlens"
LOST_IN_MODEL = "A metadata: lost between the data path and attention"
MISSING = "A metadata: packed params missing"
CU_SEQLENS = "A metadata: cu_seqlens wrong"
STALE = "A metadata: cu_seqlens of another micro-batch"
MAX_SEQLEN = "A metadata: max_seqlen wrong"
FORM = "A metadata: dtype, shape or type"
RANKS_DIFFER = "A metadata: ranks of a replica differ"
PARAMS_UNPACKED = "A metadata: packed params in an unpacked run"
REAL_PADDED = "B real and padded lengths mixed up"
CP_LAYOUT = "B cp layout"
LEAK = "C leak between documents"
NORMALISATION = "D normalisation"
TOKEN_COUNT = "D token count"
GRADIENT_REDUCTION = "D gradient reduction or weighting"
HANG = "E hang"
CRASH = "E shapes or crash"
MICRO_BATCHES = "E micro-batch counts"
STAGE_BOUNDARY = "E pipeline stage boundary"
TRUNCATION = "truncation"
TOKEN_CONTENT = "token content"
NON_FINITE = "non-finite values"
INFRASTRUCTURE = "infrastructure"
UNKNOWN = "unclassified"
