"""verl's Megatron engine: its packing, its log-probabilities and its loss over packed rows, unmodified.

| step | upstream |
|---|---|
| micro-batches, with `use_dynamic_bsz` | verl.workers.engine.utils.prepare_micro_batches, verl.utils.seqlen_balancing |
| packing, and the way back to documents | verl.models.mcore.util: preprocess_thd_engine, postprocess_thd_engine |
| the same up to 0.7 | preprocess_thd_no_padding, postprocess_thd_no_padding |
| log-probabilities | verl.utils.megatron.tensor_parallel.vocab_parallel_log_probs_from_logits |
| loss | verl.workers.utils.losses.sft_loss, in MegatronEngineWithLMHead.postprocess_micro_batch_func |

The calls are those of gptmodel_forward_model_engine, around the model that the probe calls. Every rank reads the
rollouts of its replica, as nested tensors; nothing is sent. A document of n labels is a sequence of n + 1 tokens.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from megatron.core import parallel_state
from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.core.packing.arithmetic import MicroBatch
from harness.core.packing.documents import Document
from harness.probe.model.gpt import transformer_config
from harness.probe.truth import MicroTruth, StepTruth
from harness.upstreams.node_base import Batch, RankContext, Scored, as_planned, rows_by_slot
from harness.upstreams.node_lookup import Unavailable, module_unavailable, not_in_release, release, takes

_NEEDED: dict[str, tuple[str, ...]] = {
    "verl.models.mcore.util": (),
    "verl.utils.megatron.tensor_parallel": ("vocab_parallel_log_probs_from_logits",),
    "verl.workers.utils.losses": ("sft_loss",),
    "verl.workers.engine.megatron.transformer_impl": ("MegatronEngineWithLMHead",),
}


class Rollouts(NamedTuple):
    """Documents as jagged tensors with a row each."""

    ids: Tensor
    masks: Tensor  # of tokens, which the loss shifts


class VerlPath:
    """Pack, score and compute the loss by verl's engine."""

    def __init__(self, context: RankContext) -> None:
        self.context = context
        self.packing, self.scoring, self.losses, engines = (importlib.import_module(name) for name in _NEEDED)
        self.engine = _engine(engines.MegatronEngineWithLMHead, context.config)
        suffix = "engine" if hasattr(self.packing, "preprocess_thd_engine") else "no_padding"
        bucket = context.config.options.pad_row_to_mult
        named = {"pad_to_length_bucket": bucket} if bucket else {}
        self.pack = partial(getattr(self.packing, f"preprocess_thd_{suffix}"), **named)
        self.unpack = getattr(self.packing, f"postprocess_thd_{suffix}")

    @staticmethod
    def unavailable(config: CellConfig) -> Unavailable:
        lacking = (module_unavailable(module, "verl", *names) for module, names in _NEEDED.items())
        return next((reason for reason in lacking if reason), None) or _without_buckets(config)

    def iterator(self, truth: StepTruth, chunk: int) -> Iterator[tuple[StepTruth, MicroTruth, Rollouts]]:
        dynamic = self.context.config.options.use_dynamic_bsz
        rollouts = self._dynamic(truth) if dynamic else map(partial(self._planned, truth), truth.plans)
        return zip([truth] * len(truth.plans), truth.micro_batches, rollouts, strict=True)

    def _planned(self, truth: StepTruth, plan: MicroBatch) -> Rollouts:
        return self._rollouts(truth, [placed.document for placed in plan.placed])

    def _rollouts(self, truth: StepTruth, documents: Sequence[Document]) -> Rollouts:
        """Return tokens and loss masks of documents."""
        ids = [truth.content(document)[: document.length + 1] for document in documents]
        masks = [torch.tensor([0, *document.loss_mask]) for document in documents]
        return Rollouts(self.nested(ids), self.nested(masks))

    def _dynamic(self, truth: StepTruth) -> list[Rollouts]:
        """Return the micro-batches that verl makes of the replica's documents, as forward_backward_batch does."""
        layout, options = self.context.config.layout, self.context.config.options
        ids, masks = self._rollouts(truth, self._share(truth))
        dictionaries: Any = importlib.import_module("verl.utils.tensordict_utils")
        engines: Any = importlib.import_module("verl.workers.engine.utils")
        data = dictionaries.get_tensordict(
            {"input_ids": ids, "loss_mask": masks},
            {
                "use_dynamic_bsz": True,
                "max_token_len_per_gpu": options.max_tokens_per_microbatch or self.context.config.train.seq_length,
                "sp_size": layout.cp,
            },
        )
        micro_batches, _ = engines.prepare_micro_batches(
            data=data,
            dp_group=parallel_state.get_data_parallel_group(),
            num_batches_divided_by=layout.pp if layout.vpp > 1 else None,
        )
        return [
            Rollouts(batch["input_ids"], batch["loss_mask"]) for batch in as_planned(micro_batches, len(truth.plans))
        ]

    def _share(self, truth: StepTruth) -> list[Document]:
        """Return the replica's documents, as the controller sends them.

        With balance_batch those of verl's partition. Its trainers, which put light ones at both ends, are not imported:
        they start servers of rollouts.
        """
        documents, replicas = truth.documents, len(truth.replicas)
        each, replica = len(documents) // replicas, self.context.place.dp
        if not self.context.config.options.balance_batch:
            return documents[replica * each : (replica + 1) * each]
        balancing: Any = importlib.import_module("verl.utils.seqlen_balancing")
        works = balancing.calculate_workload(torch.tensor([document.length + 1 for document in documents])).tolist()
        share = balancing.get_seqlen_balanced_partitions(works, k_partitions=replicas, equal_size=True)[replica]
        share.sort(key=lambda number: (works[number], number))
        return [documents[number] for number in share[::2] + share[1::2][::-1]]

    def fetch(self, iterator: Iterator[Any] | None, chunk: int) -> Batch:
        assert iterator is not None
        truth, micro, (ids, masks) = next(iterator)
        first = self.context.is_first(chunk)
        tokens, params, *others = self.pack(ids, pre_process=first)  # from 0.9 also positions, for prediction layers
        batch = Batch(params=params, tokens=tokens if first else None, beside=dict(zip(["position_ids"], others)))
        if self.context.is_last(chunk):
            batch.score = _Loss(self, truth, micro, Rollouts(ids, masks), params)
        return batch

    def nested(self, rows: list[Tensor]) -> Tensor:
        """Return a jagged tensor with a row per document."""
        device = self.context.device.torch_device
        return torch.nested.as_nested_tensor([row.to(device) for row in rows], layout=torch.jagged)

    def scores(self, ids: Tensor, params: Any, logits: Tensor) -> Tensor:
        """Return nested log-probabilities of the next tokens; of the last one, of the first."""
        # Rolled by verl before it splits rows over context ranks: the order is under test.
        labels = self.pack(ids, pre_process=True, need_roll=True)[0]
        scores: Tensor = self.scoring.vocab_parallel_log_probs_from_logits(logits, labels)
        unpacked: Tensor = self.unpack(scores, params, ids, ids.shape[0], post_process=True)
        return unpacked

    def log_probs(self, micro: MicroTruth, batch: Batch, logits: Tensor) -> list[Tensor]:
        """Return the log-probabilities of the tokens after the first, one tensor per document, in order."""
        assert isinstance(batch.score, _Loss)
        return [row[:-1] for row in self.scores(batch.score.rollouts.ids, batch.params, logits).unbind()]


