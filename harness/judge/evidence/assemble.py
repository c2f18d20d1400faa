"""Assembles values of the whole model from the ranks' shares: sums in float64, ranks in order."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.core.cell.layout import Coordinates
from harness.core.run.records import ActivationSeen, Fingerprint, ParameterSeen
from harness.judge.stats.distance import add


@dataclass(frozen=True, kw_only=True)
class ParameterGradient:
    fingerprint: Fingerprint
    stage: int
    shards: tuple[Fingerprint, ...] = ()  # by tp rank, if the parameter is sharded over tp
    parts: tuple[Fingerprint, ...] = ()  # if it is not, see records.ParameterSeen

    def part(self, start: int, count: int) -> Fingerprint:
        """Fingerprint of consecutive parts together."""
        return functools.reduce(add, self.parts[start : start + count])


def whole_gradients(ranks: Iterable[tuple[Coordinates, Sequence[ParameterSeen]]]) -> dict[str, ParameterGradient]:
    """Parameter -> gradient fingerprint of the whole tensor, in the order the ranks list them.

    Shards add up over tp. Of replicated parameters, and of the copies on cp, dp and (tied embeddings) other stages, the
    first counts: `replica_gradients` checks that copies agree. The first rank of an expert need not be cp 0, dp 0.
    """
    whole: dict[str, ParameterGradient] = {}
    owners: dict[str, tuple[int, int, int]] = {}
    for place, parameters in ranks:
        owner = (place.pp, place.cp, place.dp)
        for seen in parameters:
            known = whole.get(seen.name)
            shards = (seen.gradient,) if seen.sharded else ()
            if known is None:
                whole[seen.name] = ParameterGradient(
                    fingerprint=seen.gradient, stage=place.pp, shards=shards, parts=tuple(seen.parts)
                )
                owners[seen.name] = owner
            elif seen.sharded and owners[seen.name] == owner:
                whole[seen.name] = ParameterGradient(
                    fingerprint=add(known.fingerprint, seen.gradient), stage=known.stage, shards=known.shards + shards
                )
    return whole


def whole_activations(
    ranks: Iterable[tuple[Coordinates, Sequence[ActivationSeen]]], *, sp: bool
) -> dict[int, dict[int, Fingerprint]]:
    """Layer (0: embedding) -> document -> fingerprint over all tokens of the document.

    Summed over cp and, with sequence parallel, tp; without it every tp rank holds all tokens and tp 0 counts.
    """
    whole: dict[int, dict[int, Fingerprint]] = {}
    for place, layers in ranks:
        if place.tp and not sp:
            continue
        for seen in layers:
            layer = whole.setdefault(seen.layer, {})
            for document, part in seen.documents.items():
                layer[document] = add(layer[document], part) if document in layer else part
    return {layer: whole[layer] for layer in sorted(whole)}
