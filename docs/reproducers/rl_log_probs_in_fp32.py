"""Megatron-LM main of 2026-08: log-probabilities of rollouts cannot be computed with a model in fp32.

    python rl_log_probs_in_fp32.py     # in a checkout of Megatron-LM, with what megatron.rl imports

`rl_utils.get_logprobs` passes `fp32_output` to every model. Float16Module, which wraps models in fp16 and bf16, takes
it; without --fp16 and --bf16 there is no such wrapper, and neither GPTModel nor HybridModel takes it. The call fails
before it needs weights, so the models here have none. Exit code 1 if one refuses the argument.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.models.hybrid.hybrid_model import HybridModel
from megatron.core.transformer import TransformerConfig
from megatron.rl import rl_utils

TOKENS = torch.arange(8).view(1, -1)


def refused(kind: Any) -> str:
    """Why a model of this class cannot be called; empty if its forward begins."""
    model = kind.__new__(kind)
    torch.nn.Module.__init__(model)
    model.config = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1)
    model.pg_collection = SimpleNamespace(cp=None, pp=None)
    try:
        rl_utils.get_logprobs(model, TOKENS, TOKENS, no_grad=True)
    except TypeError as error:
        return str(error)
    except AttributeError:  # the forward began, and the model has no weights
        return ""
    raise AssertionError("a model without weights has log-probabilities")


def main() -> int:
    rl_utils.get_args = lambda: SimpleNamespace(fp16=False, bf16=False)
    rl_utils.get_nvtx_range = lambda: lambda *args, **kwargs: nullcontext()
    reasons = {kind.__name__: refused(kind) for kind in (GPTModel, HybridModel)}
    for name, reason in reasons.items():
        print(f"{name}: {reason or 'takes the argument'}")
    return int(any(reasons.values()))


if __name__ == "__main__":
    sys.exit(main())
