"""Rules of vision models."""

from __future__ import annotations

from harness.core.cell.config import CellConfig
from harness.core.cell.model import OF_ROTARY, ModelConfig
from harness.core.setting import keys_of
from harness.matrix.rules.rule import Rule, not_divisible
from harness.upstreams.builtin.spec import UNPACKED
from harness.upstreams.megatron_bridge.spec import IN_BATCH


def images_have_a_path(config: CellConfig) -> str | None:
    if not config.model.vision or config.data_path in (IN_BATCH.name, UNPACKED.name):
        return None
    return (
        f"model.vision with packing {config.data_path}, which passes no images and no positions along three axes; only "
        f"{IN_BATCH.name} does, and {UNPACKED.name}"
    )


def images_need_a_tower(config: CellConfig) -> str | None:
    if config.model.vision or not config.documents.images:
        return None
    return "documents have images, and the model has no vision: set model.vision, or other documents"


def chats_have_an_answer(config: CellConfig) -> str | None:
    if not config.model.vision or config.data_path != IN_BATCH.name or not config.documents.masked:
        return None
    return (
        f"documents {config.documents.mode} have one that is all prompt, which upstream's collator of images refuses; "
        "use documents: images or plain"
    )


def vision_without_other_parts(config: CellConfig) -> str | None:
    model, keys = config.model, keys_of(ModelConfig)
    of_language = (
        "position_embedding",
        *OF_ROTARY,
        "normalization",
        "layernorm_1p",
        "activation",
        "biases",
        "qkv_bias",
    )
    names = ("moe", "mtp", "mla", "pattern", *of_language)
    found = next((name for name in names if getattr(model, name) != keys[name].default), None)
    return f"model.vision with model.{found}: the probe builds a dense Qwen3-VL" if model.vision and found else None


def one_chunk_per_stage(config: CellConfig) -> str | None:
    layout = config.layout
    if not config.model.vision or layout.vpp == 1:
        return None
    return (
        f"vpp {layout.vpp}: Qwen3VLModel sets its own vp_stage to None, so every chunk would be the first of its stage"
    )


def deepstack_on_first_stage(config: CellConfig) -> str | None:
    vision, layout = config.model.vision, config.layout
    if vision is None:
        return None
    held = layout.chunk_sizes(config.model.layers)[0]
    if vision.deepstack <= held:
        return None
    return (
        f"model.vision.deepstack {vision.deepstack}: the first stage has {held} of {config.model.layers} layers at pp "
        f"{layout.pp}, and only it gets the features of the tower"
    )


def tower_by_tp(config: CellConfig) -> str | None:
    vision, tp = config.model.vision, config.layout.tp
    if vision is None:
        return None
    sizes = (("heads", vision.heads), ("ffn", vision.ffn))
    reasons = (not_divisible(f"model.vision.{name}", size, f"tp {tp}", tp) for name, size in sizes)
    return next((reason for reason in reasons if reason), None)


_VISION_MODEL = "Megatron-Bridge Qwen3VLModel"


VISION_RULES: tuple[Rule, ...] = (
    Rule(
        "vision.images-have-a-path",
        "harness: batches of images as Megatron-Bridge's training.vlm_step has them, with visual_inputs",
        images_have_a_path,
    ),
    Rule("vision.images-need-a-tower", "harness: image tokens without a vision tower", images_need_a_tower),
    Rule(
        "vision.chats-have-an-answer",
        "Megatron-Bridge build_assistant_loss_mask (0.6): ValueError without loss-contributing spans",
        chats_have_an_answer,
    ),
    Rule("vision.no-other-parts", "harness: the probe builds dense models with vision", vision_without_other_parts),
    Rule("vision.one-chunk-per-stage", f"{_VISION_MODEL}.__init__: self.vp_stage = None", one_chunk_per_stage),
    Rule(
        "vision.deepstack-on-first-stage",
        f"{_VISION_MODEL}.__init__: deepstack_visual_embeds on the first pp-stage",
        deepstack_on_first_stage,
    ),
    Rule("vision.tower-by-tp", "Megatron-LM ColumnParallelLinear: output size % TP == 0", tower_by_tp),
)
