"""The record of a training step between the reduction of gradients and the optimizer: norm, losses, fingerprints.

And that of an evaluation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from harness.core.run.records import EvaluationSeen, ExpertBiasSeen, StepSeen
from harness.features.experts.node_routers import aux_scale
from harness.features.optimizer.node_state import group_values
from harness.probe.model.gpt import unwrap
from harness.probe.model.parts import routers_of
from harness.probe.observer import Observer
from harness.probe.truth import StepTruth
from harness.probe.weights import is_expert


def observe(observer: Observer, step_seen: StepSeen, optimizer: Any) -> None:
    """Record gradient norm, global loss, learning rates and decays in `step_seen`, and at step 0 fingerprints.

    Collective; after `read_losses`, before the optimizer's update.
    """
    config, record = observer.context.config, observer.recorder.record
    step_seen.grad_norm = _gradient_norm(observer)
    step_seen.rates, step_seen.decays = group_values(optimizer, "lr"), group_values(optimizer, "weight_decay")
    for layer, bias in _biases(observer.chunks, observer.context.config.model.layers):
        values = [float(value) for value in bias.tolist()]
        observer.recorder.record.expert_biases.append(ExpertBiasSeen(step=step_seen.step, layer=layer, values=values))
    if step_seen.step == 0 and config.fingerprints:
        record.parameters = observer.parameters_seen()
        record.activations = observer.layer_recorder.drain()
    counts = observer.losses.counts
    # None is not 0: only the last stage computes a loss.
    step_seen.returned_tokens = float(sum(counts)) if counts else None
    divided = observer.losses.divided
    step_seen.returned_loss = sum(float(loss) for loss in divided) if divided else None
    if step_seen.step == 0:
        record.gradient_scales = [scale.seen() for scale in observer.scales]
        record.aux_scale = aux_scale() if config.model.router_losses else None
    step_seen.training = all(module.training for chunk in observer.chunks for module in chunk.modules())
    _global_loss(observer, step_seen)


def begin_evaluation(observer: Observer) -> StepTruth:
    """Announce the next evaluation; return what its batches must be."""
    config, record = observer.context.config, observer.recorder.record
    # A resumed part continues the numbers of the first one; their documents follow those of all training steps.
    number = min(config.evaluations, default=0) + len(record.evaluations)
    truth = StepTruth(config, config.train.steps + number, observer.context.place.dp)
    observer.begin_pass(truth, "evaluation", keep_tokens=False, step=config.start_step + len(record.steps))
    observer.state.fingerprints, observer.backward = config.fingerprints, False
    return truth


def end_evaluation(observer: Observer, *, training: bool, reported: float | None = None) -> None:
    """Record the evaluation. Collective. `training`: whether a module was in training mode in it."""
    record, losses = observer.recorder.record, observer.read_losses()
    evaluation = EvaluationSeen(
        after=observer.state.step,
        micro_batches=observer.counts[0],
        documents=losses.documents,
        training=training,
        reported=reported,
        activations=observer.layer_recorder.drain(),
    )
    _global_loss(observer, evaluation)
    record.evaluations.append(evaluation)
    observer.recorder.flush()


def _global_loss(observer: Observer, pass_seen: StepSeen | EvaluationSeen) -> None:
    """Record loss sum and token count over all replicas and context-parallel ranks, on the last stage only."""
    if not observer.context.is_last(len(observer.chunks) - 1):
        return
    losses = observer.losses
    device = observer.context.device.torch_device
    totals = torch.tensor([losses.loss_sum, losses.token_count], dtype=torch.float64, device=device)
    dist.all_reduce(totals, group=parallel_state.get_data_parallel_group(with_context_parallel=True))
    pass_seen.loss_sum, pass_seen.token_count = float(totals[0]), int(totals[1])


def _gradient_norm(observer: Observer) -> float:
    """Return the norm over the whole model before clipping; replicated parameters count once.

    Experts are summed over the ranks that hold one model's experts: expert tensor, expert and pipeline parallel ones.
    """
    context = observer.context
    # Two sums, since experts are held by other groups than all other weights.
    totals = torch.zeros(2, dtype=torch.float64, device=context.device.torch_device)
    for named in observer.named_parameters():
        expert = is_expert(named.name)
        duplicate = not expert and named.shard.dim is None and context.place.tp > 0
        # Megatron marks the last stage's copy of a tied embedding as `shared`; the first stage counts it.
        if not duplicate and not getattr(named.parameter, "shared", False):
            totals[int(expert)] += observer.gradient_of(named).double().square().sum()
    dist.all_reduce(totals[:1], group=parallel_state.get_model_parallel_group())
    dist.all_reduce(totals[1:], group=parallel_state.get_expert_tensor_model_pipeline_parallel_group())
    return float(totals.sum().sqrt())


def _biases(chunks: Iterable[Any], layers: int) -> Iterator[tuple[int, Tensor]]:
    """Yield (layer, bias of its experts after the update); nothing for models without them."""
    for chunk in chunks:
        for layer, router in routers_of(unwrap(chunk), layers).items():
            if router.config.moe_router_enable_expert_bias:
                yield layer, router.expert_bias
