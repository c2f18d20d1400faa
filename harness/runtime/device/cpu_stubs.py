"""CPU stubs of the CUDA calls that Megatron makes unconditionally, so that it trains on a machine without a GPU.

The stubs do not change what upstream computes: devices become the CPU, streams and events do nothing, calls for
random state go to the CPU generator, collectives that gloo lacks are made of others, groups of one rank share a
device. `install` returns the names it replaced, which ranks record.
Never installed where CUDA is used. Tested with megatron-core 0.13 to 0.19 and main of 2026-08.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from harness.core.packing.arithmetic import zigzag
from harness.features.optimizer.node_adam_stub import FusedAdam
from harness.runtime.device import cpu_factories, lone_groups
from harness.runtime.device.cpu_factories import CPU
from harness.runtime.device.uneven_collectives import all_gather, gather_with_gradient, reduce_scatter

_installed: list[str] = []
# Not those of a real device; Megatron's validate_args reads the architecture when sequence parallelism is on.
_PROPERTIES = types.SimpleNamespace(name="CPU", major=9, minor=0, multi_processor_count=1, total_memory=0)


class _NullStream:
    """Stub of torch.cuda.Stream and Event: a class, since upstream uses them in annotations."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None

    def record_event(self, event: Any = None) -> Any:
        return _NullStream() if event is None else event

    def __enter__(self) -> _NullStream:
        return self

    def __exit__(self, *args: Any) -> None:
        return None


_type_name = torch.Tensor.type


