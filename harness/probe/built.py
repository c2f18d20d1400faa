"""Imports the modules under test, and records from which files they came and what upstream built of them."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any

import torch
from megatron.core import parallel_state

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Coordinates
from harness.core.cell.upstream_config import asked
from harness.core.run.records import BuiltSeen, ImportProof, RankRecord
from harness.core.upstream import code_packages, heads
from harness.features.vision.node_model import PACKAGE, language_of, tower_of
from harness.oracle.fields import MODELLED

# All modules of the code under test that ranks use, imported once by the agent before it forks.
WARM_MODULES = (
    "torch.distributed.elastic.multiprocessing",
    "megatron.core.distributed",
    "megatron.core.models.gpt.gpt_layer_specs",
    "megatron.core.models.gpt.gpt_model",
    "megatron.core.optimizer",
    "megatron.core.packed_seq_params",
    "megatron.core.parallel_state",
    "megatron.core.pipeline_parallel",
    "megatron.core.utils",
)
# Imported lazily by some releases in every rank; imported in the agent if present.
_WARM_IF_PRESENT = ("megatron.core.models.mimo",)


def import_all() -> None:
    """Import the modules under test. Raises the first import error."""
    for name in WARM_MODULES:
        importlib.import_module(name)
    for name in _WARM_IF_PRESENT:
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)
    # Ranks are forked from this process: what is cached now costs none of them anything.
    other_modules()  # fills the caches for all ranks


def import_proof() -> list[ImportProof]:
    """Return the version and file of modules under test that are loaded in this process.

    Only of the heads (core/upstream.heads), and of modules whose file is not where their head and name imply.
    """
    named = _files()
    return [
        ImportProof(module=name, version=_version(name), path=file)
        for name, file in named.items()
        if name in heads() or not _below_head(name, named)
    ]


def other_modules() -> dict[str, str]:
    """Return the other modules, a few hundred, in the short form that `proofs_of` of judge/import_check.py expands.

    For a rank's final record.
    """
    named = _files()
    below_heads: dict[str, list[str]] = {}
    for name in named:
        below = "" if name in heads() else _below_head(name, named)
        if below:
            below_heads.setdefault(str(_head(name)), []).append(below)
    return {head: " ".join(names) for head, names in below_heads.items()}


def _files() -> dict[str, str]:
    """Return the file of each loaded module under test, by the module's name."""
    # Everything under test runs from these packages; torch decides which kernels they call. Other packages would make
    # the proof long and decide nothing.
    tops = code_packages()
    files = {name: _file(name) for name in sorted(sys.modules) if name.split(".")[0] in tops or name == "torch"}
    return {name: file for name, file in files.items() if file}


def _file(name: str) -> str:
    """Return the file of a loaded module; empty for a namespace package, which has no code."""
    path = getattr(sys.modules[name], "__file__", None)
    return _absolute(path) if isinstance(path, str) else ""


@cache
def _absolute(path: str) -> str:
    # A resolved link would hide that a module came from an editable install or a worktree reached by a link, which is
    # how the stack names it.
    return os.path.abspath(path)  # noqa: PTH100 - keeps links


@cache
def _head(name: str) -> str | None:
    return next((head for head in heads() if name == head or name.startswith(head + ".")), None)


def _below_head(name: str, files: dict[str, str]) -> str:
    """Return a module's name relative to its head, with a trailing "/" for packages.

    Empty when its file is elsewhere.
    """
    head = _head(name)
    if head is None or head not in files:
        return ""
    return _below(files[head], name[len(head) + 1 :], files[name])


@cache
def _below(head_file: str, below: str, file: str) -> str:
    stem = os.path.join(os.path.dirname(head_file), *below.split("."))  # noqa: PTH118, PTH120 - text
    expected = {stem + ".py": below, os.path.join(stem, "__init__.py"): below + "/"}  # noqa: PTH118 - text
    return expected.get(file, "")


def _version(name: str) -> str:
    # megatron is a namespace package without a version; megatron.core and megatron.bridge have their own.
    head = sys.modules.get(_head(name) or name.split(".")[0])
    return str(getattr(head, "__version__", "unknown"))


_MODELS = {
    "megatron.core.models.gpt.gpt_model": "GPTModel",
    "megatron.core.models.hybrid.hybrid_model": "HybridModel",
    "megatron.core.models.mamba.mamba_model": "MambaModel",
}
_GIVEN = "constructor_arguments"  # attribute of a model
# Arguments that differ between the chunks of one model.
_OF_STAGE = ("pre_process", "post_process", "vp_stage", "pre_process_mtp", "post_process_mtp")
_OURS = ("megatron.core.", f"megatron.bridge.{PACKAGE}.")
_LONGEST = 2_000  # characters of a value


# With what upstream built a rank's model, DDP and optimizer: their configurations, and the rank's place.
#
# Of a configuration those fields of megatron-core's own classes are recorded that the cell asks for, and those whose
# values are not the defaults there, or not those of the release whose defaults the oracle knows. So are those of
# Megatron-Bridge's class for Qwen3-VL, of which the image tower has a configuration too. Other subclasses, such as the
# providers of Megatron-Bridge, have more fields, which become arguments of the model's constructor; those are
# recorded too.
def keep_arguments() -> None:
    """Make models keep the arguments of their constructors, from now on, for `record_built`."""
    for module, name in _MODELS.items():
        try:
            model: Any = vars(importlib.import_module(module)).get(name)
        except ImportError:  # this release has no such model
            continue
        # The agent forks ranks for many cells from one process; a second wrapper would only repeat the first.
        if model is not None and not hasattr(model.__init__, "keeps"):
            model.__init__ = _keeping(model.__init__)


