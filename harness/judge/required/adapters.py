"""Records required of a model with adapters: the weights that do not train, and those that upstream merges."""

from __future__ import annotations

from collections.abc import Iterator

from harness.core.peft import PeftConfig, is_adapter
from harness.core.run.records import RankRecord
from harness.judge.required.expected import Expected
from harness.judge.required.model import whole_model_problems

_EXPERT = ".experts."


def problems(expected: Expected, record: RankRecord) -> Iterator[str]:
    """Problems of one completed rank."""
    peft = expected.model.peft
    if peft is None:
        if record.frozen or record.merged:
            yield f"{len(record.frozen)} frozen and {len(record.merged)} merged weights, and the model has no adapters"
        return
    every = [item.name for item in record.parameters if not is_adapter(item.name)]
    every += [item.name for item in record.frozen]
    yield from (f"frozen: {problem}" for problem in whole_model_problems(expected, record.place, every))
    yield from (f"frozen: {item.name} has no digest" for item in record.frozen if not item.before or not item.after)
    if expected.config.fingerprints and expected.evidence.steps:
        yield from _adapters(peft, record, every)
    yield from _merged(peft, record, every)


def _adapters(peft: PeftConfig, record: RankRecord, every: list[str]) -> Iterator[str]:
    """Each layer that should have an adapter has one, and no other has."""
    held = {item.name.partition(".adapter.")[0] for item in record.parameters if is_adapter(item.name)}
    right = {name.removesuffix(".weight") for name in every if peft.adapts(name)}
    for layer in sorted(held ^ right):
        yield f"parameters: {layer} has {'an' if layer in held else 'no'} adapter that trains"


def _merged(peft: PeftConfig, record: RankRecord, every: list[str]) -> Iterator[str]:
    found = sorted(item.name for item in record.merged)
    right = sorted(name for name in every if peft.adapts(name)) if peft.merges else []
    if found != right:
        odd = sorted({*found} ^ {*right})
        yield f"merged: {len(found)} weights, not {len(right)}; {odd[:1] or 'one is listed twice'}"
    for item in record.merged:
        if item.after is None or (item.output_off is None) != (_EXPERT in item.name):
            yield f"merged: {item.name}: after is {item.after}, output_off {item.output_off}"
