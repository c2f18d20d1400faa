"""Fields of which some change goes undetected, each with the reason. A change of any other field is detected.

No verdict reads this list: it documents what the judge leaves out, and tests hold the judge to it.

A path names the file and the field; * stands for an index, a rank or a name. `lone` is the record of a control whose
gradients no cell is compared with, since auxiliary losses depend on its rows. tests/judge/tampering.py changes every
field of every file, one at a time, in simulated or real runs; exactly these changes go undetected.
"""

from __future__ import annotations

_CLOCK = "a time that is shown; it must be possible"
_TEXT = "text that is shown; it must be there"
_SHOWN = "names that are shown, and not judged"
_SAME_NORM = (
    "updates move every weight by the learning rate, so that weights of one size have nearly the same norm; "
    "projections are compared"
)
_GROWTH = "measures how training amplifies rounding, so that no bound of a later step is too tight; it must be possible"
_CONTROL = "of a reference: by what its trainings differ its cells may differ too; by more, and they are not compared"
_UNUSED = "a field that the stage does not use is a warning; its content must be right"

NOT_EVIDENCE: dict[str, str] = {
    "record.environment.*": "a variable that CUDA libraries read: shown; all ranks of one node must have the same",
    "record.environment.device": "on a GPU, its name: another finds no earlier times, which is a warning",
    "record.environment.host": "text that is shown; the ranks of one node must have the same",
    "record.environment.pid": _TEXT,
    "record.environment.placed": _TEXT,
    "record.environment.python": _TEXT,
    "record.environment.memory_limit_bytes": "shown beside the peak; it must be a number",
    "record.built.*.values.*": "a field that may differ between a cell and its control: harness/core/cell/built.py",
    "record.gradient_scales.*.dense": "compared up to the rounding of bf16",
    "record.cpu_stubs.*": "counted; ranks on the CPU must have some, and all ranks of a cell the same",
    "record.gloo_stubs.*": "counted; ranks that share a GPU must have some, and all ranks of a cell the same",
    "record.modules.*": "names of files beside the top module, whose path is judged",
    "record.packed_params.*.pad_between_seqs": "chooses a kernel; all ranks of a replica must have the same",
    "record.packed_params.*.context_ranks": "with one context rank, 1 says the same as none",
    "record.packed_params.*.forms.*.same_as": "a copy is a warning about a slow kernel; it must have the same values",
    "record.not_read": _SHOWN,
    "record.not_read.*": _SHOWN,
    "record.refusal.type": "text that is shown; it must be there if there is a message, which is judged",
    "record.upstream_tests.failures": _TEXT,
    "record.batches.*.tokens": _UNUSED,
    "record.batches.*.position_ids": _UNUSED,
    "record.batches.*.labels": _UNUSED,
    "record.batches.*.loss_mask": _UNUSED,
    "record.batches.*.padding_mask": _UNUSED,
    "record.legs.*.batches.*.tokens": _UNUSED,
    "record.legs.*.batches.*.position_ids": _UNUSED,
    "record.legs.*.batches.*.labels": _UNUSED,
    "record.legs.*.batches.*.loss_mask": _UNUSED,
    "record.legs.*.batches.*.padding_mask": _UNUSED,
    "record.parameters.*.parts": "names the tp rank whose shard differs; the verdict is on the whole gradient",
    "record.legs.*.parameters.*.parts": "names the tp rank whose shard differs; the verdict is on the whole gradient",
    "record.parameters.*.update.change.norm_sq": _SAME_NORM,
    "record.parameters.*.update.trained.norm_sq": _SAME_NORM,
    "record.legs.*.training.trained.*.projections.*": _GROWTH,
    "record.parameters.*.update.change.projections.*": _CONTROL,
    "record.parameters.*.update.trained.projections.*": _CONTROL,
    "record.peak_memory_bytes": "shown; it must not be negative",
    "record.peak_reserved_bytes": "shown; it must not be negative",
    "record.setup_s": _CLOCK,
    "record.steps.*.time_s": "a time that is shown; those of the slowest rank add up to steps_s of the result",
    "record.steps.*.busy_s": "one possible time cannot be told from another; above 0 if earlier runs are compared",
    "record.legs.*.time_s": _CLOCK,
    "record.timings.*.seconds": "one possible time cannot be told from another; medians of rounds are compared",
    "lone.steps.*.grad_norm": "the control has different rows; ranks must agree, and it is >= 0",
    **{
        f"lone.parameters.*.update.{name}.{part}": "nothing to compare it with; norm and projections must fit"
        for name, parts in (
            ("first_moment", ("norm_sq", "projections.*")),
            ("second_moment", ("norm_sq", "projections.*")),
        )
        for part in parts
    },
    **{
        f"oracle.record.legs.*.{tensors}.{part}": _GROWTH
        for tensors in ("parameters.*.gradient", "activations.*.documents.*")
        for part in ("norm_sq", "projections.*")
    },
    "oracle.not_modelled": "text that is shown; without numbers of the oracle it must be there",
    "oracle.record.steps.*.tokens.*.position": "names the first token that differs; the losses must add up",
    "oracle.record.parameters.*.parts": "names the tp rank whose shard differs; they must add up to the gradient",
    "result.started": _CLOCK,
    "result.finished": _CLOCK,
    "result.deadline_s": "it must be the cell's deadline or a longer one; only a hang is judged by it",
}
