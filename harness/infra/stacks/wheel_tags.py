"""Wheels whose tag asks for a newer glibc than their files need: uv refuses them on systems where they work."""

from __future__ import annotations

import platform
import re

# Distribution -> platform of its wheels. The one extension of nvidia-resiliency-ext 0.7.0 needs glibc 2.32.
_TAGS = {"nvidia-resiliency-ext": "manylinux_2_39"}


def distribution(requirement: str) -> str:
    """The normalised name in a requirement."""
    return re.split(r"[=<>!~\[ ;]", requirement.strip(), maxsplit=1)[0].lower().replace("_", "-")


def options(requirement: str) -> list[str]:
    """Options of uv pip install with which it takes the wheel."""
    tag = _TAGS.get(distribution(requirement))
    return [] if tag is None else ["--python-platform", f"{platform.machine()}-{tag}"]
