"""Records the operations of one layer in the forwards of step 0: torch's and its communication.

They come from torch.utils._debug_mode.DebugMode where this torch has it with hooks around each operation, else from a
TorchDispatchMode; the record names which. Views are left out: they compute nothing. Values are those of documents,
token by token, so that a layer of a packed cell can be compared with that of its unpacked control.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from harness.core.run.run_dir import AttemptDir, write_json
from harness.core.run.tensor_records import OperationKind, OperationSeen, OperationsSeen, TensorOfOperation
from harness.features.hybrid.node_model import is_recurrent
from harness.features.recompute.node_recompute import recomputing
from harness.probe.hooks.fingerprints import merge, token_fingerprints
from harness.probe.hooks.layers import PassState, local_owners
from harness.runtime.recording.recorder import Recorder
from harness.upstreams.node_base import RankContext

_FEW = 32  # whole numbers of a tensor that are kept
_COMMUNICATION = ("c10d", "_c10d_functional")


def record_operations(chunks: list[Any], context: RankContext, state: PassState, recorder: Recorder) -> None:
    """Register the hooks on the layer that the configuration names, if this rank has it."""
    number = context.config.operations
    assert number is not None
    for index, chunk in enumerate(chunks):
        layer = layer_of(chunk, number, first=context.is_first(index))
        if layer is not None:
            OperationRecorder(layer, number, context, state, recorder)


def _by_position(values: Any) -> set[int]:
    """Return the ids of tensors among a module's arguments with a row per position of a document, which may be as many
    as tokens: the angles of RoPE.
    """
    arguments = values[1] if isinstance(values, tuple) and len(values) == 2 and isinstance(values[1], dict) else {}
    angles = [value for name, value in arguments.items() if name.startswith("rotary_pos")]
    return {id(angle) for angle in tree_leaves(angles)}


def layer_of(chunk: Any, number: int, *, first: bool) -> Any:
    """Return the module of a layer by its global number, 0 for the embedding; None if the chunk does not have it.

    `first`: whether the chunk is the first one of the model.
    """
    if number == 0:
        return chunk.embedding if first else None
    return next((layer for layer in chunk.decoder.layers if layer.layer_number == number), None)


class OperationRecorder:
    """Owns the hooks on one layer; writes the record after every micro-batch."""

    def __init__(self, layer: Any, number: int, context: RankContext, state: PassState, recorder: Recorder) -> None:
        self.layer, self.context, self.state = layer, context, state
        self.path = AttemptDir(recorder.path.parent.parent).operations(recorder.record.rank)
        self.seen = OperationsSeen(
            rank=recorder.record.rank, place=context.place, layer=number, mode=_debug_mode(), torch=torch.__version__
        )
        self.known: dict[tuple[str, str, int], OperationSeen] = {}
        self.numbers: Counter[tuple[str, str]] = Counter()
        self.modules: list[Any] = []  # in which the forward is, innermost last
        self.names = {module: name for name, module in layer.named_modules()}
        self.mixed = set(_mixing(layer))
        self.weights = {_start(weight): name for name, weight in layer.named_parameters()}
        self.storages = {start[0] for start in self.weights}
        self.observing: ExitStack | None = None
        self.busy = False  # in arithmetic of this class, which is not the layer's
        self.taken: list[TensorOfOperation] = []
        for module in self.names:
            if type(module).__name__ == "IdentityOp":  # in the place of a module that the layer does not have
                continue
            # The layer's own hooks come first on the way in and run even if it raises, so that the observing context is
            # always closed.
            module.register_forward_pre_hook(self._entered, with_kwargs=True, prepend=module is layer)
            module.register_forward_hook(self._left, always_call=module is layer)

    def _entered(self, module: Any, args: Any, kwargs: Any) -> None:
        if module is self.layer and self.state.first_step and not recomputing():
            self.numbers.clear()
            self.seen.micro_batches += 1
            self.observing = ExitStack()
            self.observing.enter_context(observing(self))
        if self.observing is not None:
            self.modules.append(module)
            self._add("receives", "receives", [], self.tensors((args, kwargs), boundary=True))

    def _left(self, module: Any, args: Any, output: Any) -> None:
        if self.observing is None:
            return
        self._add("returns", "returns", [], self.tensors(output, boundary=True))
        self.modules.pop()
        if module is self.layer:
            self.observing.close()
            self.observing = None
            self.modules.clear()
            write_json(self.path, self.seen)

    def before(self, args: Any) -> None:
        """Keep the inputs of an operation that is about to run, which it may overwrite."""
        if not self.busy:
            self.taken = self.tensors(args)

    def after(self, func: Any, result: Any, text: str) -> None:
        """Record an operation that has run."""
        # `busy` ends a recursion: fingerprints are torch operations too.
        if self.busy or not isinstance(func, OpOverload) or _computes_nothing(func):
            return
        kind: OperationKind = "communication" if func.namespace in _COMMUNICATION else "operation"
        if kind == "communication":
            _wait(result)
        outputs = self.tensors(result)
        if outputs or kind == "communication":
            self._add(_name(func), kind, self.taken, outputs, text)

    def _add(
        self,
        name: str,
        kind: OperationKind,
        inputs: list[TensorOfOperation],
        outputs: list[TensorOfOperation],
        text: str = "",
    ) -> None:
        """Add an operation, or what it computed for the documents of a further micro-batch."""
        module = self.names[self.modules[-1]]
        number = self.numbers[module, name]
        self.numbers[module, name] += 1
        earlier = self.known.get((module, name, number))
        if earlier is None:
            operation = OperationSeen(
                module=module, name=name, kind=kind, number=number, text=text, inputs=inputs, outputs=outputs
            )
            self.known[module, name, number] = operation
            self.seen.operations.append(operation)
            return
        earlier.micro_batches += 1
        for old, new in zip(earlier.inputs + earlier.outputs, inputs + outputs):
            if old.features == new.features:
                merge(old.documents, new.documents)
            else:
                # Shapes of a sum over micro-batches must be those of one operation; where they differ, nothing can be
                # compared.
                old.features, old.documents = 0, {}

    def tensors(self, values: Any, *, boundary: bool = False) -> list[TensorOfOperation]:
        """Return the tensors among values.

        `boundary`: what a module receives or returns, which is by token even if the module mixes tokens.
        """
        # Inside attention and dispatched experts a dimension of the right size need not be that of tokens.
        by_token = boundary or self.modules[-1] not in self.mixed
        self.busy = True
        try:
            by_position = _by_position(values)
            leaves = [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
            return [self._tensor(leaf, by_token and id(leaf) not in by_position) for leaf in leaves]
        finally:
            self.busy = False

    def _tensor(self, tensor: Tensor, by_token: bool) -> TensorOfOperation:
        whole = not (tensor.is_floating_point() or tensor.is_complex())
        described = TensorOfOperation(shape=list(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))
        if tensor.is_meta or tensor.is_complex():
            return described
        described.norm = float(tensor.detach().double().norm()) if tensor.numel() else 0.0
        if whole:
            few = tensor.numel() <= _FEW and tensor.dtype is not torch.bool
            described.values = [int(value) for value in tensor.flatten().tolist()] if few else None
            return described
        if _start(tensor)[0] in self.storages:
            described.name = self.weights.get(_start(tensor), "weights")
            return described
        if by_token and (rows := self._rows(tensor.detach())) is not None:
            train = self.context.config.train
            described.features = rows[0].shape[-1]
            described.documents = token_fingerprints(*rows, length=train.seq_length, seed=train.seed)
        return described

    def _rows(self, tensor: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return (rows [tokens, features], owners [tokens, 2]).

        None if no dimension of the tensor is that of tokens.
        """
        if self.state.owners is None:
            return None
        # With sequence parallelism a layer holds tensors of all slots between its gather and scatter, and of its own
        # slots elsewhere.
        for owners in (self.state.owners.transpose(0, 1), local_owners(self.state, self.context)):
            slots, rows = owners.shape[:2]
            for tokens_first in _arrangements(tensor, slots, rows):
                features = tokens_first.reshape(slots * rows, -1)
                return features, owners.flatten(0, 1)
        return None


