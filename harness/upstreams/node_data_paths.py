"""The adapter of each data path, by its name, as its descriptor says; plug-ins add theirs."""

from __future__ import annotations

from pkgutil import resolve_name

from harness.upstreams.node_base import Adapter
from harness.upstreams.table import DATA_PATHS

ADAPTERS: dict[str, type[Adapter]] = {
    path.name: resolve_name(path.adapter) for path in DATA_PATHS.values() if path.adapter
}
