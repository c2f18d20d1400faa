"""The axes of a matrix, each with the field of a cell that it sets.

They set fields of CellConfig, of its layout and of its options; axes of the model and the training run have dotted
names.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter
from typing import Any

from harness.core.cell.config import CellConfig, TrainConfig
from harness.core.cell.layout import Layout
from harness.core.cell.model import ModelConfig
from harness.core.packing.documents import MIXES
from harness.core.packing.options import PackingOptions
from harness.core.setting import Key, Setting, keys_of
from harness.core.stack import SAFE_NAME, safe_name
from harness.features.attention.config import MlaConfig
from harness.features.experts.config import MoeConfig
from harness.features.prediction.config import MtpConfig
from harness.features.vision.config import VisionConfig

LAYOUT = tuple(keys_of(Layout))
SECTIONS: dict[str, type[Any]] = {"model": ModelConfig, "train": TrainConfig}  # their keys are axes with dotted names


@dataclass(frozen=True, kw_only=True)
class Axis(Key):
    """An axis; its default applies to combinations that leave it out."""

    path: str  # attributes that lead from a CellConfig to its value

    def of(self, config: CellConfig) -> Any:
        """Return the axis value of a resolved cell."""
        return attrgetter(self.path)(config)

    @property
    def field(self) -> str:
        """The field of CellConfig that it sets; empty for a key of the layout or the options."""
        return "" if "." in self.path else self.path

    @property
    def aliases(self) -> tuple[str, ...]:
        return tuple(name for name in self.setting.names if name != self.name)


# Axes that act on a section of the matrix.
_OF_SECTIONS = (
    Axis(
        name="documents",
        path="documents.label",
        type=str,
        default=MIXES[0],
        setting=Setting(
            doc="Instead of those of the section `documents`: a built-in mix, or a name under "
            "[`lists`](matrix.md#documents).",
            check=safe_name,
            values=f"{', '.join(f'`{name}`' for name in MIXES)}, a name",
            written={"anyOf": [{"enum": [*MIXES]}, {"type": "string", "pattern": f"^{SAFE_NAME}$"}]},
            shown_default="that of the section",
        ),
    ),
    Axis(
        name="args",
        path="args.profile",
        type=str,
        default="",
        setting=Setting(
            doc="Arguments of upstream's trainer: a name under [`profiles`](trainers.md#arguments), or null.",
            values="a name, null",
            shown_default="null",
            read=lambda value: "" if value is None else value,
            written={"anyOf": [{"type": "string"}, {"type": "null"}]},
        ),
    ),
    Axis(
        name="timed",
        path="timing.timed",
        type=bool,
        default=True,
        setting=Setting(doc="Whether `checks.throughput` times the cell."),
    ),
)


@cache
def axes() -> dict[str, Axis]:
    """Return the axes with plain names, in the order of docs/generated/keys.md."""
    found = [_axis(key, f"layout.{key.name}") for key in keys_of(Layout).values()]
    own = [_axis(key, key.name) for key in keys_of(CellConfig).values() if key.setting.axis]
    found += [*own, *_OF_SECTIONS]
    found += [_axis(key, f"options.{key.name}") for key in keys_of(PackingOptions).values()]
    return {axis.name: axis for axis in found}


def always() -> tuple[str, ...]:
    """Return the axes that every cell name, table and one-cell matrix shows."""
    return tuple(name for name, axis in axes().items() if axis.setting.always)


@cache
def dotted() -> dict[str, Axis]:
    """Return the axes of the keys of sections, e.g. "model.layers"."""
    keys = [(f"{section}.{name}", key) for section, kind in SECTIONS.items() for name, key in keys_of(kind).items()]
    return {
        name: Axis(name=name, path=name, type=key.type, default=key.default, setting=key.setting) for name, key in keys
    }


def _axis(key: Key, path: str) -> Axis:
    default = None if key.setting.auto else key.default
    return Axis(name=key.setting.axis or key.name, path=path, type=key.type, default=default, setting=key.setting)


@cache
def upstream_names() -> dict[str, str]:
    """Field of Megatron's configuration -> the axis or key that sets it, e.g. "model.moe.topk"."""
    found = {axis.setting.upstream: name for name, axis in (dotted() | axes()).items()}
    for part, kind in (("moe", MoeConfig), ("mtp", MtpConfig), ("mla", MlaConfig), ("vision", VisionConfig)):
        found |= {key.setting.upstream: f"model.{part}.{name}" for name, key in keys_of(kind).items()}
    return {name: key for name, key in found.items() if name}


def with_value(config: CellConfig, axis: Axis, value: Any) -> CellConfig:
    """Return the cell with another value of an axis; dependent values are not adjusted."""
    part, _, key = axis.path.rpartition(".")
    changed = replace(getattr(config, part), **{key: value}) if part else value
    return replace(config, **{part or key: changed})


def labelled(name: str, value: Any) -> str:
    """Return an axis with its value for tables: "bf16" where the value speaks for itself, else "metadata=True"."""
    axis = axes().get(name)
    return str(value) if axis and axis.setting.label == "{}" and not axis.setting.leads else f"{name}={value}"
