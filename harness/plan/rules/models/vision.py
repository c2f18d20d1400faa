"""Rules of models with vision: what passes them images, how their tower and their language model split."""

from __future__ import annotations

from harness.core.data_paths.megatron_bridge import IN_BATCH
from harness.core.data_paths.own import UNPACKED
from harness.plan.rules.rule import Rule, Shape, not_divisible


def images_have_a_path(config: Shape) -> str | None:
    if not config.model.vision or config.data_path in (IN_BATCH.name, UNPACKED.name):
        return None
    return (
        f"model.vision with packing {config.data_path}, which passes no images and no positions along three axes; only "
        f"{IN_BATCH.name} does, and {UNPACKED.name}"
    )


def images_need_a_tower(config: Shape) -> str | None:
    if config.model.vision or not config.documents.images:
        return None
    return "documents have images, and the model has no vision: set model.vision, or other documents"


def chats_have_an_answer(config: Shape) -> str | None:
    if not config.model.vision or config.data_path != IN_BATCH.name or not config.documents.masked:
        return None
    return (
        f"documents {config.documents.mode} have one that is all prompt, which upstream's collator of images refuses; "
        "use documents: images or plain"
    )


def no_other_parts(config: Shape) -> str | None:
    model = config.model
    found = next((name for name in ("moe", "mtp", "mla", "pattern") if getattr(model, name)), None)
    return f"model.vision with model.{found}: the probe builds a dense Qwen3-VL" if model.vision and found else None


def one_chunk_per_stage(config: Shape) -> str | None:
    layout = config.layout
    if not config.model.vision or layout.vpp == 1:
        return None
    return (
        f"vpp {layout.vpp}: Qwen3VLModel sets its own vp_stage to None, so every chunk would be the first of its stage"
    )


def deepstack_on_first_stage(config: Shape) -> str | None:
    vision, layout = config.model.vision, config.layout
    if vision is None:
        return None
    held = config.model.layers // layout.pp
    if vision.deepstack <= held:
        return None
    return (
        f"model.vision.deepstack {vision.deepstack}: the first stage has {held} of {config.model.layers} layers at pp "
        f"{layout.pp}, and only it gets the features of the tower"
    )


def tower_by_tp(config: Shape) -> str | None:
    vision, tp = config.model.vision, config.layout.tp
    if vision is None:
        return None
    sizes = (("heads", vision.heads), ("ffn", vision.ffn))
    reasons = (not_divisible(f"model.vision.{name}", size, f"tp {tp}", tp) for name, size in sizes)
    return next((reason for reason in reasons if reason), None)


_MODEL = "Megatron-Bridge Qwen3VLModel"
RULES: tuple[Rule[Shape], ...] = (
    Rule(
        "vision.images-have-a-path",
        "Megatron-Bridge training.vlm_step: the step with visual_inputs",
        images_have_a_path,
        part="vision",
    ),
    Rule("vision.images-need-a-tower", "harness: image tokens without a vision tower", images_need_a_tower),
    Rule(
        "vision.chats-have-an-answer",
        "Megatron-Bridge build_assistant_loss_mask (0.6): ValueError without loss-contributing spans",
        chats_have_an_answer,
        part="vision",
    ),
    Rule("vision.no-other-parts", "harness: the probe builds dense models with vision", no_other_parts, part="vision"),
    Rule("vision.one-chunk-per-stage", f"{_MODEL}.__init__: self.vp_stage = None", one_chunk_per_stage, part="vision"),
    Rule(
        "vision.deepstack-on-first-stage",
        f"{_MODEL}.__init__: deepstack_visual_embeds on the first pp-stage",
        deepstack_on_first_stage,
        part="vision",
    ),
    Rule("vision.tower-by-tp", "Megatron-LM ColumnParallelLinear: output size % TP == 0", tower_by_tp, part="vision"),
)
