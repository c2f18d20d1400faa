"""ARCHITECTURE.md is enforced: the rules are read from the tables of the page, so the page stays true."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.architecture import (
    NODE_SIDE,
    Tables,
    import_cycles,
    imports,
    may_import,
    read_tables,
    violations,
)


@pytest.fixture(scope="module")
def tables(root: Path) -> Tables:
    return read_tables((root / "ARCHITECTURE.md").read_text(encoding="utf-8"))


def test_the_layer_table_names_every_folder_of_the_package(root: Path, tables: Tables) -> None:
    folders = {f"harness/{path.name}" for path in (root / "harness").iterdir() if (path / "__init__.py").is_file()}
    assert set(tables.layers) == folders


def test_the_layer_table_names_every_package_of_a_layer(root: Path) -> None:
    page = (root / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for layer in sorted(path for path in (root / "harness").iterdir() if (path / "__init__.py").is_file()):
        (row,) = (line for line in page.splitlines() if line.startswith(f"| {layer.name} |"))
        packages = {path.name for path in layer.iterdir() if (path / "__init__.py").is_file()}
        assert packages == set(re.findall(r"`(\w+)/`", row)), f"row {layer.name} of the layer table"


def test_no_module_imports_itself_through_others(root: Path) -> None:
    assert import_cycles(root) == []


def test_no_layer_may_import_single_files_of_another(tables: Tables) -> None:
    names = {folder.removeprefix("harness/") for folder in tables.layers} | {"all", "nothing inside"}
    allowed = {part.strip() for cell in tables.layers.values() for part in cell.split(",")}
    assert allowed <= names


def test_no_file_imports_what_the_tables_forbid(root: Path, tables: Tables) -> None:
    assert violations(root, tables) == []


def test_every_package_is_imported_where_the_table_says(root: Path, tables: Tables) -> None:
    named = [(package, home) for package, homes in tables.packages.items() for home in homes]
    for package, home in named:
        files = [root / home] if home.endswith(".py") else sorted((root / home).rglob("*.py"))
        used = {
            name.split(".")[0]
            for file in files
            for _, name in imports(ast.parse(file.read_text(encoding="utf-8")), home)
        }
        assert package in used, f"ARCHITECTURE.md says that {home} imports {package}; it does not"


def test_node_side_files_parse_as_python_3_10(root: Path) -> None:
    for file in sorted((root / "harness").rglob("*.py")):
        if file.relative_to(root).as_posix().startswith(NODE_SIDE):
            ast.parse(file.read_text(encoding="utf-8"), filename=str(file), feature_version=(3, 10))


def test_every_path_that_the_page_names_exists(root: Path) -> None:
    text = (root / "ARCHITECTURE.md").read_text(encoding="utf-8")
    pattern = r"(?<![\w/])(?:harness|docs|tests|matrices|scripts|sbatch_templates|benchmarks)/[\w./-]*[\w/]"
    named = set(re.findall(pattern, text))
    assert len(named) > 10
    assert sorted(name for name in named if not (root / name).exists()) == []


PAGE = """
| layer | folder | holds | may import |
|---|---|---|---|
| core | harness/core | x | nothing inside |
| plan | harness/plan | x | core |
| judge | harness/judge | x | core |
| infra | harness/infra | x | core, plan, judge |
| oracle | harness/oracle | x | core |
| node | harness/node | x | core, oracle |
| app | harness/app | x | all |