def _arrangements(tensor: Tensor, slots: int, rows: int) -> Iterator[Tensor]:
    """Yield the tensor, slots and rows first, if it has them: [s, b, ...], [s * b, ...], [b, s, ...], [b, h, s, d]."""
    shape = tuple(tensor.shape)
    if shape[:2] == (slots, rows) or (len(shape) > 1 and shape[0] == slots * rows):
        yield tensor
    elif shape[:2] == (rows, slots):
        yield tensor.transpose(0, 1)
    elif len(shape) == 4 and shape[0] == rows and shape[2] == slots:
        yield tensor.permute(2, 0, 1, 3)


def _mixing(layer: Any) -> Iterator[Any]:
    """Yield the modules in which tokens are mixed or dispatched, so that what they compute in between is not by
    token.
    """
    attention = getattr(layer, "self_attention", None)
    core = getattr(attention, "core_attention", None)
    if core is not None:
        yield from core.modules()
    yield from (module for module in (attention, getattr(layer, "mixer", None)) if is_recurrent(module))
    experts = getattr(layer, "mlp", None)
    if hasattr(experts, "router"):
        yield experts
        yield from getattr(experts, "experts", torch.nn.Identity()).modules()


def _start(tensor: Tensor) -> tuple[int, int]:
    """Return where a tensor's memory begins: a view of a weight has the same beginning."""
    return tensor.untyped_storage().data_ptr(), int(tensor.storage_offset())


