"""Base class of stubs of the model, with which upstream's step is called to fetch a batch.

A stub has what upstream reads of a model. A checkout may read more, or the same under another name. The error that it
then raises does not show that it is wrong: its own model may have that name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from harness.runtime.recording.errors import UnknownNameError


class ModelStub:
    """Remembers the attributes that it was asked for and does not have."""

    def __getattr__(self, name: str) -> Any:
        # Through __dict__: an ordinary attribute would ask this method for itself while it is missing.
        self.__dict__.setdefault("unknown", []).append(name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @contextmanager
    def called_by(self, step: str) -> Iterator[None]:
        """Run upstream's `step` in the body: UnknownNameError if it fails by a name that the stub does not know."""
        try:
            yield
        except Exception as error:
            # Upstream also asks for names with hasattr, to which a plain "no" is the right answer.
            unknown = [name for name in self.__dict__.get("unknown", []) if name in str(error)]
            if not unknown:
                raise
            attributes = ", ".join(sorted(name for name in vars(self) if name not in ("unknown", "given")))
            raise UnknownNameError(
                f"{step} reads {unknown[-1]} of the model, and the harness's stub of it, which fetches a batch without "
                f"the model, has only {attributes}"
            ) from error
