"""Tables and bounds of pages of docs, from the declarations. scripts/key_tables.py writes them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, is_dataclass, replace
from typing import Annotated, Any, Literal, get_args, get_origin

from harness.core.cell.axes import axes
from harness.core.cell.axis_values import HARNESS, TRAINERS
from harness.core.cell.config import ModelConfig, TrainConfig
from harness.core.packing.documents import KEYS_OF_MODE, DocumentsConfig
from harness.core.packing.options import PackingOptions
from harness.core.run.run_plan import MayReject, XFail
from harness.core.setting import Key, Limits, keys_of
from harness.core.tolerances import BOUND_NAMES, DEFAULTS, RATIO_SCREEN, Override
from harness.matrix.cluster import ClusterProfile, Container
from harness.matrix.schema.section import Section, union_of
from harness.matrix.schema.sections import (
    MODEL_PARTS,
    ChecksSection,
    CoveringSection,
    HistorySection,
    Launch,
    MatrixFile,
    SlopeSection,
    ThroughputSection,
)
from harness.matrix.stacks.recipes import RECIPES
from harness.matrix.stacks.section import StackLayer
from harness.upstreams.table import DATA_PATHS, PROJECTS

GENERATED_PAGES = ("generated/keys.md", "data_paths.md", "stacks.md", "../README.md")  # in docs
# Project -> how the names of its recipes begin, if it has any; for the table of the README.
_RELEASES = {"Megatron-LM": "core-", "Megatron-Bridge": "bridge-", "SkyRL": "skyrl-"}
_MARK = re.compile(r"(?m)^<!-- generated: (.+) -->\n(?:\|.*\n)*")
_BOUND = re.compile(r"`(\w+)`: (?:fp32 \S+, bf16 (measured, else )?[\de.-]+|[\d.]+ times)")
_SCREEN = re.compile(r"ratio screen [\d.]+ %")
_LINK = re.compile(r"\]\((?=\w+\.md)")  # to another page, as the declarations write it


def tables() -> dict[str, str]:
    """Return every table, as Markdown, by its name."""
    documents = keys_of(DocumentsConfig)
    modes = {mode: [documents[name] for name in KEYS_OF_MODE[mode]] for mode in ("distribution", "file")}
    plain = [axis for axis in axes().values() if not axis.path.startswith("options.")]
    by_name = {"top level": section_table(MatrixFile), "model": table(keys_of(ModelConfig).values())}
    by_name |= {
        part: table(keys_of(kind).values(), of=f"`{part}`", prefix=f"{part}.") for part, kind in MODEL_PARTS.items()
    }
    by_name |= {"train": table(keys_of(TrainConfig).values())}
    by_name |= {mode: table(keys) for mode, keys in modes.items()}
    by_name |= {"packing_options": table(keys_of(PackingOptions).values()), "axes": table(plain)}
    by_name |= {"launch": table(keys_of(Launch).values()), "bounds": _bounds()}
    by_name |= {"cluster": _cluster(), "layer": section_table(StackLayer)}
    by_name |= {"covering": section_table(CoveringSection)}
    by_name |= {"checks": section_table(ChecksSection, only=("canaries", "fingerprints"))}
    by_name |= {"throughput": section_table(ThroughputSection)}
    by_name |= {"segment_slope": section_table(SlopeSection, of="`segment_slope`")}
    by_name |= {"history": section_table(HistorySection, of="`history`")}
    by_name |= {"bound": table(keys_of(Override).values(), of="a bound"), "xfail": table(keys_of(XFail).values())}
    by_name |= {"may_reject": table(keys_of(MayReject).values())}
    return by_name | {"data_paths": _data_paths(), "recipes": _recipes(), "support": _support()}


def filled(page: str) -> str:
    """Return the page with the table after every `<!-- generated: name -->` regenerated.

    KeyError for an unknown name.
    """
    by_name = tables()
    return _MARK.sub(lambda mark: f"<!-- generated: {mark[1]} -->\n{by_name[mark[1]]}", page)


def with_bounds(page: str) -> str:
    """Return the page (docs/checks.md) with the defaults of the bounds that it states written again."""
    page = _BOUND.sub(lambda mark: f"`{mark[1]}`: {_default_bound(mark[1], mark[2] or '')}", page)
    return _SCREEN.sub(f"ratio screen {100 * DEFAULTS['fp32'].ratio_screen:g} %", page)


def _default_bound(name: str, measured: str) -> str:
    """Return the default of a bound. `measured`: what the page says of dtypes whose noise may be measured."""
    fp32, bf16 = (getattr(DEFAULTS[dtype], name) for dtype in ("fp32", "bf16"))
    if fp32.unit == "factor":
        return f"{fp32.value:g} times"
    return f"fp32 {_power(fp32.value)}, bf16 {measured}{_power(bf16.value)}"


def _power(value: float) -> str:
    """Return e.g. 5e-2."""
    mantissa, exponent = f"{value:e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def table(keys: Iterable[Key], of: str = "", prefix: str = "") -> str:
    """Return the Markdown table of declared keys. `of`: the part that they belong to; `prefix`: before each name."""
    rows = [[f"key of {of}" if of else "key", "value", "default", "meaning"], ["---"] * 4]
    for key in keys:
        names = [f"{prefix}{key.name}", *(name for name in key.setting.names if name != key.name)]
        text = key.setting.doc
        rows.append(["<br>".join(f"`{name}`" for name in names), _values(key), _default(key), text])
    return _markdown(rows)


def section_table(kind: type[Section], of: str = "", only: Collection[str] = ()) -> str:
    """Return the table of a section that is declared as a model; `only`: of these keys, if any are given."""
    rows = [[f"key of {of}" if of else "key", "value", "default", "meaning"], ["---"] * 4]
    for name, schema in kind.model_json_schema()["properties"].items():
        field = kind.model_fields[name]
        if not only or name in only:
            default = "required" if field.is_required() else _shown(field.get_default(call_default_factory=True))
            rows.append([f"`{name}`", _schema_values(schema), default, field.description or ""])
    return _markdown(rows)


def _schema_values(schema: Mapping[str, Any]) -> str:
    """Return the column `value` from a JSON Schema."""
    if "anyOf" in schema:
        return ", ".join(_schema_values(member) for member in schema["anyOf"] if member.get("type") != "null")
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    kind = schema.get("type", "object")  # a section is a reference
    if kind == "array":
        items = schema["items"]
        kinds = " or ".join(map(_schema_values, items.get("anyOf", [items])))
        return f"list of {kinds.replace('integer', 'integers').replace('mapping', 'mappings')}"
    if kind in ("integer", "number"):
        limits = Limits(ge=schema.get("minimum"), gt=schema.get("exclusiveMinimum"), le=schema.get("maximum"))
        return _number(kind, limits)
    return {"boolean": "true, false", "object": "mapping"}.get(kind, "text")


def _markdown(rows: Iterable[Iterable[str]]) -> str:
    """Return the table as docs/generated/keys.md has it: pages that it links are in the folder above."""
    lines = "".join(f"| {' | '.join(row)} |\n" for row in rows).replace(
        "| --- | --- | --- | --- |", "|---|---|---|---|"
    )
    return _LINK.sub("](../", lines)


def _data_paths() -> str:
    lines = [f"| `{path.name}` | {path.functions} | {path.releases} |\n" for path in DATA_PATHS.values()]
    return "| `packing` | code under test | from |\n|---|---|---|\n" + "".join(lines)


def _recipes() -> str:
    lines = [
        f"| `{name}` | {recipe.doc} | {', '.join(map(_matrix, recipe.matrices))} |\n"
        for name, recipe in RECIPES.items()
    ]
    return "| recipe | software | run by |\n|---|---|---|\n" + "".join(lines)


def _support() -> str:
    """Return the table of upstream projects with the releases, data paths and trainers that can be tested."""
    lines = "| | releases, besides your checkout | `packing` | `trainer` |\n|---|---|---|---|\n"
    for project in dict.fromkeys(project.title for project in PROJECTS.values()):
        prefix = _RELEASES.get(project, "")
        paths = [path for path in DATA_PATHS.values() if path.code.startswith(project)]
        trainers = [name for name in TRAINERS if any(name in path.trainers for path in paths)]
        releases = [name.removeprefix(prefix) for name in RECIPES if prefix and name.startswith(prefix)]
        columns = (
            project,
            ", ".join(releases) or "in your own [stack](docs/stacks.md)",
            ", ".join(f"`{path.name}`" for path in paths),
            ", ".join(f"`{name}`" for name in (HARNESS, *trainers)),
        )
        lines += f"| {' | '.join(columns)} |\n"
    return lines


def _matrix(name: str) -> str:
    return f"[{name}](../matrices/{name}.yaml)"


def _cluster() -> str:
    """Return the keys of a profile, those of its container after `container`."""
    inner = [replace(key, name=f"container.{name}") for name, key in keys_of(Container).items()]
    keys = keys_of(ClusterProfile).values()
    return table(row for key in keys for row in (key, *(inner if key.name == "container" else ())))


def _bounds() -> str:
    rows = [["key", *(f"default {dtype}" for dtype in DEFAULTS)]]
    lines = "".join(f"| {' | '.join(row)} |\n" for row in rows) + f"|{'---|' * (1 + len(DEFAULTS))}\n"
    for name in BOUND_NAMES:
        lines += (
            f"| `{name}` | {' | '.join(f'{getattr(defaults, name).value:g}' for defaults in DEFAULTS.values())} |\n"
        )
    screens = " | ".join(f"{defaults.ratio_screen:g}" for defaults in DEFAULTS.values())
    return f"{lines}| `{RATIO_SCREEN}` | {screens} |\n"


def _values(key: Key) -> str:
    """Return the column `value`: what a file may contain."""
    setting = key.setting
    if setting.values:
        return setting.values
    kinds = [part for part in union_of(key.type) if part is not type(None)]
    text = _kind(kinds[0], setting)
    if setting.auto:
        return f"{text}, `auto`" if kinds[0] is bool else f"{text} or `auto`"
    nullable = type(None) in union_of(key.type) and key.default is not None
    return f"{text}, null" if nullable else text


def _kind(kind: Any, limits: Limits) -> str:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _kind(parts[0], next((note for note in parts[1:] if isinstance(note, Limits)), limits))
    if limits.choices or origin is Literal:
        return ", ".join(f"`{name}`" for name in (limits.choices or parts))
    if origin is tuple:
        return _list(parts[0], limits)
    if is_dataclass(kind):
        return "mapping"
    return {int: _number("integer", limits), float: _number("number", limits), bool: "true, false"}.get(kind, "text")


def _list(member: Any, limits: Limits) -> str:
    most = f"at most {limits.max_length} " if limits.max_length else ""
    kind = get_args(member)[0] if get_origin(member) is Annotated else member
    return f"list of {most}integers" if kind is int else f"list of {_kind(member, Limits())}"


def _number(noun: str, limits: Limits) -> str:
    if limits.gt is not None:
        return f"{noun} > {limits.gt:g}" + (f", at most {_limit(limits.le)}" if limits.le is not None else "")
    if limits.ge is None or limits.le is None:
        return noun
    return f"{noun} {'from ' if noun == 'number' else ''}{_limit(limits.ge)} to {_limit(limits.le)}"


def _limit(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.15g}"


def _default(key: Key) -> str:
    setting, value = key.setting, key.default
    if setting.shown_default:
        return setting.shown_default
    if setting.required or value is MISSING:
        return "required"
    if setting.auto:
        return "`auto`"
    return "none" if setting.optional else _shown(value)


def _shown(value: Any) -> str:
    """Return a default as a file would give it; sections have tables of their own."""
    if is_dataclass(value) or isinstance(value, Section):
        return "defaults below"
    if value is None or value in ("", {}):
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, (list, tuple)):
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def stale(page: str) -> Mapping[str, str]:
    """Return the expected table, by its name, for every table on the page that is out of date."""
    by_name = tables()
    return {mark[1]: by_name[mark[1]] for mark in _MARK.finditer(page) if by_name[mark[1]] not in mark[0]}
