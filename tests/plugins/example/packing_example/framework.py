"""A project and its data path, for the launcher and for ranks. Imports nothing but harness.core and harness.upstreams.

The project is a framework that packs and has a loss of its own; tests/plugins/framework has its code.
"""

from __future__ import annotations

import sys
from pathlib import Path

from harness.core.cell.layout import Layout
from harness.core.packing.options import PackingOptions
from harness.core.packing.packers import PackingStyle
from harness.upstreams.descriptor import LAYOUT, DataPath
from harness.upstreams.project import Project


def _style(layout: Layout, seq_length: int, options: PackingOptions) -> PackingStyle:
    multiple = LAYOUT.multiple(layout)
    return PackingStyle(packed=True, document_multiple=multiple, row_length=None, real_lengths=True)


FRAMEWORK = DataPath(
    name="framework",
    code="example-framework",
    functions="example_framework.losses.loss_func",
    releases="checkouts of example-framework",
    style=_style,
    alignment=LAYOUT,
    counts_work=True,
)
PROJECT = Project(
    name="example-framework",
    title="Example-Framework",
    distribution="example-framework",
    url="https://github.com/example/framework",
    repositories=("framework",),
    modules=("example_framework",),
    folders=("src",),
    # Another project pins packages: {"packages": ["megatron-core==0.19.2"]}.
    runs_on=({"python": sys.executable},),
    data_path=FRAMEWORK.name,
    documents="uncut",
    gate=str(Path(__file__).with_name("gate.yaml")),
)
