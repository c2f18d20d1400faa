"""A plug-in of pytest that chooses which of upstream's own unit tests run in a checkout: those of packing.

They are those that Megatron-Bridge's guide to packing names.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Selected:
    """Tests of a file whose names contain one of `words`; without words, all."""

    file: str
    words: tuple[str, ...] = ()
    need_gpu: tuple[str, ...] = ()  # words in the names of tests that must fail without a GPU

    def chooses(self, item: pytest.Item) -> bool:
        return item.nodeid.startswith(f"{self.file}::") and (
            not self.words or any(word in item.nodeid for word in self.words)
        )


SELECTED = (
    Selected("tests/unit_tests/training/utils/test_packed_seq_utils.py"),
    Selected(
        "tests/unit_tests/training/test_config.py",
        (
            "packed_sequence",
            "pack_sequences_in_batch",
            "context_parallel_seq_length_divisibility",
            "context_parallel_finetuning_validations",
        ),
    ),
    Selected(
        "tests/unit_tests/training/test_vlm_step.py",
        ("enable_packing", "deferred_in_batch_packing", "packed_metadata"),  # the first up to 0.5
        need_gpu=("enable_packing", "packed_metadata"),
    ),
)


def checkout() -> Path | None:
    """The checkout with the tests: a folder of the module search path, or its parent, which has `src`."""
    searched = [Path(entry) for entry in sys.path if entry]
    roots = (root for entry in searched for root in (entry, entry.parent))
    return next((root for root in roots if any((root / one.file).is_file() for one in SELECTED)), None)


@pytest.hookimpl(tryfirst=True)  # before the user's -k, so that an empty selection is upstream's
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    import torch  # not to find out whether there is a checkout

    chosen: list[pytest.Item] = []
    for one in SELECTED:
        fitting = [item for item in items if one.chooses(item)]
        chosen += fitting or [NoTests.from_parent(session, name=one.file, selected=one)]
        for item in fitting:
            if not torch.cuda.is_available() and any(word in item.name for word in one.need_gpu):
                item.add_marker(pytest.mark.xfail(reason="needs a GPU", strict=True))
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


class NoTests(pytest.Item):
    """An error in place of tests that are no longer there, as after a rename: that nothing ran proves nothing."""

    def __init__(self, selected: Selected, **of_pytest: Any) -> None:
        super().__init__(**of_pytest)
        self.selected = selected

    def setup(self) -> None:
        words = f" with {' or '.join(self.selected.words)} in their names" if self.selected.words else ""
        raise LookupError(f"this checkout has no tests{words} in {self.selected.file}")

    def runtest(self) -> None:
        pass
