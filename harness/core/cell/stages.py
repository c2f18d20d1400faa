"""How a pipeline layout assigns the parts of a model to the chunks of its stages. Arithmetic alone.

Chunks are in the order in which a token passes them: with interleaving, chunk c of stage p is number c * pp + p.
"""

from __future__ import annotations

import re

EMBEDDING, DECODER, PREDICTION, LOSS = "E", "t", "m", "L"
_PARTS = (EMBEDDING, DECODER, PREDICTION, LOSS)
_CUT = "|"  # between chunks
_MOST_PARTS = 4_096


def stages_of(text: str) -> list[str]:
    """The parts of each chunk, a letter each: "Et*2|(t|)*2m|L" gives ["Ett", "t", "t", "m", "L"].

    The form of upstream's `--pipeline-model-parallel-layout` (megatron.core.transformer.pipeline_parallel_layer_layout.
    PipelineParallelLayerLayout.parse_str_to_list): commas only separate, groups in parentheses are repeated before
    single letters are. ValueError for more parts than any model has.
    """
    plain = text.replace(",", "")
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        if sum(len(part) * int(times) for part, times in re.findall(pattern, plain)) > _MOST_PARTS:
            raise ValueError(f"has more than {_MOST_PARTS} parts")
        plain = re.sub(pattern, lambda found: found.group(1) * int(found.group(2)), plain)
    return plain.split(_CUT)


def checked_stages(text: str | None) -> str | None:
    """The text itself. ValueError if it has no form that upstream's `validate_layer_layout` accepts for any model."""
    if text is None:
        return None
    chunks = stages_of(text)
    whole = "".join(chunks)
    if odd := sorted({*whole} - {*_PARTS}):
        raise ValueError(f"{odd[0]!r} is no part of a model; use E, t, m, L, `|` between chunks, and t*3 or (t|)*3")
    for part, what in ((EMBEDDING, "the embedding"), (LOSS, "the loss")):
        if whole.count(part) != 1:
            raise ValueError(f"{part}, {what}, must be there once, and is there {whole.count(part)} times")
    # Upstream puts both there whatever the text says, and would accept empty chunks around them.
    if not chunks[0].startswith(EMBEDDING) or not chunks[-1].endswith(LOSS):
        raise ValueError(f"the first chunk must begin with {EMBEDDING}, and the last one end with {LOSS}")
    if DECODER not in whole:
        raise ValueError(f"has no layer {DECODER}")
    if PREDICTION in whole and whole.index(PREDICTION) < whole.rindex(DECODER):
        raise ValueError(f"prediction layers, {PREDICTION}, follow the last {DECODER}")
    if sum(PREDICTION in chunk for chunk in chunks) > 1:
        raise ValueError(f"all prediction layers, {PREDICTION}, are in one chunk")
    return text


def split_over_stages(
    layers: int, pp: int, vpp: int, *, first: int | None, last: int | None, embedding: bool, loss: bool
) -> tuple[int, ...]:
    """Layers of each chunk, for sizes that `split_problem` allows.

    Stages without a number of their own share the rest evenly, and chunks the layers of their stage; embedding and
    output layer count as a layer of the first and last chunk, or not at all. As upstream's get_num_layers_to_build
    (megatron.core.transformer.transformer_block) builds them.
    """
    middle = pp - (first is not None) - (last is not None)
    rest = layers + embedding + loss - (first or 0) - (last or 0)
    of_stage = [rest // middle if middle else 0] * pp
    of_stage[0] = of_stage[0] if first is None else first
    of_stage[-1] = of_stage[-1] if last is None else last
    sizes = [size // vpp for size in of_stage] * vpp
    sizes[0] -= embedding
    sizes[-1] -= loss
    return tuple(sizes)
