"""Process groups that are passed to the model explicitly, while Megatron's global groups belong to another rank order.

Programs with several models, or with a model beside Megatron's own, pass each its groups (ProcessGroupCollection).
Code of upstream that reads the global groups instead is right only as long as both are the same.

Checked against megatron.core.parallel_state, 0.14 to 0.19: its state is the private variables of the module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import forward_backward_no_pipelining

from harness.upstreams.node_lookup import takes

# Megatron's order is tp-cp-ep-dp-pp. Here replicas vary fastest, so that tensor-parallel groups have other members.
OTHER_ORDER = "dp-cp-ep-tp-pp"
_ARGUMENT = "pg_collection"
_TAKERS = (GPTModel.__init__, DistributedDataParallel.__init__, get_megatron_optimizer, forward_backward_no_pipelining)
State = dict[str, Any]


def without_groups() -> str:
    """Return the first function to which the probe passes process groups and that does not take them.

    Empty if all do.
    """
    return next((taker.__qualname__ for taker in _TAKERS if not takes(taker, _ARGUMENT)), "")


@dataclass(frozen=True, kw_only=True)
class Groups:
    """The model's groups. Without `collection`, upstream uses its global ones, and the contexts change nothing."""

    collection: Any = None  # ProcessGroupCollection
    own: State = field(default_factory=dict)  # Megatron's global state for the cell's layout
    other: State = field(default_factory=dict)  # for the same sizes in OTHER_ORDER

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for upstream's model, DDP, optimizer and schedule."""
        return {} if self.collection is None else {_ARGUMENT: self.collection}

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Let upstream run: the model's groups are not the global ones."""
        with _state(self.other, self.own):
            yield

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Let the harness run inside `hidden`: its data path uses the global groups."""
        with _state(self.own, self.other):
            yield


GLOBAL = Groups()


def explicit_groups(initialize: Callable[..., None]) -> Groups:
    """Create the groups of the layout, which become the global ones too, and those of OTHER_ORDER.

    `initialize(**more)` calls initialize_model_parallel with the cell's sizes.
    """
    from megatron.core.process_groups_config import ProcessGroupCollection

    blank = _read()
    # First, so that the groups of the layout are the global ones afterwards. Every rank creates all groups in this
    # order, as torch demands.
    initialize(order=OTHER_ORDER)
    reordered = _read()
    # initialize_model_parallel asserts that its groups do not exist yet.
    _write(blank)
    initialize()
    return Groups(collection=ProcessGroupCollection.use_mpu_process_groups(), own=_read(), other=reordered)


@contextmanager
def _state(inside: State, outside: State) -> Iterator[None]:
    _write(inside)
    try:
        yield
    finally:
        _write(outside)


def _read() -> State:
    """Return the variables of the module; collections are copied, since initialisation adds to them."""
    variables = {name: value for name, value in vars(parallel_state).items() if name.startswith("_") and name.isupper()}
    return {name: value.copy() if isinstance(value, list | dict) else value for name, value in variables.items()}


def _write(state: State) -> None:
    vars(parallel_state).update(state)
