"""Megatron-LM, main since 8018459d73 of 2026-08: without Transformer Engine, no multi-token prediction layer is built.

    PYTHONPATH=Megatron-LM python prediction_layers_without_te.py

`MultiTokenPredictionLayer.__init__` asks `is_inference_column_parallel_linear`, whose docstring promises False for any
layer that is not one. The classes that it passes to isinstance derive from classes of Transformer Engine; without that
package these are mocks, so isinstance raises TypeError. Exit code 1 if it does.
"""

from __future__ import annotations

import sys

from megatron.core.tensor_parallel import inference_layers


def main() -> int:
    if inference_layers.HAVE_TE:
        sys.exit("Transformer Engine is installed, so its classes are no mocks")
    try:
        found = inference_layers.is_inference_column_parallel_linear(None)
    except TypeError as error:
        print(f"is_inference_column_parallel_linear(None) raises TypeError: {error}")
        return 1
    print(f"is_inference_column_parallel_linear(None) is {found}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
