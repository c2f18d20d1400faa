"""The checks, most informative findings first: lane by lane, root cause before consequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from harness.core.outcomes import Finding, Lane
from harness.judge.checks.adapters import frozen_weights, merged_weights
from harness.judge.checks.canaries import determinism, isolation, order, padding, repetition, truncation
from harness.judge.checks.experts import capacity, expert_bias, z_loss
from harness.judge.checks.finding import CheckFinding
from harness.judge.checks.metadata import (
    attention_mask,
    completeness,
    micro_batch_count,
    params_agree_plan,
    params_agree_ranks,
    params_form,
    params_identity,
    params_present,
    params_recomputed,
    refused,
    tokens_placed,
    upstream_tests,
    workload,
)
from harness.judge.checks.numerics import (
    activations,
    aux_loss,
    document_loss,
    ended,
    finiteness,
    grad_norm,
    gradient_scale,
    mtp_loss,
    parameter_gradients,
    repeated_document,
    replica_gradients,
    router_choice,
    step_loss,
    token_count,
)
from harness.judge.checks.optimizer import first_update, norm_members, optimizer_state, trained_weights
from harness.judge.checks.throughput import packed_slower, segment_slope, slower_than, slower_than_history
from harness.judge.checks.trainer import evaluation, printed, reported, resumed
from harness.judge.evidence.cell_evidence import CellEvidence


class Check(NamedTuple):
    """One row, the only declaration of a check's name and lane.

    `function` returns the findings of one cell. A check that compares with the control finds nothing without one.
    """

    name: str
    lane: Lane
    function: Callable[[CellEvidence], list[CheckFinding]]

    def findings(self, evidence: CellEvidence) -> list[Finding]:
        """The findings of one cell, with the check's name and lane."""
        return [
            Finding(
                lane=self.lane,
                check=self.name,
                message=found.message,
                severity=found.severity,
                fault_class=found.fault_class,
                where=found.where,
                measured=found.measured,
                bound=found.bound,
            )
            for found in self.function(evidence)
        ]


ADDED: list[Check] = []  # by plug-ins; they follow the others
CHECKS: tuple[Check, ...] = (
    Check("params_present", Lane.METADATA, params_present.check),
    Check("params_agree_plan", Lane.METADATA, params_agree_plan.check),
    Check("params_form", Lane.METADATA, params_form.check),
    Check("params_agree_ranks", Lane.METADATA, params_agree_ranks.check),
    Check("params_identity", Lane.METADATA, params_identity.check),
    Check("params_recomputed", Lane.METADATA, params_recomputed.check),
    Check("attention_mask", Lane.METADATA, attention_mask.check),
    Check("tokens_placed", Lane.METADATA, tokens_placed.check),
    Check("micro_batch_count", Lane.METADATA, micro_batch_count.check),
    Check("workload", Lane.METADATA, workload.check),
    Check("refused", Lane.METADATA, refused.check),
    Check("upstream_tests", Lane.METADATA, upstream_tests.check),
    Check("completeness", Lane.METADATA, completeness.check),
    Check("ended", Lane.NUMERICS, ended.check),
    Check("finiteness", Lane.NUMERICS, finiteness.check),
    Check("resumed", Lane.NUMERICS, resumed.check),
    Check("token_count", Lane.NUMERICS, token_count.check),
    Check("capacity", Lane.NUMERICS, capacity.check),
    Check("activations", Lane.NUMERICS, activations.check),
    Check("document_loss", Lane.NUMERICS, document_loss.check),
    Check("repeated_document", Lane.NUMERICS, repeated_document.check),
    Check("mtp_loss", Lane.NUMERICS, mtp_loss.check),
    Check("router_choice", Lane.NUMERICS, router_choice.check),
    Check("aux_loss", Lane.NUMERICS, aux_loss.check),
    Check("z_loss", Lane.NUMERICS, z_loss.check),
    Check("expert_bias", Lane.NUMERICS, expert_bias.check),
    Check("step_loss", Lane.NUMERICS, step_loss.check),
    Check("frozen_weights", Lane.NUMERICS, frozen_weights.check),
    Check("replica_gradients", Lane.NUMERICS, replica_gradients.check),
    Check("parameter_gradients", Lane.NUMERICS, parameter_gradients.check),
    Check("gradient_scale", Lane.NUMERICS, gradient_scale.check),
    # Exact, and the cause of what follows: before updates, whose bounds it exceeds too.
    Check("optimizer_state", Lane.NUMERICS, optimizer_state.check),
    Check("first_update", Lane.NUMERICS, first_update.check),
    Check("norm_members", Lane.NUMERICS, norm_members.check),
    Check("grad_norm", Lane.NUMERICS, grad_norm.check),
    Check("trained_weights", Lane.NUMERICS, trained_weights.check),
    Check("merged_weights", Lane.NUMERICS, merged_weights.check),
    Check("reported", Lane.NUMERICS, reported.check),
    Check("printed", Lane.NUMERICS, printed.check),
    Check("evaluation", Lane.NUMERICS, evaluation.check),
    Check("determinism", Lane.NUMERICS, determinism.check),
    Check("isolation", Lane.NUMERICS, isolation.check),
    Check("repetition", Lane.NUMERICS, repetition.check),
    Check("order", Lane.NUMERICS, order.check),
    Check("padding", Lane.NUMERICS, padding.check),
    Check("truncation", Lane.NUMERICS, truncation.check),
    Check("segment_slope", Lane.THROUGHPUT, segment_slope.check),
    Check("packed_slower", Lane.THROUGHPUT, packed_slower.check),
    Check("slower_than", Lane.THROUGHPUT, slower_than.check),
    Check("slower_than_history", Lane.THROUGHPUT, slower_than_history.check),
)
