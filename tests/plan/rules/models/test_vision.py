"""Rules of models with vision: each rejects a cell and allows the nearest one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.core.cell.config import CellConfig
from harness.core.cell.model import ModelConfig, MoeConfig
from harness.core.packing.documents import DocumentsConfig, mix
from harness.core.vision import VisionConfig
from harness.plan.schema.model import model_problems
from tests.plan.rules.models.test_model import cell, reason

IMAGES = DocumentsConfig(mode="file", lengths=(16,), images=1)


def seeing(path: str = "bridge_in_batch", *, vision: dict[str, Any] | None = None, **more: Any) -> CellConfig:
    parts = {name: more.pop(name) for name in ("moe",) if name in more}
    size = 1 if path == "unpacked" else 2
    return cell(path, micro_batch_size=size, model=ModelConfig(vision=VisionConfig(**(vision or {})), **parts), **more)


@pytest.mark.parametrize(
    ("rule", "wrong", "expected", "right"),
    [
        ("vision.images-have-a-path", seeing("reference"), "packing reference, which passes no images", seeing()),
        ("vision.images-have-a-path", seeing("bridge_offline"), "packing bridge_offline", seeing("unpacked")),
        (
            "vision.images-need-a-tower",
            replace(cell(), documents=IMAGES),
            "documents have images, and the model has no vision",
            replace(seeing(), documents=IMAGES),
        ),
        (
            "vision.chats-have-an-answer",
            replace(seeing(), documents=mix("uncut", 64, 2)),
            "documents uncut have one that is all prompt",
            replace(seeing(), documents=mix("images", 64, 2)),
        ),
        ("vision.no-other-parts", seeing(moe=MoeConfig()), "model.vision with model.moe", seeing()),
        ("vision.one-chunk-per-stage", seeing(pp=2, vpp=2), "vpp 2: Qwen3VLModel sets", seeing(pp=2)),
        (
            "vision.deepstack-on-first-stage",
            seeing(vision={"layers": 3, "deepstack": 3}, pp=2),
            "the first stage has 2 of 4 layers at pp 2",
            seeing(vision={"layers": 3, "deepstack": 2}, pp=2),
        ),
        (
            "vision.tower-by-tp",
            seeing(vision={"ffn": 63}, tp=2),
            "model.vision.ffn 63 is not divisible by tp 2",
            seeing(tp=2),
        ),
        (
            "attention.kernel-vision",
            replace(seeing(), attention="te"),
            "those that upstream gives it, Transformer Engine's, compute on a GPU only",
            replace(seeing(), attention="reference"),
        ),
    ],
)
def test_a_rule_rejects_and_allows(rule: str, wrong: CellConfig, expected: str, right: CellConfig) -> None:
    assert expected in str(reason(rule, wrong))
    assert reason(rule, right) is None


@pytest.mark.parametrize(
    ("vision", "key", "expected"),
    [
        ({"sections": (2, 2, 1)}, "vision.sections", "half of the head size is 4, and 2 + 2 + 1 = 5"),
        ({"heads": 3}, "vision.heads", "hidden 32 is not divisible by 4 x heads 3"),
        ({"deepstack": 3}, "vision.deepstack", "the tower has 2 layers, and deepstack is 3"),
    ],
)
def test_a_tower_that_no_layout_can_run_is_named(vision: dict[str, Any], key: str, expected: str) -> None:
    ((found, message),) = model_problems(ModelConfig(vision=VisionConfig(**vision)))
    assert (found, expected in message) == (key, True)
