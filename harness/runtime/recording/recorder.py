"""Writes the rank record by rename: before each micro-batch of step 0, after later steps, before each canary pass."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from harness.core.cell.timing import Lap
from harness.core.packing.fields import ALWAYS_READ, OFFSETS, PADDED
from harness.core.run.record_file import write_record
from harness.core.run.records import (
    ChoiceSeen,
    Failure,
    LayerSeen,
    LegName,
    Phase,
    Progress,
    RankEnd,
    RankRecord,
    SeenParams,
    TensorForm,
)
from harness.core.run.run_dir import AttemptDir, descriptor_of, needs_room, text_of
from harness.core.secrets import redacted, secret_values
from harness.core.serialization import dumps, from_jsonable, loads
from harness.runtime.recording.errors import absent_name, errno_of, frames_of, refusal_of, words_of

_PROGRESS_BYTES = 120  # longer than any progress line; lines are padded to it, so that each overwrites the last


class Recorder:
    """Owns one rank's record and its file."""

    def __init__(self, record: RankRecord, path: Path) -> None:
        self.record = record
        self.path = path
        attempt = AttemptDir(path.parent.parent)
        record.run_id, record.attempt = attempt.run_id, attempt.number
        self.written = ""  # `ended` of the record on disk
        self._written: RankRecord | None = None  # the rank's own record, while records go into another
        self._known: dict[Any, int] = {}
        self._pending: list[tuple[LayerSeen, Any]] = []  # layers whose params are still on the GPU
        self._choices: list[tuple[ChoiceSeen, Tensor, Tensor | None, Tensor | None]] = []  # choices still on the GPU
        self._last: tuple[Any, Any, Any] | None = None  # the latest params, their key, their snapshot
        self.laps: dict[str, Lap] = {}  # where the time went
        self._lap = time.perf_counter(), time.process_time()
        with needs_room(path):
            self._line = descriptor_of(progress_file(path), os.O_WRONLY | os.O_CREAT)

    def progress(self, leg: LegName, step: int, micro_batch: int, phase: Phase) -> None:
        """Note where the rank is, also in a separate file: a rank that hangs or is killed cannot flush its record."""
        self.record.progress = Progress(leg=leg, step=step, micro_batch=micro_batch, phase=phase)
        with needs_room(self.path):
            # pwrite of one padded line, without a rename: it happens at every micro-batch, and a reader sees the old
            # line or the new one.
            os.pwrite(self._line, dumps(self.record.progress).ljust(_PROGRESS_BYTES).encode(), 0)

    def lap(self, name: str) -> None:
        """Add the time since the last call to the lap `name`, without that of writing records, the lap `records`."""
        now = time.perf_counter(), time.process_time()
        lap = self.laps.setdefault(name, Lap())
        lap.time_s += now[0] - self._lap[0]
        lap.busy_s += now[1] - self._lap[1]
        self._lap = now

    def flush(self) -> None:
        """Write the record, with what was still on the GPU; the time it takes is the lap `records`."""
        begin = time.perf_counter(), time.process_time()
        self._read_pending()
        write_record(self.path, self._written or self.record)
        spent = time.perf_counter() - begin[0], time.process_time() - begin[1]
        lap = self.laps.setdefault("records", Lap())
        lap.time_s += spent[0]
        lap.busy_s += spent[1]
        # Moves the start of the lap in progress, so that writing is not counted in it too.
        self._lap = self._lap[0] + spent[0], self._lap[1] + spent[1]

    @contextmanager
    def apart(self) -> Iterator[RankRecord]:
        """Record into another record, which is not written, while the body runs; progress is noted as always."""
        main_record = self.record
        self.record = RankRecord(
            cell=main_record.cell, rank=main_record.rank, place=main_record.place, progress=main_record.progress
        )
        self._written = main_record
        try:
            yield self.record
        finally:
            main_record.progress = self.record.progress
            self.record, self._written = main_record, None

    def layer(self, received: LayerSeen, packed_seq_params: Any, *, recomputed: bool = False) -> None:
        """Record the packed params that a layer received.

        Tensors on a GPU are cloned now and read at the next flush: a read would wait for the GPU in a timed step.
        """
        (self.record.recomputed if recomputed else self.record.layers).append(received)
        if packed_seq_params is None:
            return
        tensors = [value for value in vars(packed_seq_params).values() if isinstance(value, Tensor)]
        if not any(needs_sync(tensor) for tensor in tensors):
            received.params = self.params(packed_seq_params)
            return
        # Layers of one forward share the object. `_version` grows with every change in place, which would make them
        # different.
        key = [(id(tensor), tensor._version) for tensor in tensors]
        if self._last is None or self._last[0] is not packed_seq_params or self._last[1] != key:
            self._last = (packed_seq_params, key, _snapshot(packed_seq_params))
        self._pending.append((received, self._last[2]))

    def choice(self, choice: ChoiceSeen, chosen: Tensor, preferred: Tensor | None, taken: Tensor | None) -> None:
        """Record what a router chose, [slots, k] int64 each, and what experts take, [slots, experts] bool.

        It is read at the next flush.
        """
        self.record.choices.append(choice)
        self._choices.append((choice, chosen, preferred, taken))

    def _read_pending(self) -> None:
        choices, self._choices = self._choices, []
        for choice, chosen, preferred, taken in choices:
            # Sorted, since kernels return the best k in different orders and the order means nothing.
            choice.experts = chosen.sort().values.tolist()
            by_score = choice.experts if preferred is None else preferred.sort().values.tolist()
            choice.preferred = None if by_score == choice.experts else by_score
            if taken is not None:
                choice.taken = [part.tolist() for part in torch.split(taken.nonzero()[:, 1], taken.sum(1).tolist())]
        pending, self._pending, self._last = self._pending, [], None
        for received, params in pending:
            received.params = self.params(params)

    def params(self, packed_seq_params: Any) -> int | None:
        """Return the index of these PackedSeqParams in the record's table of distinct values; None for None."""
        if packed_seq_params is None:
            return None
        params = _seen(packed_seq_params)
        # repr, since lists cannot be keys and NaN equals nothing.
        key = repr(astuple(params))
        if key not in self._known:
            set_fields = (name for name, value in vars(packed_seq_params).items() if value is not None)
            self.not_read(name for name in set_fields if name not in (*ALWAYS_READ, *_READ_SINCE))
            self._known[key] = len(self.record.packed_params)
            self.record.packed_params.append(params)
        return self._known[key]

    def not_read(self, names: Iterable[str]) -> None:
        """Record names of what upstream hands to the model beside what is compared."""
        self.record.not_read = sorted({*self.record.not_read, *names})

    def end(self, ended: RankEnd) -> None:
        """Write how the rank ended, and after a completed run its laps."""
        self.record.ended = ended
        self.flush()
        self.written = ended
        if ended != "completed":  # a write would count as progress of a rank that fails after the deadline
            return
        with needs_room(self.path):  # not into the record: it is evidence, all of which is judged
            os.pwrite(self._line, b"\n" + dumps(self.laps).encode(), _PROGRESS_BYTES)

    def fail(self, error: BaseException) -> str:
        """Write the error into the record and end it; return its traceback without secrets."""
        unread = [
            id(entry) for entry, *_ in (*self._pending, *self._choices)
        ]  # after a CUDA error the GPU reads nothing
        for layers in (self.record.layers, self.record.recomputed):
            layers[:] = [entry for entry in layers if id(entry) not in unread]
        self.record.choices[:] = [entry for entry in self.record.choices if id(entry) not in unread]
        self._pending, self._choices = [], []
        secrets = secret_values(os.environ)
        raised = redacted("".join(traceback.format_exception(type(error), error, error.__traceback__)), secrets)
        self.record.failure = Failure(
            type=type(error).__name__,
            # Redacted before it is cut: half a secret would not be recognised.
            message=redacted(words_of(error), secrets)[:4000],
            traceback=raised[-16000:],
            time=time.time(),
            frames=frames_of(error),
            errno=errno_of(error),
            refused=redacted(refusal_of(error), secrets)[:1000],
            absent=redacted(absent_name(error), secrets)[:1000],
        )
        self.end("raised")
        return raised


