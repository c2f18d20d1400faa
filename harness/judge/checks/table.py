"""The order of the checks, most informative findings first: lane by lane, root cause before consequence."""

from __future__ import annotations

from harness.features.adapters import checks as adapters
from harness.features.experts import checks as experts
from harness.features.optimizer import checks as optimizer
from harness.features.resume import checks as resume
from harness.judge.checks import batches, canaries, gradients, outputs, packed_params, throughput, trainer
from harness.judge.checks.finding import Check

__all__ = ["ADDED", "CHECKS", "Check"]

ADDED: list[Check] = []  # by plug-ins; they follow the others
CHECKS: tuple[Check, ...] = (
    packed_params.params_present,
    packed_params.params_agree_plan,
    packed_params.params_form,
    packed_params.params_agree_ranks,
    packed_params.params_identity,
    packed_params.params_recomputed,
    packed_params.attention_mask,
    batches.tokens_placed,
    batches.micro_batch_count,
    batches.workload,
    batches.completeness,
    outputs.ended,
    outputs.finiteness,
    resume.resumed,
    outputs.token_count,
    experts.capacity,
    outputs.activations,
    outputs.document_loss,
    outputs.repeated_document,
    outputs.mtp_loss,
    experts.router_choice,
    experts.aux_loss,
    experts.z_loss,
    experts.expert_bias,
    outputs.step_loss,
    adapters.frozen_weights,
    gradients.replica_gradients,
    gradients.parameter_gradients,
    gradients.gradient_scale,
    # Exact, and the cause of what follows: before updates, whose bounds it exceeds too.
    optimizer.optimizer_state,
    optimizer.first_update,
    gradients.norm_members,
    gradients.grad_norm,
    optimizer.trained_weights,
    adapters.merged_weights,
    trainer.reported,
    trainer.printed,
    trainer.evaluation,
    canaries.determinism,
    canaries.isolation,
    canaries.repetition,
    canaries.order,
    canaries.padding,
    canaries.truncation,
    throughput.segment_slope,
    throughput.packed_slower,
    throughput.slower_than,
    throughput.slower_than_history,
)
