"""Known issues of Megatron-LM."""

from __future__ import annotations

from dataclasses import replace

from harness.core.packing.fields import LONGEST, OFFSETS
from harness.features.hybrid.pattern import ATTENTION, GATED_DELTA
from harness.upstreams.issue import ROWS_AS_ONE, KnownIssue

_MEGATRON = "https://github.com/NVIDIA/Megatron-LM"


_TP_RANKS = KnownIssue(
    name="Megatron-LM issue 4092",
    link=f"{_MEGATRON}/issues/4092",
    check="params_agree_plan",
    since="0.17.0",
    fixed="0.18.0",
    data_path="sft",
    stage="middle",
    ranks="tp > 0",
    fields=(*OFFSETS, *LONGEST),
)


_NO_MIDDLE = KnownIssue(
    name="Megatron-LM pull request 3564",
    link=f"{_MEGATRON}/pull/3564",
    check="params_present",
    since="0.16.0",
    fixed="0.17.0",
    data_path="sft",
    ranks="middle tp 0",
)


_ROWS = KnownIssue(
    name="Megatron-LM pull request 5454",
    link=f"{_MEGATRON}/pull/5454",
    check="completeness",
    since="0.17.0",
    fixed="0.19.0",
    data_path="sft",
    tp="1",
    rows=True,
    message_contains="stack expects each tensor to be equal size",
)


_AUX_WEIGHT = KnownIssue(
    name="Megatron-LM pull request 2237",
    link=f"{_MEGATRON}/pull/2237",
    check="aux_loss",
    since="0.14.0",
    fixed="0.16.0",
    per_token=False,
    ratio="1/cp",
)


_ROUTER_WEIGHT = replace(
    _AUX_WEIGHT,
    name="Megatron-LM pull request 5047",
    link=f"{_MEGATRON}/pull/5047",
    fixed="0.19.0",
    per_token=True,
    ratio="1/(cp tp)",
)


MEGATRON_ISSUES: tuple[KnownIssue, ...] = (
    _TP_RANKS,
    replace(_TP_RANKS, check="params_present", stage="last", fields=()),
    _NO_MIDDLE,
    replace(_NO_MIDDLE, check="params_form", ranks="", fields=("shape",)),
    _ROWS,
    replace(_ROWS, name="Megatron-LM pull requests 5454 and 5635", link=f"{_MEGATRON}/pull/5635", tp="above 1"),
    _AUX_WEIGHT,
    _ROUTER_WEIGHT,
    replace(_ROUTER_WEIGHT, check="z_loss"),
    KnownIssue(
        name="Megatron-LM pull request 5798",
        link=f"{_MEGATRON}/pull/5798",
        check="aux_loss",
        since="0.16.0",
        fixed="0.19.0",
        data_path="unpacked",
        rows=True,
        per_token=True,
        ratio="1/rows",
        aux_loss="seq_aux_loss",
    ),
    KnownIssue(
        name="Megatron-LM pull request 5243",
        link=f"{_MEGATRON}/pull/5243",
        check="segment_slope",
        since="0.19.0",
        part="rotary",
    ),
    KnownIssue(
        name="Megatron-LM pull request 5696",
        link=f"{_MEGATRON}/pull/5696",
        check="aux_loss",
        since="0.18.0",
        fixed="0.19.0",
        message_contains=ROWS_AS_ONE,
    ),
    KnownIssue(
        name="Megatron-LM issue 7452, finding 8",
        link=f"{_MEGATRON}/issues/7452",
        check="norm_members",
        since="0.15.0",
        tp="above 1",
        message_contains=".core_attention.softmax_offset on tp rank",
    ),
    KnownIssue(
        name="Megatron-LM issue 7452, finding 1",
        link=f"{_MEGATRON}/issues/7452",
        check="document_loss",
        since="0.15.0",
        tp="above 1",
        feature="label_smoothing",
    ),
    KnownIssue(
        name="Megatron-LM issue 7452, finding 3",
        link=f"{_MEGATRON}/issues/7452",
        check="parameter_gradients",
        since="0.17.0",
        cp=True,
        feature="mtp",
    ),
    KnownIssue(
        name="Megatron-LM's multi_latent_attention.py, keys' rotary part over tp",
        link=f"{_MEGATRON}/blob/core_v0.19.0/megatron/core/transformer/multi_latent_attention.py",
        check="parameter_gradients",
        since="0.16.0",
        tp="above 1",
        feature="mla",
    ),
    KnownIssue(
        name="Megatron-LM commit d8144e7712",
        link=f"{_MEGATRON}/commit/d8144e7712",
        check="mtp_loss",
        since="0.16.0",
        padded=True,
    ),
    KnownIssue(
        name="Megatron-LM commit d8144e7712",
        link=f"{_MEGATRON}/commit/d8144e7712",
        check="ended",
        since="0.16.0",
        padded=True,
        message_contains="list index out of range, at megatron/core/transformer/multi_token_prediction.py",
    ),
    KnownIssue(
        name="Megatron-LM issue 3643",
        link=f"{_MEGATRON}/issues/3643",
        check="ended",
        since="0.16.0",
        fixed="0.18.0",
        message_contains="save_for_backward can only save variables",
    ),
    KnownIssue(
        name="Megatron-LM issue 7452, finding 11",
        link=f"{_MEGATRON}/issues/7452",
        check="replica_gradients",
        since="0.18.0",
        tp="above 1",
        layer=GATED_DELTA,
        message_contains="self_attention.out_norm.weight",
    ),
    KnownIssue(
        name="Megatron-LM's hybrid_model.py, rotary_interleaved not passed on",
        link=f"{_MEGATRON}/blob/core_v0.19.0/megatron/core/models/hybrid/hybrid_model.py",
        check="activations",
        since="0.14.0",
        feature="rotary_interleaved",
        layer=ATTENTION,
    ),
    KnownIssue(
        name="Megatron-LM's training.py, FLOPs without the gate of --quick-geglu",
        link=f"{_MEGATRON}/blob/core_v0.19.0/megatron/training/training.py",
        check="reported",
        since="0.17.0",
        feature="quick_geglu",
        message_contains="number of floating-point operations",
    ),
    KnownIssue(
        name="Megatron-LM's checkpointing.py, random states of expert ranks",
        link=f"{_MEGATRON}/blob/core_v0.19.0/megatron/training/checkpointing.py",
        check="resumed",
        since="0.14.0",
        feature="ep",
        message_contains="the state of the random generators",
    ),
)