def _without_buckets(config: CellConfig) -> Unavailable:
    packing: Any = importlib.import_module("verl.models.mcore.util")
    pack = getattr(packing, "preprocess_thd_engine", None)
    if not config.options.pad_row_to_mult or (pack and takes(pack, "pad_to_length_bucket")):
        return None
    return not_in_release(f"{release('verl')} does not pad rows: pack functions have no pad_to_length_bucket", "verl")


class _Loss:
    """verl's loss of one micro-batch."""

    def __init__(self, path: VerlPath, truth: StepTruth, micro: MicroTruth, rollouts: Rollouts, params: Any) -> None:
        self.path, self.truth, self.micro, self.rollouts, self.params = path, truth, micro, rollouts, params

    def __call__(self, logits: Tensor) -> Scored:
        path, data = self.path, self._data()
        scores = path.scores(self.rollouts.ids, self.params, logits)
        returned = path.engine.postprocess_micro_batch_func(
            {"log_probs": scores}, data, forward_only=False, loss_function=partial(path.losses.sft_loss, None)
        )
        losses = rows_by_slot([-row[:-1].detach() for row in scores.unbind()], self.micro, path.context)
        weights = rows_by_slot([row[1:] for row in data["loss_mask"].unbind()], self.micro, path.context)
        return Scored(returned=returned[:-1], losses=losses, weights=weights)

    def _data(self) -> Any:
        """Return the micro-batch as forward_backward_batch of the engine makes it."""
        truth, rollouts = self.truth, self.rollouts
        plans = [plan for replica in truth.replicas for plan in replica]
        # verl's mask is by token, not by label: the first token is never predicted.
        named: Any = importlib.import_module("verl.utils.tensordict_utils")
        return named.get_tensordict(
            {"input_ids": rollouts.ids, "loss_mask": rollouts.masks},
            {
                "num_micro_batch": len(truth.plans),
                "dp_size": len(truth.replicas),
                "batch_num_tokens": sum(plan.loss_tokens for plan in plans),
                "routed_num_tokens": sum(placed.document.length + 1 for plan in plans for placed in plan.placed),
            },
        )


def _engine(kind: Any, config: CellConfig) -> Any:
    """Return an engine without a model, with the configuration of the model that the probe builds."""
    # Its constructor would build a model and process groups; the loss reads two configurations only.
    engine = kind.__new__(kind)
    engine.tf_config = transformer_config(config)
    engine.engine_config = SimpleNamespace(
        dynamic_context_parallel=False, use_remove_padding=True, context_parallel_size=config.layout.cp
    )
    return engine