def _computes_nothing(func: OpOverload) -> bool:
    """Return whether an operation only returns views of its inputs, or memory without values."""
    # The schema of _unsafe_view claims a new tensor, although it shares its input's memory.
    if "empty" in _name(func) or func is torch.ops.aten._unsafe_view.default:
        return True
    aliases = [value.alias_info for value in func._schema.returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


def _name(func: OpOverload) -> str:
    """Return the name of an operation: "aten.mm", "c10d.allreduce_"."""
    return str(func).removesuffix(".default")


def _wait(result: Any) -> None:
    """Wait for communication that has been started; its tensors hold nothing before."""
    for leaf in tree_leaves(result):
        if not isinstance(leaf, Tensor) and hasattr(leaf, "wait"):
            with suppress(RuntimeError):  # it is reported where the layer waits for it
                leaf.wait()


def _debug_mode() -> str:
    """Return the class that observes operations, by its full name."""
    with suppress(ImportError, AttributeError):
        module: Any = importlib.import_module("torch.utils._debug_mode")
        # Older releases have a DebugMode without a hook before the operation; inputs that are overwritten in place
        # would be lost.
        if "pre_log_hook" in module.DebugMode.dispatch_hooks.__wrapped__.__code__.co_varnames:
            return f"{module.__name__}.DebugMode"
    return f"{TorchDispatchMode.__module__}.TorchDispatchMode"


class _Dispatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Reports each operation to a recorder, in releases whose debug mode does not."""

    def __init__(self, recorder: OperationRecorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.recorder.before((args, kwargs))
        result = func(*args, **(kwargs or {}))
        self.recorder.after(func, result, "")
        return result


def observing(recorder: OperationRecorder) -> Any:
    """Return a context in which the recorder gets every operation."""
    if not recorder.seen.mode.endswith(".DebugMode"):
        return _Dispatch(recorder)
    return _debugging(recorder, importlib.import_module("torch.utils._debug_mode").DebugMode)


def _debugging(recorder: OperationRecorder, mode: Any) -> Any:
    """Return DebugMode with hooks before and after each operation.

    Only the first is given the call, which prints itself.
    """
    calls: list[Any] = []

    def before(func: Any, types: Any, args: Any, kwargs: Any, call: Any) -> None:
        calls[:] = [call]
        recorder.before((args, kwargs))

    def after(calls: list[Any], func: Any, types: Any, args: Any, kwargs: Any, result: Any) -> None:
        recorder.after(func, result, "" if recorder.busy else calls[0].render([]))

    stack = ExitStack()
    stack.enter_context(mode(record_profiler_context=False))
    stack.enter_context(mode.dispatch_hooks(record_hook=partial(after, calls), pre_log_hook=before))
    return stack
