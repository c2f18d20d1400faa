"""Known issues of Megatron-Bridge."""

from __future__ import annotations

from harness.upstreams.issue import KnownIssue

_BRIDGE = "https://github.com/NVIDIA-NeMo/Megatron-Bridge"


BRIDGE_ISSUES: tuple[KnownIssue, ...] = (
    KnownIssue(
        name="Megatron-Bridge issue 2952",
        link=f"{_BRIDGE}/issues/2952",
        package="megatron-bridge",
        check="params_present",
        since="0.4.0",
        fixed="0.5.0",
        data_path="bridge_offline",
        stage="middle",
    ),
)