| package | only in | for |
|---|---|---|
| torch | harness/node, harness/oracle | tensors |
| megatron | harness/node | training |
| rich | harness/infra/console.py | tables |
| pydantic | harness/plan | the schema |
"""


@pytest.mark.parametrize(
    ("path", "source", "said"),
    [
        ("harness/core/cell/layout.py", "from harness.plan import rules", "imports harness/plan/rules.py"),
        ("harness/plan/rules.py", "import harness.judge.checks", "imports harness/judge/checks.py"),
        ("harness/judge/checks.py", "from harness.infra.console import show", "imports harness/infra/console.py"),
        ("harness/judge/checks.py", "from ..infra import console", "imports harness/infra/console.py"),
        ("harness/infra/console.py", "from harness.app import cli", "imports harness/app/cli.py"),
        ("harness/infra/console.py", "def f():\n    import torch", "which only harness/node and harness/oracle may"),
        ("harness/oracle/model.py", "import megatron.core", "imports megatron, which only harness/node may"),
        ("harness/oracle/model.py", "from harness.node import agent", "imports harness/node/agent.py"),
        ("harness/app/cli.py", "import rich.table", "imports rich, which only harness/infra/console.py may"),
        ("harness/core/run/run_dir.py", "import pydantic", "imports pydantic, which only harness/plan may"),
        ("harness/app/cli.py", "import yaml", "imports yaml, which the package table does not name"),
        ("harness/app/cli.py", "import importlib\nimportlib.import_module('torch.cuda')", "imports torch"),
        ("harness/node/agent.py", "from harness.infra import console", "imports harness/infra/console.py"),
        ("harness/node/agent.py", "import tomllib", "which a rank's environment need not have"),
        ("harness/plan/rules.py", "import subprocess", "imports subprocess, but plan and judge are pure"),
        ("harness/judge/checks.py", "from datetime import date\nx = date.today()", "calls today()"),
    ],
)
def test_a_forbidden_import_is_named_with_file_and_line(tmp_path: Path, path: str, source: str, said: str) -> None:
    clean_tree(tmp_path)
    (tmp_path / path).write_text(source + "\n")
    found = violations(tmp_path, read_tables(PAGE))
    assert found
    assert found[0].startswith(f"{path}:{len(source.splitlines())}: ")
    assert said in found[0]


def test_a_clean_tree_has_no_violation(tmp_path: Path) -> None:
    clean_tree(tmp_path)
    assert violations(tmp_path, read_tables(PAGE)) == []
    assert import_cycles(tmp_path) == []


def test_a_table_entry_decides(tmp_path: Path) -> None:
    clean_tree(tmp_path)
    stricter = read_tables(PAGE.replace("core, plan, judge", "core"))
    assert violations(tmp_path, stricter) == [
        "harness/infra/console.py:2: imports harness/plan/rules.py, which its layer may not"
    ]
    assert not may_import(stricter.layers, "harness/infra/console.py", "harness/judge/checks.py")


def test_an_import_cycle_is_named_also_when_one_import_is_in_a_function(tmp_path: Path) -> None:
    clean_tree(tmp_path)
    (tmp_path / "harness/plan/rules.py").write_text("from harness.plan import expand\n")
    (tmp_path / "harness/plan/expand.py").write_text("def f():\n    from harness.plan.rules import table\n")
    assert import_cycles(tmp_path) == [
        "harness/plan/expand.py imports harness/plan/rules.py",
        "harness/plan/rules.py imports harness/plan/expand.py",
    ]


def clean_tree(root: Path) -> None:
    """One file per layer, each with the imports that PAGE allows."""
    sources = {
        "harness/core/cell/layout.py": "import math",
        "harness/plan/rules.py": "import pydantic\nfrom harness.core.cell.layout import Layout",
        "harness/judge/checks.py": "from harness.core.cell import layout",
        "harness/infra/console.py": "import rich\nfrom harness.plan import rules",
        "harness/core/run/run_dir.py": "import os\nfrom harness.core.cell.layout import Layout",
        "harness/oracle/model.py": "import torch\nfrom harness.core.cell import layout",
        "harness/node/agent.py": "import torch\nfrom harness.core.run import run_dir\nfrom harness.core import cell",
        "harness/app/cli.py": "import harness\nfrom harness.infra import console",
    }
    for path, source in sources.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(source + "\n")
