"""The reference pages keep up with the code: every key, default, alias and rule is there, and every example loads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel
from ruamel.yaml import YAML

from harness.plan.cluster import ClusterFile, ClusterProfile, ContainerSection
from harness.plan.model_section import MODEL_ALIASES, MlaSection, ModelSection, MoeSection, MtpSection
from harness.plan.projects import PROJECTS
from harness.plan.rules.attention import te_version_rule
from harness.plan.rules.cluster import nodes_rule
from harness.plan.rules.stack import container_rule
from harness.plan.rules.table import RULES, world_size_rule
from harness.plan.sections import (
    AXIS_ALIASES,
    TRAIN_ALIASES,
    AxisRow,
    DistributionDocuments,
    FileDocuments,
    LaunchSection,
    MatrixFile,
    TrainSection,
    XFailEntry,
)
from harness.plan.stacks import StackLayer
from harness.words.tolerances import BOUND_NAMES, DEFAULTS
from tests.plan.helpers import matrix_of


def rows_of(text: str) -> dict[str, list[str]]:
    """First name in the first cell -> the cells, of every table row."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")
    ]
    return {row[0].split("`")[1]: row for row in rows}


@pytest.mark.parametrize(
    "section",
    [MatrixFile, ModelSection, TrainSection, DistributionDocuments, FileDocuments, AxisRow, LaunchSection, XFailEntry],
)
def test_the_matrix_page_has_every_key_with_its_default(root: Path, section: type[BaseModel]) -> None:
    rows = rows_of((root / "docs" / "matrix.md").read_text())
    for name, item in section.model_fields.items():
        if name == "mode":
            continue
        row = rows[name]
        if section is MatrixFile or name == "packing":
            continue
        if item.is_required():
            assert row[2] == "required"
        elif isinstance(item.default, (bool, int, float)):
            text = str(item.default).lower() if isinstance(item.default, bool) else f"{item.default:g}"
            assert row[2] == f"`{text}`"


SECTIONS = {
    ModelSection: "",
    MoeSection: "moe.",
    MtpSection: "mtp.",
    MlaSection: "mla.",
    TrainSection: "",
    DistributionDocuments: "",
    AxisRow: "",
    LaunchSection: "",
}


def test_every_number_of_a_matrix_has_a_largest_value_and_the_page_says_it(root: Path) -> None:
    rows = rows_of((root / "docs" / "matrix.md").read_text())
    for section, prefix in SECTIONS.items():
        for name, item in section.model_json_schema()["properties"].items():
            for part in (item, *item.get("anyOf", ())):
                if part.get("type") in ("integer", "number"):
                    assert f" {int(part['maximum'])}" in rows[prefix + name][1], name


def test_the_stacks_page_has_every_key_with_its_default(root: Path) -> None:
    rows = rows_of((root / "docs" / "stacks.md").read_text())
    assert list(rows) == list(StackLayer.model_fields)
    assert all(row[2] == ("`false`" if name == "no_deps" else "none") for name, row in rows.items())
    assert all(f"`{project}`" in rows["package"][1] for project in PROJECTS)


def test_every_example_of_the_stacks_page_loads(root: Path) -> None:
    examples = re.findall(r"```yaml\n(.*?)```", (root / "docs" / "stacks.md").read_text(), flags=re.S)
    stacks = [matrix_of({"name": "t"} | YAML(typ="safe", pure=True).load(text)).stacks for text in examples]
    assert [list(found) for found in stacks] == [
        ["core171", "core192", "main"],
        ["skyrl_over_main"],
        ["tip", "without"],
    ]


def test_the_clusters_page_has_every_key_with_its_default(root: Path) -> None:
    rows = rows_of((root / "docs" / "clusters.md").read_text())
    for section, prefix in ((ClusterFile, ""), (ContainerSection, "container.")):
        for name, item in section.model_fields.items():
            row = rows[prefix + name]
            if item.is_required():
                assert row[2] == "required"
            elif isinstance(item.default, (bool, int, str)):
                assert row[2] == f"`{str(item.default).lower()}`"


def test_the_matrix_page_has_every_alias_beside_its_key(root: Path) -> None:
    rows = rows_of((root / "docs" / "matrix.md").read_text())
    for aliases in (AXIS_ALIASES, MODEL_ALIASES, TRAIN_ALIASES):
        for alias, name in aliases.items():
            assert f"`{alias}`" in rows[name][0]


def test_the_matrix_page_has_every_bound(root: Path) -> None:
    rows = rows_of((root / "docs" / "matrix.md").read_text())
    for name in BOUND_NAMES:
        assert rows[name][1:3] == [f"{getattr(DEFAULTS[dtype], name).value:g}" for dtype in ("fp32", "bf16")]


def test_every_example_of_the_matrix_page_loads(root: Path) -> None:
    examples = re.findall(r"```yaml\n(.*?)```", (root / "docs" / "matrix.md").read_text(), flags=re.S)
    assert len(examples) >= 8
    for text in examples:
        values = YAML(typ="safe", pure=True).load(text)
        if values.get("documents", {}).get("path"):
            values["documents"] = {"mode": "file", "lengths": [3]}
        matrix_of({"name": "t", "matrix": {"packing": "sft"}} | values)


def test_the_rules_page_has_every_rule_with_its_source_in_order(root: Path) -> None:
    rows = rows_of((root / "docs" / "rules.md").read_text())
    rules = (*RULES, world_size_rule(64), nodes_rule(ClusterProfile()), container_rule({}), te_version_rule({}))
    assert list(rows) == [rule.id for rule in rules]
    assert [row[2] for row in rows.values()] == [rule.source for rule in rules]
