"""Distances between the records of a run's ranks and the oracle, by quantity."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.core.run.record_file import RecordReader
from harness.core.run.record_limits import PROJECTIONS
from harness.core.run.records import RankRecord
from harness.core.run.tensor_records import Fingerprint
from harness.core.serialization import from_jsonable, loads
from harness.oracle.drawing import draw
from harness.oracle.fields import uncovered
from harness.oracle.train import Trained, train

Prints = list[float]  # sum of squares, then the projections
Distances = dict[str, tuple[float, str]]  # quantity -> the largest distance, and where


def attempts(run: Path) -> Iterator[tuple[str, CellConfig, list[RankRecord]]]:
    """(name, configuration, records of the ranks) of each cell of a run that trained."""
    reader = RecordReader()
    for attempt in sorted(run.glob("cells/*/attempt-1")):
        config = from_jsonable(CellConfig, loads((attempt / "config.json").read_text()))
        records = [reader.read(path.read_text()) for path in sorted((attempt / "ranks").glob("rank-*.json"))]
        if records and records[0].steps:
            yield attempt.parent.name, config, records


def of_run(run: Path) -> dict[str, Distances]:
    """Name of each cell -> its distances."""
    found = {}
    for name, config, records in attempts(run):
        assert uncovered(records[0].built) == [], name
        found[name] = distances(records, train(config, records[0].built), config)
    return found


def distances(ranks: Sequence[RankRecord], oracle: Trained, config: CellConfig) -> Distances:
    found: Distances = {}

    def note(what: str, value: float, where: str) -> None:
        found[what] = max(found.get(what, (-1.0, "")), (value, where))

    for step, expected in enumerate(oracle.steps):
        measured = _document_losses(ranks, step)
        assert measured.keys() == expected.documents.keys()
        for document, right in expected.documents.items():
            off = abs(measured[document] - right.loss_sum) / (right.loss_sum or 1.0)
            note("loss", off, f"step {step}, document {document}")
        for rank in ranks:
            off = abs((rank.steps[step].grad_norm or 0.0) - expected.gradient_norm) / expected.gradient_norm
            note("norm", off, f"step {step}, rank {rank.rank}")
    for name, kinds in _parameters(ranks).items():
        for kind, value in kinds.items():
            right = getattr(oracle.parameters[name], kind)
            note(kind, _off(value, fingerprint(name, right, config.train.seed)), name)
    assert _parameters(ranks).keys() == oracle.parameters.keys()
    _layers(ranks, oracle, config, note)
    _routers(ranks, oracle, note)
    _predictions(ranks, oracle, note)
    for rank in ranks:
        for bias in rank.expert_biases:
            right = oracle.steps[bias.step].biases[bias.layer]
            note("bias", max(abs(a - b) for a, b in zip(bias.values, right)), f"step {bias.step}, layer {bias.layer}")
    return found


def fingerprint(name: str, tensor: Tensor, seed: int) -> Prints:
    """As ranks record it."""
    vectors = (draw(f"projection-{number}", name, tuple(tensor.shape), seed) for number in range(PROJECTIONS))
    whole = tensor.double()
    return [float(whole.square().sum()), *(float((whole * vector.double()).sum()) for vector in vectors)]


def _off(measured: Prints, expected: Prints) -> float:
    """Estimate of |a - b| / |b|."""
    spread = math.sqrt(sum((a - b) ** 2 for a, b in zip(measured[1:], expected[1:])) / PROJECTIONS)
    norm, right = math.sqrt(max(measured[0], 0.0)), math.sqrt(expected[0])
    return max(spread, abs(norm - right)) / (right or 1.0)


def _numbers(seen: Fingerprint) -> Prints:
    return [seen.norm_sq, *seen.projections]


def _added(old: Prints | None, new: Prints) -> Prints:
    return new if old is None else [a + b for a, b in zip(old, new)]


def _parameters(ranks: Sequence[RankRecord]) -> dict[str, dict[str, Prints]]:
    """Name -> kind -> fingerprint of the whole tensor: the shards of one replica add up."""
    found: dict[str, dict[str, Prints]] = {}
    done: set[tuple[str, int | None]] = set()
    for rank in ranks:
        for seen in rank.parameters:
            shard = rank.place.tp if seen.shard is None else seen.shard
            mine = (seen.name, shard if seen.sharded else None)
            if mine in done:
                continue
            done.add(mine)
            values = {"gradient": seen.gradient}
            if seen.update:
                values |= {
                    "first_moment": seen.update.first_moment,
                    "second_moment": seen.update.second_moment,
                    "change": seen.update.change,
                }
                values |= {"trained": seen.update.trained} if seen.update.trained else {}
            whole = found.setdefault(seen.name, {})
            for kind, value in values.items():
                whole[kind] = _added(whole.get(kind), _numbers(value))
    return found


def _document_losses(ranks: Sequence[RankRecord], step: int) -> dict[int, float]:
    found: dict[int, float] = {}
    for rank in ranks:
        if rank.place.tp == 0:
            for document, seen in rank.steps[step].documents.items():
                found[document] = found.get(document, 0.0) + seen.loss_sum
    return found


def _layers(ranks: Sequence[RankRecord], oracle: Trained, config: CellConfig, note) -> None:
    whole: dict[tuple[int, int], Prints] = {}
    for rank in ranks:
        if rank.place.tp == 0 or config.layout.sp:
            for seen in rank.activations:
                for document, value in seen.documents.items():
                    key = seen.layer, document
                    whole[key] = _added(whole.get(key), _numbers(value))
    shape = (config.train.seq_length, config.model.hidden)
    vectors = [draw(f"position-{number}", "activation", shape, config.train.seed) for number in range(PROJECTIONS)]
    for (layer, document), seen in whole.items():
        output = oracle.outputs[layer][document].double()
        right = [float(output.square().sum())]
        right += [float((output * vector[: len(output)].double()).sum()) for vector in vectors]
        note("layer", _off(seen, right), f"layer {layer}, document {document}")


def _routers(ranks: Sequence[RankRecord], oracle: Trained, note) -> None:
    """Losses of routers, added up over the tensor- and context-parallel ranks of a replica."""
    for expected in oracle.routers:
        mine = [
            seen
            for rank in ranks
            if rank.place.dp == expected.replica
            for seen in rank.routers
            if (seen.layer, seen.micro_batch) == (expected.layer, expected.micro_batch)
        ]
        where = f"layer {expected.layer}, micro-batch {expected.micro_batch}"
        for what, values, right in (
            ("balance", [seen.aux_loss for seen in mine], expected.balance),
            ("z", [seen.z_loss for seen in mine], expected.z),
        ):
            given = [value for value in values if value is not None]
            if given:
                note(what, abs(sum(given) - right) / (right or 1.0), where)


def _predictions(ranks: Sequence[RankRecord], oracle: Trained, note) -> None:
    for expected in oracle.predictions:
        whole: dict[int, float] = {}
        for rank in ranks:
            if (rank.place.dp, rank.place.tp) != (expected.replica, 0):
                continue
            for seen in rank.mtp:
                if (seen.depth, seen.micro_batch) == (expected.depth, expected.micro_batch):
                    for document, loss in seen.documents.items():
                        whole[document] = whole.get(document, 0.0) + loss.loss_sum
        assert whole.keys() == expected.documents.keys()
        for document, loss in expected.documents.items():
            note("prediction", abs(whole[document] - loss.loss_sum) / (loss.loss_sum or 1.0), f"document {document}")