def _cuda_type_name(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Return "torch.cuda.FloatTensor" for a CPU tensor, as Tensor.type(), since the mixed-precision optimizer compares
    names.
    """
    if args or kwargs:
        return _type_name(self, *args, **kwargs)
    return "torch.cuda." + str(_type_name(self)).removeprefix("torch.").removeprefix("cuda.")


def nothing() -> Any:
    """Return a new function that does nothing: torch._dynamo keys rules by identity, so every name needs its own."""
    return lambda *args, **kwargs: None


def _thd_get_partitioned_indices(cu_seqlens: torch.Tensor, total: int, cp_size: int, cp_rank: int) -> torch.Tensor:
    """Stub of transformer_engine_torch.thd_get_partitioned_indices: int32 [total / cp_size], the slots of this rank,
    zigzag per segment. `cu_seqlens`: [segments + 1]. TypeError or ValueError for input that the stub does not support.
    """
    _require_tensor(cu_seqlens)
    bounds = [int(value) for value in cu_seqlens.tolist()]
    _require_ascending(bounds)
    if bounds[-1] != total:
        raise ValueError(f"cu_seqlens ends at {bounds[-1]}, the row has {total} tokens")
    return torch.tensor(zigzag(bounds, cp_size, cp_rank), dtype=torch.int32)


def _require_tensor(cu_seqlens: Any) -> None:
    """Raise TypeError as the real function does, before it starts a kernel; core/upstream.py blames the caller."""
    if not torch.is_tensor(cu_seqlens):
        kind = type(cu_seqlens).__name__
        raise TypeError(f"thd_get_partitioned_indices(): incompatible function arguments: cu_seqlens is a {kind}")


def _require_ascending(bounds: Sequence[int]) -> None:
    """Raise ValueError for offsets that no kernel can take, such as -1 after the last; core/upstream.py blames the
    caller.
    """
    if bounds[0] < 0 or any(later < earlier for earlier, later in pairwise(bounds)):
        raise ValueError(f"cu_seqlens must ascend from 0: {bounds}")


PARTITION = types.SimpleNamespace(
    thd_get_partitioned_indices=_thd_get_partitioned_indices
)  # of transformer_engine_torch


def _splits_on_cpu(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    """Stub of moe_utils.maybe_move_tensor_to_cpu, which converts split sizes to NumPy only for CUDA tensors."""
    return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor


def _replacements() -> list[tuple[Any, str, Any]]:
    import megatron.core.tensor_parallel.random as megatron_random
    import megatron.core.utils as megatron_utils

    cuda = torch.cuda
    random = cuda.random
    # One generator stands for both: with dropout off, as cells have it, nothing is drawn that the merge could change.
    get_state, set_state = (lambda *a, **k: torch.get_rng_state()), (lambda state, *a, **k: torch.set_rng_state(state))
    rows: list[tuple[Any, str, Any]] = [
        # A device rather than a number: upstream passes it to `device=` and would otherwise name a GPU.
        (cuda, "current_device", lambda: CPU),
        (cuda, "synchronize", nothing()),
        (cuda, "set_device", nothing()),
        (cuda, "current_stream", lambda *a, **k: _NullStream()),
        (cuda, "stream", lambda *a, **k: _NullStream()),
        (cuda, "get_device_properties", lambda *a, **k: _PROPERTIES),
        (cuda, "get_device_capability", lambda *a, **k: (_PROPERTIES.major, _PROPERTIES.minor)),
        (cuda, "Stream", _NullStream),
        (cuda, "Event", _NullStream),
        (cuda, "manual_seed", lambda seed: torch.default_generator.manual_seed(seed)),
        (cuda, "get_rng_state", get_state),
        (cuda, "set_rng_state", set_state),
        (random, "get_rng_state", get_state),
        (random, "set_rng_state", set_state),
        (cuda.nvtx, "range_push", nothing()),
        (cuda.nvtx, "range_pop", nothing()),
        (torch.Tensor, "type", _cuda_type_name),
        (torch.Tensor, "cuda", lambda self, *a, **k: self),
        (torch.nn.Module, "cuda", lambda self, *a, **k: self),
        (megatron_random, "_get_cuda_rng_state", get_state),
        (megatron_random, "_set_cuda_rng_state", set_state),
    ]
    schedule = sys.modules.get("megatron.core.datasets.data_schedule")  # loaded by the data path that needs it
    if schedule is not None and getattr(schedule, "tex", None) is None:
        rows.append((schedule, "tex", PARTITION))
    if getattr(megatron_utils, "tex", None) is None:
        # Without Transformer Engine, upstream's split over context ranks fails on its name, although it is plain
        # indexing.
        rows.append((megatron_utils, "tex", PARTITION))
        rows.append((megatron_utils, "is_te_min_version", lambda *a, **k: True))  # guards the use of tex
    rows += _scheduler() + _rollouts()
    dispatcher = sys.modules.get("megatron.core.transformer.moe.token_dispatcher")
    if dispatcher is not None:
        rows.append((dispatcher, "maybe_move_tensor_to_cpu", _splits_on_cpu))
    routing = sys.modules.get("megatron.core.transformer.moe.moe_utils")
    if routing is not None and not hasattr(routing, "te_general_gemm"):
        # Up to 0.16 upstream compares it with None, but imports it only if Transformer Engine is installed.
        rows.append((routing, "te_general_gemm", None))
    collectives = [(torch.distributed, "all_gather", all_gather), (torch.distributed, "reduce_scatter", reduce_scatter)]
    return rows + cpu_factories.rows() + collectives + lone_groups.rows() + _transformer_engine()


def _scheduler() -> list[tuple[Any, str, Any]]:
    """Return the stubs, without Transformer Engine, for the packing scheduler of branch dev: the split of a pack over
    context-parallel ranks, and a check of Transformer Engine's version, whose kernels do not run on a CPU.
    """
    import megatron.core.transformer.transformer_config as config

    if not hasattr(config.TransformerConfig, "sequence_packing_scheduler") or "transformer_engine" in sys.modules:
        return []
    import megatron.core.datasets.data_schedule_utils as schedule_utils

    return [
        (config, "is_te_min_version", lambda *a, **k: True),
        (schedule_utils, "get_thd_partitioned_indices", _thd_get_partitioned_indices),
    ]


def _rollouts() -> list[tuple[Any, str, Any]]:
    """Return the stub for Megatron-LM's RL utilities with context parallelism, which need Transformer Engine's split of
    a bin.
    """
    upstream: Any = sys.modules.get("megatron.rl.rl_utils")  # loaded by the data path that needs it
    if upstream is None or getattr(upstream, "HAVE_TEX", True):
        return []
    functions = upstream.torch.distributed.nn.functional
    return [
        (upstream, "tex", PARTITION),
        (upstream, "HAVE_TEX", True),
        (functions, "all_gather", gather_with_gradient),
    ]


def _transformer_engine() -> list[tuple[Any, str, Any]]:
    """Return the stubs for a Transformer Engine that was built without CUDA, and so can only be imported."""
    kernels = sys.modules.get("transformer_engine_torch")
    if kernels is None:
        return []
    import megatron.core.optimizer as megatron_optimizer
    import megatron.core.optimizer.clip_grads as clip_grads
    import megatron.core.optimizer.optimizer as base_optimizer
    import megatron.core.utils as megatron_utils

    # Megatron's own fallbacks without Transformer Engine.
    by_tensor = "multi_tensor_scale_tensor_impl"  # from 0.19 on; None: it uses the next one
    routing = sys.modules.get("megatron.core.transformer.moe.moe_utils")
    return [
        *([(routing, "te_general_gemm", None)] if routing is not None else []),
        *([(clip_grads, by_tensor, None)] if hasattr(clip_grads, by_tensor) else []),
        (kernels, "thd_get_partitioned_indices", _thd_get_partitioned_indices),
        (megatron_optimizer, "Adam", FusedAdam),
        (clip_grads, "multi_tensor_applier", megatron_utils.local_multi_tensor_applier),
        # Upstream binds these names at import, so they are replaced where they are used and not where they are defined.
        (clip_grads, "l2_norm_impl", megatron_utils.local_multi_tensor_l2_norm),
        (clip_grads, "multi_tensor_scale_impl", megatron_utils.local_multi_tensor_scale),
        (base_optimizer, "multi_tensor_applier", megatron_utils.local_multi_tensor_applier),
        (base_optimizer, "multi_tensor_scale_impl", megatron_utils.local_multi_tensor_scale),
    ]


def installed() -> list[str]:
    """Return the names that are stubs in this process: those that `install` replaced, and CUDA calls defined in this
    file.
    """
    owners = {"torch.cuda": torch.cuda, "torch.Tensor": torch.Tensor, "torch.nn.Module": torch.nn.Module}
    in_place = [
        f"{owner}.{name}"
        for owner, holder in owners.items()
        for name, value in vars(holder).items()
        # By module, too: a fork of the agent may have stubs that its `_installed` does not know of.
        if getattr(value, "__module__", None) == __name__
    ]
    return [*_installed, *(name for name in in_place if name not in _installed)]


def refuse() -> None:
    """Raise RuntimeError if a stub is installed in this process. For ranks that compute on CUDA."""
    if stubs := installed():
        raise RuntimeError(
            f"CPU stubs are installed in a rank that computes on CUDA, so its results are not upstream's: "
            f"{', '.join(stubs[:5])}{' ...' if len(stubs) > 5 else ''}; choose the device before installing stubs"
        )


def install() -> list[str]:
    """Replace the CUDA calls in this process, once; return their dotted names."""
    if _installed:
        return list(_installed)
    replace(_replacements())
    return list(_installed)


def replace(rows: list[tuple[Any, str, Any]]) -> list[str]:
    """Replace an attribute of each owner, a module or a class, by a stub; return their dotted names."""
    names = []
    for owner, name, stub in rows:
        setattr(owner, name, stub)
        names.append(f"{_name(owner)}.{name}")
    _installed.extend(names)
    return names


def _name(owner: Any) -> str:
    """Return e.g. torch.cuda for the module, torch.Tensor for the class."""
    return (
        str(owner.__name__)
        if isinstance(owner, types.ModuleType)
        else f"{owner.__module__.partition('.')[0]}.{owner.__name__}"
    )
