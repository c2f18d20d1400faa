"""Megatron-LM's training script for reinforcement learning, train_rl.py of a checkout: its packing of rollouts, its
log-probabilities and its GRPO loss, unmodified.

| step | upstream |
|---|---|
| packing, and the share of a replica | megatron.rl.sequence_packing_utils.pack_all_trajectories |
| batch, split over cp, log-probabilities, loss per token | train_rl.forward_step |
| loss | train_rl.loss_func, which forward_step returns |

forward_step calls a stub of the model. For the batch, the stub keeps its arguments, which the probe gives to the model,
and stops upstream's function; for the loss, it returns the model's logits. A document of n labels is a rollout of n + 1
tokens. Advantages are 1, and the policy is its own old and reference policy: ratios are 1, so the gradient is that of
the negative log-probability, as in the control.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.core.outcomes import Missing
from harness.probe.truth import MicroTruth, StepTruth
from harness.upstreams.megatron_lm.node_scheduler import share
from harness.upstreams.megatron_lm.node_sft_checkout import find, set_arguments
from harness.upstreams.megatron_lm.spec import MAX_ROLLOUTS
from harness.upstreams.node_base import Batch, RankContext, Scored, mask_and_loss, rows_by_slot
from harness.upstreams.node_lookup import Unavailable, not_in_release, release


@dataclass(frozen=True)
class _Bin:
    """One bin of this replica: the packing that holds it, its number there, and its truth."""

    packed: Any  # upstream's PackingContext
    number: int
    micro: MicroTruth


class MegatronRlPath:
    """Pack rollouts, score them and compute the GRPO loss by train_rl.py."""

    def __init__(self, context: RankContext) -> None:
        self.context = context
        self.script: Any = importlib.import_module("train_rl")
        self.packing: Any = importlib.import_module("megatron.rl.sequence_packing_utils")
        self.rl: Any = importlib.import_module("megatron.rl.rl_utils")
        self.state: Any = self.rl.get_rl_runtime_state()
        self.variables: Any = importlib.import_module("megatron.training.global_vars")
        parallel: Any = importlib.import_module("megatron.core.parallel_state")
        self.groups = SimpleNamespace(
            cp=parallel.get_context_parallel_group(), pp=parallel.get_pipeline_model_parallel_group()
        )
        set_arguments(context.config, switches=("rl-use-sequence-packing",))

    @staticmethod
    def unavailable(config: CellConfig) -> Unavailable:
        root = find()
        if root is None:
            return Missing(reason="train_rl.py is part of no release; use a checkout of Megatron-LM")
        if not (root / "train_rl.py").is_file():
            return not_in_release(f"{release('megatron.core')} has no train_rl.py", "megatron.core")
        try:
            module = importlib.import_module("train_rl")
        except Exception as error:
            return Missing(reason=f"{root}/train_rl.py cannot be imported: {type(error).__name__}: {error}")
        folder = Path(str(module.__file__)).resolve().parent
        return (
            None if folder == root else Missing(reason=f"train_rl comes from {folder}, but megatron.core from {root}")
        )

    def iterator(self, truth: StepTruth, chunk: int) -> Iterator[_Bin]:
        """Return the bins of the step, or leg. Packs it for chunk 0, collectively over the replicas."""
        if chunk == 0:
            packed = self.packed = self._packed(truth)
            # Filled in before each loss (`_Loss`): upstream indexes it by bin, so it must exist with all bins.
            packed.old_logprobs = torch.zeros_like(packed.packed_trajs[:, 1:], dtype=torch.float32)
            packed.ref_logprobs = packed.old_logprobs
        return iter([_Bin(self.packed, number, micro) for number, micro in enumerate(truth.micro_batches)])

    def _packed(self, truth: StepTruth) -> Any:
        config, place = self.context.config, self.context.place
        self._pad_with(truth.pad_id)
        documents = share(truth.documents, config.layout.dp, place.dp)
        # Of all replicas, not of this one: upstream gathers rollouts over replicas, which needs one shape.
        width = max(document.length for document in truth.documents) + 1
        rollouts = torch.full((len(documents), width), truth.pad_id)
        generated = torch.zeros(len(documents), width, dtype=torch.bool)
        for row, document in enumerate(documents):
            rollouts[row, : document.length + 1] = truth.content(document)[: document.length + 1]
            generated[row, 1 : document.length + 1] = torch.tensor(document.loss_mask, dtype=torch.bool)
        device = self.context.device.torch_device
        # Of all documents, since upstream packs all and takes the share of its replica afterwards.
        advantages = torch.ones(len(truth.documents), device=device)
        return self.packing.pack_all_trajectories(
            rollouts.to(device),
            generated.to(device),
            None,
            advantages,
            config.train.seq_length,
            MAX_ROLLOUTS,
            "round-robin",
        )

    def _select(self, chosen: _Bin) -> None:
        """Make upstream's globals those of the bin's packing: the legs of a pass have one each."""
        self.state.packing_context = chosen.packed
        self._pad_with(chosen.micro.pad_id)

    def _pad_with(self, token: int) -> None:
        # Upstream's packing asks the global tokenizer for nothing else.
        self.variables._GLOBAL_TOKENIZER = SimpleNamespace(pad=token)

    def fetch(self, iterator: Iterator[_Bin] | None, chunk: int) -> Batch:
        assert iterator is not None
        chosen = next(iterator)
        self._select(chosen)
        called = self._called(chosen.number)
        batch = Batch(params=called["params"], arguments=called["others"])
        if self.context.is_first(chunk):
            batch.tokens, batch.position_ids = called["tokens"], called["position_ids"]
        if self.context.is_last(chunk):
            batch.score = _Loss(self, chosen)
        return batch

    def _called(self, number: int) -> dict[str, Any]:
        """Return the arguments with which forward_step calls the model for a bin."""
        try:
            self.script.forward_step(_bins(number), _Model(self.groups))
        except _StoppedError as stopped:
            return stopped.arguments
        raise AssertionError("train_rl.forward_step did not call the model")

    def log_probs(self, micro: MicroTruth, batch: Batch, logits: Tensor) -> list[Tensor]:
        """Return the log-probabilities of the tokens after the first, one tensor per document, in order."""
        assert isinstance(batch.score, _Loss)
        return _by_document(self.scored(batch.score.chosen, _whole(logits)), micro)

    def scored(self, chosen: _Bin, logits: Tensor) -> Tensor:
        """Return [1, slots - 1]: log-probabilities without gradient of a bin, for its logits [1, local slots,
        vocabulary].
        """
        self._select(chosen)
        tokens, _, _, _, position_ids, *_, params = self.packing.load_packed_data_by_index(
            chosen.number, chosen.packed, False
        )
        model = _Model(self.groups, logits)
        log_probs: Tensor = self.rl.get_logprobs(model, tokens, position_ids, no_grad=True, packed_seq_params=params)
        return log_probs.detach()


class _Loss:
    """The loss of one bin."""

    def __init__(self, path: MegatronRlPath, chosen: _Bin) -> None:
        self.path, self.chosen = path, chosen

    def __call__(self, logits: Tensor) -> Scored:
        path, micro = self.path, self.chosen.micro
        log_probs = path.scored(self.chosen, logits)
        # The policy is its own old policy: ratios are then exactly 1 and nothing is clipped.
        self.chosen.packed.old_logprobs[self.chosen.number] = log_probs[0]
        output, loss = path.script.forward_step(_bins(self.chosen.number), _Model(path.groups, logits))
        returned = loss(output)
        losses, weights = (
            rows_by_slot(_by_document(row, micro), micro, path.context) for row in (-log_probs, mask_and_loss(loss)[0])
        )
        return Scored(returned=returned[:2], losses=losses, weights=weights)


class _StoppedError(Exception):
    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments


class _Model(torch.nn.Module):
    """A stub of the model; its signature is that of GPTModel.forward. Without logits, it stops its caller.

    Upstream passes fp32_output=True to models in fp32, whose forward does not know it; it is left out. Otherwise the
    model is in a Float16Module, which takes it.
    """

    def __init__(self, groups: Any, logits: Tensor | None = None) -> None:
        super().__init__()
        self.pg_collection, self.logits = groups, logits
        self.config = SimpleNamespace(flash_decode=False)

    def forward(self, tokens: Tensor, position_ids: Tensor, attention_mask: Any, **others: Any) -> Tensor:
        if self.logits is None:
            params = others.pop("packed_seq_params")
            if others["fp32_output"]:
                del others["fp32_output"]
            raise _StoppedError({"tokens": tokens, "position_ids": position_ids, "params": params, "others": others})
        return self.logits


def _bins(number: int) -> Iterator[list[Tensor]]:
    """Return the iterator of one micro-batch, as get_microbatch_dataloader makes it."""
    return iter([[torch.tensor(number)]])


def _by_document(row: Tensor, micro: MicroTruth) -> list[Tensor]:
    """Return the values of each document's labels. `row`: [1, slots - 1]."""
    placed = micro.plan.placed
    return [
        row[0, placed_document.start : placed_document.start + placed_document.document.length]
        for placed_document in placed
    ]


def _whole(logits: Tensor) -> Tensor:
    """Return [1, local slots, vocabulary], from the shares of tp ranks, as the model gathers them for upstream."""
    tensor_parallel: Any = importlib.import_module("megatron.core.tensor_parallel")
    whole: Tensor = tensor_parallel.gather_from_tensor_model_parallel_region(logits)
    return whole
