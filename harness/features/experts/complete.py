"""What a record must hold of a model with experts."""

from __future__ import annotations

from collections.abc import Iterator

from harness.core.cell.modelled import follows_choices
from harness.core.run.records import RankRecord
from harness.features.experts.config import MoeConfig
from harness.judge.evidence.expected import Expected, keys_problems


def missing(expected: Expected, record: RankRecord) -> Iterator[str]:
    """Require routers, their losses and biases, and the choices that the oracle follows."""
    moe = expected.model.moe
    if moe is None:
        return
    routed = expected.routed(record.place.pp)
    yield from _routers(expected, moe, record, routed)
    yield from _biases(expected, moe, record, routed)
    yield from _choices(expected, moe, record, routed)


def _routers(expected: Expected, moe: MoeConfig, record: RankRecord, routed: list[int]) -> Iterator[str]:
    rows, first = expected.config.micro_batch_size, expected.has_first_step
    numbers = expected.micro_batches(0, record.place.dp) if first else ()
    planned = [(layer, number) for layer in routed for number in numbers]
    yield from keys_problems("routers", [(router.layer, router.micro_batch) for router in record.routers], planned)
    if first and expected.model.router_losses and record.aux_scale is None:
        yield "aux_scale is missing, and the model has an auxiliary loss"
    needed = ["aux_loss", "aux_weighted"] if moe.balanced else []
    needed += ["z_loss", "z_weighted"] if moe.z_loss_coeff > 0 else []
    needed += ["kept"] if moe.capacity_factor is not None else []
    for router in record.routers:
        where = f"routers: layer {router.layer}, micro-batch {router.micro_batch}"
        yield from (f"{where}: {name} is missing" for name in needed if getattr(router, name) is None)
        shares = [*router.real, *router.padding]
        sizes = {size for share in shares for size in (len(share.counts), len(share.scores))}
        if {len(router.real), len(router.padding)} != {rows} or sizes != {moe.experts}:
            yield f"{where}: not {rows} rows of {moe.experts} experts"
        if moe.z_loss_coeff > 0 and any(share.squares is None for share in shares):
            yield f"{where}: squares are missing"


def _biases(expected: Expected, moe: MoeConfig, record: RankRecord, routed: list[int]) -> Iterator[str]:
    planned = [(step, layer) for step in expected.evidence.steps for layer in routed if moe.expert_bias]
    yield from keys_problems("expert_biases", [(bias.step, bias.layer) for bias in record.expert_biases], planned)
    if any(len(bias.values) != moe.experts for bias in record.expert_biases):
        yield f"expert_biases: not of {moe.experts} experts"


def _choices(expected: Expected, moe: MoeConfig, record: RankRecord, routed: list[int]) -> Iterator[str]:
    config = expected.config
    evaluated = [config.train.steps + number for number in config.evaluations]
    planned = [
        (step, layer, number)
        for step in ((*expected.evidence.steps, *evaluated) if follows_choices(config) else ())
        for layer in routed
        for number in range(len(config.micro_batches(step)[record.place.dp]))
    ]
    held = [(choice.step, choice.layer, choice.micro_batch) for choice in record.choices]
    yield from keys_problems("choices", held, planned)
    if moe.capacity_factor is not None and any(choice.taken is None for choice in record.choices):
        yield "choices: what experts take within their capacity is missing"
