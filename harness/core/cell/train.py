"""The section `train` of a matrix."""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.setting import setting


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The short training run, the same in every layout."""

    steps: int = setting(
        3,
        doc="Training steps; 0: batches of a first step are fetched and compared, and nothing is trained.",
        ge=0,
        le=10_000,
        aliases=("train_iters",),
    )
    global_batch: int = setting(8, doc="Documents per step.", ge=1, le=4_096, aliases=("global_batch_size", "gbs"))
    seq_length: int = setting(
        64, doc="Tokens of a full row; longer documents are truncated to it.", ge=4, le=2**20, aliases=("seq_len",)
    )
    lr: float = setting(1e-3, doc="Learning rate.", gt=0, le=1e6)
    seed: int = setting(1234, doc="Seed of weights, tokens and lengths.", ge=0, le=2**63 - 1)
    eval_interval: int = setting(
        0, doc="Evaluate after every so many steps, and once more at the end; 0: never.", ge=0, le=10_000, later=True
    )
    save_step: int = setting(
        1,
        doc="With the axis `resume`: save a checkpoint after this many steps.",
        ge=1,
        le=9_999,
        aliases=("save_interval",),
        later=True,
    )
    label_smoothing: float = setting(
        0.0,
        doc="Share of a target's probability that all other tokens get. Above 0 the loss is computed from the logits "
        "of the model, by upstream's `vocab_parallel_cross_entropy`.",
        ge=0,
        le=0.99,
        later=True,
    )

    @property
    def evaluated(self) -> tuple[int, ...]:
        """The number of finished steps at each evaluation, as in Megatron-LM's `train` and `pretrain`.

        Documents of evaluation n are those of step `steps` + n, which training does not have.
        """
        if not self.eval_interval or not self.steps:
            return ()
        return (*range(self.eval_interval, self.steps + 1, self.eval_interval), self.steps)

    @property
    def passes(self) -> int:
        """Steps and evaluations."""
        return self.steps + len(self.evaluated)
