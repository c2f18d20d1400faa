"""Reads ARCHITECTURE.md's tables and the imports of a source tree, and names every import that the tables forbid."""

from __future__ import annotations

import ast
import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Layers that a rank's process imports; they must run inside foreign containers with Python 3.10.
NODE_SIDE = ("harness/core/", "harness/node/", "harness/oracle/")
NODE_PACKAGES = {
    "pynvml",
    "torch",
    "numpy",
    "megatron",
    "transformer_engine",
    "transformer_engine_torch",
    "triton",
    "pretrain_gpt",
    "pretrain_hybrid",
    "datasets",
    "tokenizers",
    "transformers",
    "nemo_rl",
    "skyrl",
    "train_rl",
    "verl",
}
NEWER_THAN_PYTHON_310 = {"tomllib"}

# plan and judge are pure: values in, values out.
PURE = ("harness/plan/", "harness/judge/")
IMPURE_MODULES = {"os", "subprocess", "shutil", "socket", "tempfile", "threading", "multiprocessing", "time", "signal"}
IMPURE_CALLS = {"open", "print", "now", "utcnow", "today", "read_text", "write_text", "read_bytes", "write_bytes"}


@dataclass(frozen=True)
class Tables:
    layers: dict[str, str]  # folder -> what it may import, as written
    packages: dict[str, list[str]]  # package outside the standard library -> files and folders that may import it


def read_tables(text: str) -> Tables:
    """The tables of ARCHITECTURE.md whose first column is headed `layer` and `package`."""
    layers = {row[1]: row[3] for row in _rows(text, "layer")}
    rows = _rows(text, "package")
    packages = {name.strip(): row[1].split(", ") for row in rows for name in row[0].split(",")}
    return Tables(layers, packages)


def _rows(text: str, heading: str) -> list[list[str]]:
    """Cells of the rows of one Markdown table, without its heading and its rule."""
    lines = text.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    body = itertools.takewhile(lambda line: line.startswith("|"), lines[start + 2 :])
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in body]


def imports(tree: ast.AST, path: str) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything that a file imports, also by name at run time. `from a import b` gives a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = Path(path).parts[: -node.level] if node.level else ()
            base = ".".join([*package, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def may_import(layers: dict[str, str], path: str, target: str) -> bool:
    """Whether the file `path` may import the module file or folder `target` of harness."""
    own = next((folder for folder in layers if path.startswith(folder + "/")), None)
    if own is None:  # harness/__init__.py and harness/__main__.py
        return target.startswith("harness/app/")
    allowed = {part.strip() for part in layers[own].split(",")}
    names = {folder.removeprefix("harness/"): folder for folder in layers}
    if "all" in allowed or target.startswith(own + "/"):
        return True
    return any(target == part or target.startswith(names.get(part, "?") + "/") for part in allowed)


def violations(root: Path, tables: Tables) -> list[str]:
    """Every breach of the tables in the tree `root`/harness, as `file:line: what`."""
    found: list[str] = []
    for file in sorted((root / "harness").rglob("*.py")):
        path = file.relative_to(root).as_posix()
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for line, name in imports(tree, path):
            found += [f"{path}:{line}: {what}" for what in _wrong_import(root, tables, path, name)]
        found += [f"{path}:{line}: {what}" for line, what in _impure_calls(tree, path)]
    return found


def _wrong_import(root: Path, tables: Tables, path: str, name: str) -> Iterator[str]:
    top = name.split(".")[0]
    if top == "harness":
        target = _module_file(root, name)
        if target is not None and not may_import(tables.layers, path, target):
            yield f"imports {target}, which its layer may not"
        return
    homes = tables.packages.get(top)
    if homes is not None and not any(path == home or path.startswith(home + "/") for home in homes):
        yield f"imports {top}, which only {' and '.join(homes)} may"
    elif homes is None and top not in sys.stdlib_module_names:
        yield f"imports {top}, which the package table does not name"
    if path.startswith(NODE_SIDE) and top not in (sys.stdlib_module_names - NEWER_THAN_PYTHON_310) | NODE_PACKAGES:
        yield f"imports {top}, which a rank's environment need not have"
    if path.startswith(PURE) and top in IMPURE_MODULES:
        yield f"imports {top}, but plan and judge are pure"


def _module_file(root: Path, name: str) -> str | None:
    """File of the longest prefix of a dotted name that is a module; None for the package harness itself."""
    parts = name.split(".")
    for end in range(len(parts), 1, -1):
        path = "/".join(parts[:end])
        if (root / f"{path}.py").is_file():
            return f"{path}.py"
        if (root / path).is_dir():
            return f"{path}/__init__.py"
    return None


def _impure_calls(tree: ast.AST, path: str) -> Iterator[tuple[int, str]]:
    if not path.startswith(PURE):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in IMPURE_CALLS:
                yield node.lineno, f"calls {name}(), but plan and judge are pure"


def import_cycles(root: Path) -> list[str]:
    """Modules of harness that import each other, directly or through others; imports in functions count too."""
    graph: dict[str, set[str]] = {}
    for file in sorted((root / "harness").rglob("*.py")):
        path = file.relative_to(root).as_posix()
        names = imports(ast.parse(file.read_text(encoding="utf-8")), path)
        found = {_module_file(root, name) for _, name in names if name.split(".")[0] == "harness"}
        graph[path] = {target for target in found if target is not None and target != path}
    loose = dict(graph)  # modules outside cycles are removed from both ends until nothing changes
    while True:
        imported = set().union(*loose.values()) if loose else set()
        kept = {path: targets & loose.keys() for path, targets in loose.items() if path in imported}
        kept = {path: targets for path, targets in kept.items() if targets}
        if kept == loose:
            return [f"{path} imports {', '.join(sorted(targets))}" for path, targets in kept.items()]
        loose = kept
