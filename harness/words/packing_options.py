"""Options of packing and of loss normalisation that a matrix can set, for all its cells or as axes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PackingOptions:
    """Names and meaning follow Megatron-Bridge; the loss switches are Megatron-LM's, one is SkyRL's.

    `pad_seq_to_mult` replaces the multiple a data path pads each document to. `pad_to_max_length` makes every
    packed row seq_length slots long. What the probe does not act on is refused by a rule (plan/rules).
    """

    pad_seq_to_mult: int | None = None  # tokens; None: what the data path derives from the layout
    pad_to_max_length: bool = False
    pad_cu_seqlens: bool = False
    metadata: bool = False  # pack metadata (most segments, longest segment) lies beside the documents
    remove_microbatch_padding: bool = True  # SkyRL: documents are packed; false: a row each, padded to the longest
    calculate_per_token_loss: bool = True
    average_in_collective: bool = False

    def name_parts(self) -> list[str]:
        """Parts of a cell's readable name: only what differs from the defaults."""
        parts = [f"pad{self.pad_seq_to_mult}"] if self.pad_seq_to_mult is not None else []
        parts += ["padmax"] if self.pad_to_max_length else []
        parts += ["padcu"] if self.pad_cu_seqlens else []
        parts += ["meta"] if self.metadata else []
        parts += [] if self.remove_microbatch_padding else ["nopack"]
        parts += [] if self.calculate_per_token_loss else ["meanloss"]
        parts += ["avgcoll"] if self.average_in_collective else []
        return parts


DEFAULT_OPTIONS = PackingOptions()
