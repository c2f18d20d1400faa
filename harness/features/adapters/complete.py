"""What records must hold of a model with adapters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.core.run.records import RankRecord
from harness.features.adapters.config import PeftConfig, is_adapter
from harness.judge.evidence.expected import OF_EXPERT, Expected, stage_problems


def missing(expected: Expected, record: RankRecord) -> Iterator[str]:
    """Require weights that do not train, adapters of those that have one, and the weights that upstream merges."""
    peft = expected.model.peft
    if peft is None:
        return
    base_names = [weight.name for weight in record.parameters if not is_adapter(weight.name)]
    base_names += [weight.name for weight in record.frozen]
    yield from (f"frozen: {problem}" for problem in stage_problems(expected, record.place, base_names))
    yield from (
        f"frozen: {weight.name} has no digest" for weight in record.frozen if not weight.before or not weight.after
    )
    if expected.fingerprints:
        held = {weight.name.partition(".adapter.")[0] for weight in record.parameters if is_adapter(weight.name)}
        adapted = {name.removesuffix(".weight") for name in base_names if peft.adapts(name)}
        for layer in sorted(held ^ adapted):
            yield f"parameters: {layer} has {'an' if layer in held else 'no'} adapter that trains"
    yield from _merged(peft, record, base_names)


def _merged(peft: PeftConfig, record: RankRecord, base_names: list[str]) -> Iterator[str]:
    merged = sorted(weight.name for weight in record.merged)
    expected = sorted(name for name in base_names if peft.adapts(name)) if peft.merges else []
    if merged != expected:
        yield f"merged: {len(merged)} weights, not {len(expected)}"
    for weight in record.merged:
        if weight.after is None or (weight.output_off is None) != (OF_EXPERT.search(weight.name) is not None):
            yield f"merged: {weight.name}: after is {weight.after}, output_off {weight.output_off}"


def missing_frozen(expected: Expected, records: Mapping[int, RankRecord]) -> Iterator[str]:
    """Require that all ranks together hold the frozen weights of the control.

    One that trains is held too: the check `frozen_weights` reports it.
    """
    control = expected.evidence.control
    if expected.model.peft is None or control is None:
        return
    held = {weight.name for record in records.values() for weight in record.frozen}
    held |= {parameter.name for record in records.values() for parameter in record.parameters}
    expected_names = {weight.name for record in control.records.values() for weight in record.frozen}
    if expected_names - held:
        lost = min(expected_names - held)
        count = len(held & expected_names)
        yield f"frozen: no rank holds {lost}; the cell has {count}, the control {len(expected_names)}"