def _keeping(upstream: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(upstream)

    @functools.wraps(upstream)
    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        upstream(self, *args, **kwargs)
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        plain = (bool, int, float, str, torch.dtype, type(None))
        arguments = {name: text_of(value) for name, value in bound.arguments.items() if isinstance(value, plain)}
        setattr(self, _GIVEN, {name: text for name, text in arguments.items() if name not in _OF_STAGE})

    build.keeps = True  # type: ignore[attr-defined]
    return build


def record_built(record: RankRecord, config: CellConfig, chunks: Sequence[Any], optimizer: Any) -> None:
    """Record with what the model chunks and their optimizer were built. Where chunks differ, each is recorded."""
    # Not above: whoever imports this module has yet to find out which names of upstream are there.
    from harness.probe.model.gpt import unwrap

    built: list[BuiltSeen] = []
    for chunk in chunks:
        model = language_of(unwrap(chunk))
        built += _seen("model", model.config, config)
        built += _seen("tower", getattr(tower_of(unwrap(chunk)), "config", None), config)
        built.append(BuiltSeen(of="constructor", values=arguments_of(model, asked(config)["constructor"])))
        built += _seen("ddp", _ddp(chunk), config)
    built += _seen("optimizer", _config_of(optimizer), config)
    # Chunks are nearly always built alike; one entry keeps the record short and a second one is news.
    record.built = [entry for number, entry in enumerate(built) if entry not in built[:number]]
    record.built_at = Coordinates(
        tp=parallel_state.get_tensor_model_parallel_rank(),
        cp=parallel_state.get_context_parallel_rank(),
        dp=parallel_state.get_data_parallel_rank(),
        pp=parallel_state.get_pipeline_model_parallel_rank(),
    )


def _ddp(chunk: Any) -> Any:
    # Trainers put DDP inside or outside their own wrappers, so its depth is not known.
    while chunk is not None and not hasattr(chunk, "ddp_config"):
        chunk = getattr(chunk, "module", None)
    return getattr(chunk, "ddp_config", None)


def _config_of(optimizer: Any) -> Any:
    """Return the configuration of an optimizer, or of the first one of several."""
    several = getattr(optimizer, "chained_optimizers", None)
    return getattr(several[0] if several else optimizer, "config", None)


def _seen(of: str, upstream: Any, config: CellConfig) -> Iterator[BuiltSeen]:
    if upstream is not None:
        yield BuiltSeen(of=of, values=values_of(of, upstream, asked(config)[of]))


def values_of(of: str, upstream: Any, always: Collection[str] = ()) -> dict[str, str]:
    """Return the fields, as text, that differ from this release's default, or from the value that the oracle knows.

    `of`: as in BuiltSeen; `always`: fields that are recorded at their defaults too.
    """
    kind: Any = type(upstream)
    defaults = _defaults(kind)
    return _recorded(of, {name: text_of(getattr(upstream, name, None)) for name in defaults}, defaults, always)


def arguments_of(model: Any, always: Collection[str] = ()) -> dict[str, str]:
    """Return the arguments of a model's constructor as `values_of` returns fields; none of a model that
    `keep_arguments` does not know.
    """
    parameters = inspect.signature(type(model)).parameters.values()
    defaults = {
        parameter.name: None if parameter.default is parameter.empty else text_of(parameter.default)
        for parameter in parameters
    }
    return _recorded("constructor", getattr(model, _GIVEN, {}), defaults, always)


def _recorded(
    of: str, values: Mapping[str, str], defaults: Mapping[str, str | None], always: Collection[str]
) -> dict[str, str]:
    oracle_defaults = {name: field.default for name, field in MODELLED[of].items()}
    return {
        name: text
        for name, text in values.items()
        # A release whose default has changed is caught by the last condition: the value is its default, and not what
        # the oracle computes with.
        if name in always or text != defaults.get(name) or text != oracle_defaults.get(name, text)
    }


@cache
def _defaults(kind: Any) -> dict[str, str | None]:
    """Return the default of each field as text, None without one: as the first of upstream's classes that has the field
    says.
    """
    defaults: dict[str, str | None] = {}
    # Base classes come last and win: a subclass that changes a default, such as a provider of Megatron-Bridge, has
    # asked for something.
    for parent in kind.__mro__:
        if parent.__module__.startswith(_OURS) and dataclasses.is_dataclass(parent):
            defaults |= {field.name: _default(field) for field in dataclasses.fields(parent)}
    return dict(sorted(defaults.items()))


def _default(field: dataclasses.Field[Any]) -> str | None:
    if field.default is not dataclasses.MISSING:
        return text_of(field.default)
    return text_of(field.default_factory()) if field.default_factory is not dataclasses.MISSING else None


def text_of(value: Any) -> str:
    """Return a value as JSON; functions, dtypes and classes by name, other objects by the name of their class."""
    return _text(value)[:_LONGEST]


def _text(value: Any) -> str:
    # Before the numbers: an IntEnum is an int, and its number says less than its name.
    if isinstance(value, Enum):
        return value.name
    if value is None or isinstance(value, bool | int | float | str):
        return json.dumps(value)
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {list(value.shape)}"
    if isinstance(value, torch.dtype):
        return str(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(_text, value)))}}}"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_text(key)}: {_text(element)}' for key, element in value.items())}}}"
    if isinstance(value, functools.partial):
        keywords = ", ".join(f"{key}: {_text(element)}" for key, element in value.keywords.items())
        return f"{_text(value.func)}({keywords})" if keywords else _text(value.func)
    name = getattr(value, "__qualname__", None) or type(value).__qualname__
    if name == "PipelineParallelLayerLayout":
        return json.dumps(str(value))  # the text that it was parsed from
    return str(name)
