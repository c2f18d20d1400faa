"""Layer patterns of upstream's HybridModel: a letter per layer, as in `--hybrid-layer-pattern` (0.18 and newer)."""

from __future__ import annotations

ATTENTION, GATED_DELTA, MAMBA = "*", "G", "M"
MLP, EXPERTS = "-", "E"
CUT = "|"  # the next layer begins another pipeline stage, or another model chunk of one
MIXERS = ATTENTION + GATED_DELTA + MAMBA  # layers that carry something from token to token
RECURRENT = GATED_DELTA + MAMBA
# Sizes of recurrent layers that no setting has; the others are those of attention, with heads for values and kv_heads
# for keys (Gated Delta Net), or for groups of heads (Mamba).
CONVOLUTION = 4  # tokens that a causal convolution sees, itself included
STATE_SIZE = 16  # numbers of a Mamba head's state per channel
EXPANSION = 2  # channels of a Mamba head, relative to the size of an attention head
LAYERS = MIXERS + MLP + EXPERTS


def layers_of(pattern: str) -> str:
    """Return the letters of all layers, in order: "*-|*-" gives "*-*-"."""
    return pattern.replace(CUT, "")


def checked_pattern(pattern: str) -> str:
    """Return the pattern. ValueError if it has other letters, or a stage without layers."""
    odd = sorted({*layers_of(pattern)} - {*LAYERS})
    if odd:
        raise ValueError(f"{odd[0]!r} is not a layer; use {', '.join(LAYERS)}, and {CUT} between stages")
    if pattern and not all(pattern.split(CUT)):
        raise ValueError(f"{CUT} separates layers: {pattern!r} has a stage without one")
    return pattern


def pattern_name(pattern: str) -> str:
    """Return a pattern as part of a cell's name, which is also a file name: hybrid-afaf for "*-*-", with _ for a
    cut.
    """
    letters = {ATTENTION: "a", MLP: "f", CUT: "_"}
    return f"hybrid-{''.join(letters.get(letter, letter.lower()) for letter in pattern)}" if pattern else "gpt"
