"""Known issues of SkyRL."""

from __future__ import annotations

from harness.features.hybrid.pattern import MAMBA
from harness.upstreams.issue import KnownIssue

_SKYRL = "https://github.com/NovaSky-AI/SkyRL"


SKYRL_ISSUES: tuple[KnownIssue, ...] = (
    KnownIssue(
        name="SkyRL pull request 1407",
        link=f"{_SKYRL}/pull/1407",
        package="skyrl",
        check="completeness",
        since="0.1.0",
        fixed="0.2.0",
        data_path="skyrl",
        message_contains="must match the existing size (0)",
    ),
    KnownIssue(
        name="SkyRL pull request 2056",
        link=f"{_SKYRL}/pull/2056",
        package="skyrl",
        check="activations",
        since="0.1.0",
        fixed="0.4.0",
        data_path="skyrl",
        layer=MAMBA,
        message_contains="document boundary",
    ),
)