_READ_SINCE = ("pad_between_seqs", "cp_group", "local_cp_size")  # fields of packed params of later releases


def needs_sync(tensor: Tensor) -> bool:
    """Return whether reading a tensor's values synchronises with a GPU."""
    return tensor.is_cuda


def progress_file(record: Path) -> Path:
    """Return the file with a rank's progress, next to its record.

    Once the rank has ended, its second line is its laps.
    """
    return record.with_suffix(".progress")


def last_progress(record: Path) -> Progress | None:
    """Return the last progress that a rank wrote; None when it wrote none."""
    path = progress_file(record)
    text = text_of(path)[:_PROGRESS_BYTES] if path.exists() else ""
    return from_jsonable(Progress, loads(text)) if text else None


def _snapshot(params: Any) -> Any:
    """Return a copy of the params and their tensors; fields that share a tensor share its copy."""
    copies = {id(value): value.clone() for value in vars(params).values() if isinstance(value, Tensor)}
    return SimpleNamespace(**{name: copies.get(id(value), value) for name, value in vars(params).items()})


def _seen(params: Any) -> SeenParams:
    tensors = {name: getattr(params, name, None) for name in OFFSETS + PADDED}
    offsets = {name: _ints(tensor) for name, tensor in tensors.items()}
    longest = getattr(params, "max_seqlen_q", None)
    return SeenParams(
        **offsets,
        max_seqlen_q=_int(longest),
        max_seqlen_kv=_int(getattr(params, "max_seqlen_kv", None)),
        qkv_format=getattr(params, "qkv_format", None),
        forms=_forms({name: tensor for name, tensor in tensors.items() if tensor is not None}),
        pad_between_seqs=getattr(params, "pad_between_seqs", None),
        max_seqlen_type=None if longest is None else type(longest).__name__,
        context_ranks=_context_ranks(params),
    )


def _context_ranks(params: Any) -> int | None:
    """Return what Transformer Engine's attention takes for the context-parallel size (core_v0.19.0,
    TEDotProductAttention).
    """
    group = getattr(params, "cp_group", None)
    return getattr(params, "local_cp_size", None) if group is None else group.size()


def _forms(tensors: dict[str, Any]) -> dict[str, TensorForm]:
    first: dict[int, str] = {}
    forms = {}
    for name, tensor in tensors.items():
        first_name = first.setdefault(id(tensor), name)
        forms[name] = TensorForm(
            dtype=str(tensor.dtype),
            shape=list(tensor.shape),
            device=str(tensor.device),
            same_as=None if first_name == name else first_name,
        )
    return forms


def _ints(tensor: Any) -> list[int] | None:
    """Return the values of a tensor; None for None and for a meta tensor, which has no values."""
    return None if tensor is None or tensor.is_meta else [int(value) for value in tensor.reshape(-1).tolist()]


def _int(value: Any) -> int | None:
    return None if value is None else int(value)
