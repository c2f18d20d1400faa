"""The image tower of Qwen3-VL: what it makes of patches, for the places of image tokens and for layers behind them.

Qwen3-VL (arXiv 2511.21631, section 2), on the tower of Qwen2.5-VL (arXiv 2502.13923, section 2.1); as Megatron-Bridge
0.6.2, Qwen3VLVisionModel. Shapes: p patches, in the order of merge blocks; n tokens, a block of merge x merge patches
each.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from harness.features.vision.config import TOWER
from harness.oracle.attention import grouped
from harness.oracle.fields import Vision
from harness.oracle.layers import feed_forward, norm, widened
from harness.oracle.rows import Images, Places
from harness.oracle.weights import MERGER, deepstack_merger, layer_name


def image_features(images: Images, weights: Mapping[str, Tensor], vision: Vision) -> tuple[Tensor, list[Tensor]]:
    """Return features [n, out] of all images, and those [n, out] that are added to the outputs of the first language
    layers.

    Of a patch's pixels the convolution, whose stride is its kernel, is a linear map (Qwen3VLVisionPatchEmbed). Each
    frame of an image attends to itself alone (build_packed_seq_params).
    """
    tower, kernel = vision.tower, weights[f"{TOWER}patch_embed.proj.weight"].flatten(1)
    x = images.pixels.to(kernel.dtype) @ kernel.T + weights[f"{TOWER}patch_embed.proj.bias"]
    x = x + torch.cat([_learned(grid, weights, vision) for grid in images.grids])
    places = Places(
        positions=torch.cat([_rows_and_columns(grid, vision.merge) for grid in images.grids]),
        segments=tuple(height * width for frames, height, width in images.grids for _ in range(frames)),
    )
    added = []
    for number in range(1, tower.layers + 1):
        at = f"{TOWER}{layer_name(number)}"
        normed = norm(x, weights, f"{at}.input_layernorm", tower)
        x = x + grouped(normed, weights, f"{at}.self_attention", tower, places, number)
        x = x + feed_forward(norm(x, weights, f"{at}.pre_mlp_layernorm", tower), weights, f"{at}.mlp", tower)
        if number - 1 in vision.deepstack:
            at = deepstack_merger(vision.deepstack.index(number - 1))
            added.append(_merged(x, weights, at, vision, by_token=True))
    return _merged(x, weights, MERGER, vision, by_token=False), added


def _merged(x: Tensor, weights: Mapping[str, Tensor], at: str, vision: Vision, *, by_token: bool) -> Tensor:
    """x [p, hidden] to [n, out]: the patches of a block side by side, through two linear maps.

    The norm before them is over a patch, or `by_token` over the whole block (Qwen3VLVisionPatchMerger,
    `use_postshuffle_norm`). Between them is the tower's activation; Hugging Face's mergers have the exact GELU.
    """
    width = vision.tower.hidden * vision.merge**2
    normed = norm(x.reshape(-1, width) if by_token else x, weights, f"{at}.patch_norm", vision.tower)
    return feed_forward(normed.reshape(-1, width), weights, at, vision.tower)


def _learned(grid: tuple[int, int, int], weights: Mapping[str, Tensor], vision: Vision) -> Tensor:
    """Return [p, hidden]: the learned embedding of a patch's place, between those of the four nearest places of a
    square.

    The corners of the image are those of the square, whose place i weighs max(0, 1 - |y - i|) at the coordinate y:
    bilinear interpolation (fast_pos_embed_interpolate).
    """
    learned, side = weights[f"{TOWER}pos_embed.weight"], round(vision.places**0.5)
    wide = widened(learned).dtype
    steps = torch.tensor([(side - 1) / max(size - 1, 1) for size in grid[1:]], dtype=wide)
    at = _rows_and_columns(grid, vision.merge) * steps
    # Written as weights of all places instead of upstream's four gathers: another way to the same number, so that an
    # error is not shared.
    weighed = (1 - (at[:, :, None] - torch.arange(side)).abs()).clamp(min=0)
    down, across = weighed.to(learned.dtype).unbind(1)
    return torch.einsum("pi,pj,ijh->ph", down, across, learned.view(side, side, -1))


def _rows_and_columns(grid: tuple[int, int, int], merge: int) -> Tensor:
    """Return [p, 2] int64: where each patch is in its frame; blocks row by row, and the patches of each too
    (rot_pos_emb).
    """
    frames, height, width = grid
    places = torch.cartesian_prod(torch.arange(height), torch.arange(width))
    blocks = places.view(height // merge, merge, width // merge, merge, 2).transpose(1, 2)
    # Frames have the same places; time enters through the language model's positions only.
    return blocks.reshape(-1, 2).repeat(frames, 1)
