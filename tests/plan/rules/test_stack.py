from __future__ import annotations

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Layout
from harness.core.stack import Stack
from harness.plan.rules.stack import container_rule
from harness.plan.rules.table import rejections

STACKS = {
    "image": Stack(name="image", container="registry/image:25.10"),
    "wheel": Stack(name="wheel", packages=("six",)),
}


def reason(stack: str) -> str | None:
    config = CellConfig(layout=Layout(), data_path="sft", stack=stack)
    return next((found.reason for found in rejections(config, (container_rule(STACKS),))), None)


def test_a_container_is_rejected_on_this_machine() -> None:
    assert reason("image") == (
        "stack image is container registry/image:25.10, and cells run on this machine; use --cluster"
    )


def test_stacks_without_a_container_are_allowed() -> None:
    assert [reason("wheel"), reason("default")] == [None, None]
