"""What a cell sets of packing and of the loss."""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.setting import setting

ALGORITHMS = (
    "planned",
    "concatenative",
    "first_fit_decreasing",
    "first_fit_shuffle",
    "modified_first_fit_decreasing",
)


@dataclass(frozen=True, kw_only=True)
class PackingOptions:
    """Options of packing and of the loss; the rules say which of them a layout allows.

    Names and meanings are Megatron-Bridge's, those of the loss switches Megatron-LM's; `remove_microbatch_padding` is
    SkyRL's, `fuse_loss` NeMo-RL's, `pad_row_to_mult` verl's `pad_to_length_bucket`. `packing_algorithm` is NeMo-RL's
    `algorithm`, `max_tokens_per_microbatch` SkyRL's name of a budget that all of them have. A rule rejects what the
    probe does not implement (matrix/rules).
    """

    pad_seq_to_mult: int | None = setting(
        None,
        doc="Pad each document to a multiple of this many tokens; auto: what the data path derives.",
        ge=1,
        le=2**20,
        auto=True,
        aliases=("make_sequence_length_divisible_by",),
        label="pad{}",
    )
    pad_row_to_mult: int | None = setting(
        None,
        doc="Pad packed rows to a multiple of this many tokens, also beyond seq_length; auto: what the data path does.",
        ge=1,
        le=2**20,
        auto=True,
        aliases=("pad_to_length_bucket",),
        label="row{}",
        later=True,
    )
    max_tokens_per_microbatch: int | None = setting(
        None,
        doc="Most tokens that a controller puts into a micro-batch; on `verl` per context rank; auto: seq_length.",
        ge=4,
        le=2**25,
        auto=True,
        aliases=("max_token_len_per_gpu", "train_mb_tokens"),
        label="budget{}",
        later=True,
    )
    packing_algorithm: str = setting(
        "planned",
        doc="How `nemo_rl` shares documents out to micro-batches of all replicas; planned: in order, by the harness.",
        choices=ALGORITHMS,
        aliases=("algorithm",),
        label="{}",
        later=True,
    )
    use_sequence_packing: bool = setting(
        False, doc="SkyRL's controller packs the documents of a step for all replicas.", label="binpacked", later=True
    )
    use_dynamic_bsz: bool = setting(
        False,
        doc="`verl` makes micro-batches of about equal work, within a budget of tokens.",
        label="dynamic",
        later=True,
    )
    balance_batch: bool = setting(
        False, doc="With use_dynamic_bsz: verl's controller gives replicas equal work.", label="balanced", later=True
    )
    pad_to_max_length: bool = setting(False, doc="Every packed row has seq_length slots.", label="padmax")
    pad_cu_seqlens: bool = setting(False, doc="cu_seqlens has a fixed number of entries.", label="padcu")
    metadata: bool = setting(False, doc="A metadata file accompanies the packed documents.", label="meta")
    remove_microbatch_padding: bool = setting(
        True,
        doc="`skyrl` packs the documents of a micro-batch; false: one padded row per document.",
        aliases=("use_sample_packing",),
        label="nopack",
    )
    fuse_loss: bool = setting(
        False, doc="`nemo_rl` computes the loss of a pack at once, not document by document.", label="fused", later=True
    )
    calculate_per_token_loss: bool = setting(
        True,
        doc="Sum the loss over tokens, divide once by all tokens.",
        upstream="calculate_per_token_loss",
        label="meanloss",
    )
    average_in_collective: bool = setting(False, doc="Average gradients inside the collective.", label="avgcoll")


DEFAULT_OPTIONS = PackingOptions()


def align_up(value: int, multiple: int) -> int:
    """Smallest multiple of `multiple` that is >= value."""
    return -(-value // multiple) * multiple
