"""Faults of one wrong line in upstream's own code, changed in the process that runs it."""

from __future__ import annotations

import importlib
import inspect
import textwrap
from functools import reduce
from typing import Any, NamedTuple

from harness.faults.node_fault import Fault
from harness.upstreams.node_base import RankContext


class Edit(NamedTuple):
    """`right`, which is there once, becomes `wrong`, in the source of a function, which is dedented."""

    function: str  # module:qualified name
    right: str
    wrong: str


class TrainerEdited(Fault):
    """Changes the code of a function, so that all references to it are changed."""

    def __init__(self, edit: Edit) -> None:
        self.edit = edit

    def on_trainer(self) -> None:
        module, _, name = self.edit.function.partition(":")
        home: Any = importlib.import_module(module)
        function: Any = inspect.unwrap(reduce(getattr, name.split("."), home))
        source = textwrap.dedent(inspect.getsource(function))
        if source.count(self.edit.right) != 1:
            raise ValueError(f"{self.edit.function} of this release has no single {self.edit.right!r}")
        # Without decorators, which `function` does not have either.
        source = source[source.index("def ") :].replace(self.edit.right, self.edit.wrong)
        made: dict[str, Any] = {}
        exec(compile(source, inspect.getsourcefile(function) or module, "exec"), vars(home) | made, made)
        function.__code__ = made[function.__name__].__code__


class DataPathEdited(TrainerEdited):
    def on_path(self, path: Any, context: RankContext) -> None:
        self.on_trainer()
