"""Fields of a configuration in the shape of Megatron-Bridge's ConfigContainer, set by dotted names."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest

from harness.core.cell.arguments import Arguments, merged
from harness.upstreams.megatron_bridge.node_config import FieldError, set_fields


class Backend(Enum):
    flash = 1
    local = 2


@dataclass
class Ddp:
    overlap_grad_reduce: bool = False
    bucket_size: int | None = None


@dataclass
class Model:
    recompute_granularity: str | None = None
    recompute_modules: list[str] = field(default_factory=lambda: ["core_attn"])
    init_method_std: float = 0.02
    attention_backend: Backend = Backend.local
    name: str = "gpt"
    layers: int = 2
    _hidden: int = 0


@dataclass
class Container:
    model: Model = field(default_factory=Model)
    ddp: Ddp = field(default_factory=Ddp)
    comm_overlap: Any = None


def made(**given: tuple[str, ...]) -> Container:
    container = Container()
    set_fields(container, Arguments(merged({name.replace("__", "."): words for name, words in given.items()})))
    return container


def test_values_have_the_type_of_the_field() -> None:
    found = made(
        ddp__overlap_grad_reduce=("true",),
        ddp__bucket_size=("7",),
        model__recompute_granularity=("full",),
        model__recompute_modules=("mlp",),
        model__init_method_std=("1",),
        model__attention_backend=("flash",),
        model__name=("3",),
        clip_grad=("0.1",),  # not a field
    )
    assert found.ddp == Ddp(True, 7)
    assert found.model == Model("full", ["mlp"], 1.0, Backend.flash, "3")
    assert isinstance(found.model.init_method_std, float)


def test_several_words_are_a_list_and_null_is_none() -> None:
    found = made(model__recompute_modules=("mlp", "core_attn"), model__name=("null",))
    assert found.model.recompute_modules == ["mlp", "core_attn"]
    assert found.model.name is None


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("ddp.overlap_grad_reduc", "; did you mean ddp.overlap_grad_reduce?"),
        ("dpd.bucket_size", "; did you mean ddp.bucket_size?"),
        ("comm_overlap.x", ""),
        ("model._hidden", ""),
        ("ddp.bucket_size.x", "; did you mean ddp.bucket_size?"),
    ],
)
def test_an_unknown_name_comes_with_the_nearest_one(name: str, near: str) -> None:
    with pytest.raises(FieldError) as caught:
        made(**{name.replace(".", "__", 2): ("1",)})
    message = str(caught.value)
    assert message.startswith(f"{name} is not a field of this release's ConfigContainer")
    assert not near or message.endswith(near)


@pytest.mark.parametrize(
    ("name", "word", "message"),
    [
        ("ddp__overlap_grad_reduce", "1", "must be of type bool, like its default False"),
        ("model__layers", "two", "must be of type int, like its default 2"),
        ("model__layers", "true", "must be of type int"),
        ("model__init_method_std", "wide", "must be of type float"),
        ("model__attention_backend", "slow", "allowed: flash, local"),
    ],
)
def test_a_value_of_another_type_is_refused(name: str, word: str, message: str) -> None:
    with pytest.raises(FieldError, match=message):
        made(**{name: (word,)})
