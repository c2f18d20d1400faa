"""The order in which Megatron-LM's samplers deal to replicas, and in which its packing scheduler then deals again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from harness.core.packing.arithmetic import PlacedDocument, Row
from harness.core.packing.documents import Document
from harness.core.packing.styles import PackingStyle

_Item = TypeVar("_Item")


def dealt(items: Sequence[_Item], dp: int) -> list[_Item]:
    """What is dealt to replicas in turn, in the order in which the scheduler takes it: replica by replica."""
    return [item for replica in range(dp) for item in items[replica::dp]]


def undealt(items: Sequence[_Item], dp: int) -> list[_Item]:
    """The order from which `dealt` makes this one."""
    places = dealt(range(len(items)), dp)
    return [items[places.index(place)] for place in range(len(items))]


def row_of(document: Document, style: PackingStyle) -> Row:
    """A row of one document with its padding."""
    return Row(placed=(PlacedDocument(document=document, start=0, padded_length=style.size(document)),))
