"""The catalogue of faults that `harness selftest` injects. Values only: the injections are in harness/node/faults."""

from __future__ import annotations

from harness.plan.faults.attention import ATTENTION
from harness.plan.faults.canaries import CANARY
from harness.plan.faults.content import CONTENT, LAYOUT
from harness.plan.faults.endings import CRASH, HANG, INFRASTRUCTURE
from harness.plan.faults.experts import EXPERTS
from harness.plan.faults.hybrid import HYBRID
from harness.plan.faults.metadata import METADATA
from harness.plan.faults.models import MODELS
from harness.plan.faults.numerics import LEAK, NORMALISATION, OUTPUT
from harness.plan.faults.slow import THROUGHPUT
from harness.plan.faults.spec import CLASSES, FaultSpec
from harness.plan.faults.upstream.adapters import ADAPTERS
from harness.plan.faults.upstream.rollouts import ROLLOUT
from harness.plan.faults.upstream.scheduler import SCHEDULER
from harness.plan.faults.upstream.trainers import TRAINER
from harness.plan.faults.upstream.unit_tests import UNIT_TESTS
from harness.plan.faults.upstream.vision import VISION

FAULTS: tuple[FaultSpec, ...] = (
    METADATA
    + LAYOUT
    + OUTPUT
    + CONTENT
    + LEAK
    + NORMALISATION
    + MODELS
    + HYBRID
    + EXPERTS
    + ADAPTERS
    + ATTENTION
    + CANARY
    + HANG
    + CRASH
    + INFRASTRUCTURE
    + THROUGHPUT
    + TRAINER
    + VISION
    + ROLLOUT
    + SCHEDULER
    + UNIT_TESTS
)

__all__ = ["CLASSES", "FAULTS", "FaultSpec"]
