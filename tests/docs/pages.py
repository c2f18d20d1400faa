"""Finds errors of a page: in its YAML blocks, links, anchors, file paths and targets of make."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML, YAMLError

from harness.cli.cli import main
from harness.core.errors import InputError
from harness.inputs.cluster_file import read_profile

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_PATH = re.compile(r"`(?:[\w-]+/)+[\w.-]+\.(?:py|sh|yaml|yml|toml|j2|md)`")
_MAKE = re.compile(r"(?:^ {4}|^|`)make ([a-z-]+)", re.MULTILINE)
_FOLDERS = ("harness", "tests", "docs", "matrices", "benchmarks", "scripts", "sbatch_templates", "reports")
_MADE_BY_USERS = ("matrices/clusters/my-cluster.yaml", "matrices/newest.yaml")  # the pages say how
_REQUIRED = {"name": "name: page\n", "matrix": "matrix: {packing: sft}\n"}  # added to a block that is part of a matrix


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    where: str  # page:line
    language: str
    text: str


def blocks_of(page: str, text: str) -> Iterator[Block]:
    for found in _BLOCK.finditer(text):
        yield Block(f"{page}:{text.count(chr(10), 0, found.start()) + 1}", found[1], found[2])


def yaml_problem(block: Block, folder: Path, *, whole: bool = False) -> str | None:
    """Why the loader of matrices, or of cluster profiles, refuses a block; None if it accepts it.

    `whole`: the block must be a complete matrix that `harness plan` accepts; otherwise missing keys are added first.
    """
    try:
        values = YAML(typ="safe", pure=True).load(block.text)
    except YAMLError as error:
        return f"{block.where}: {error}"
    file = folder / "block.yaml"
    if "kind" in values:
        file.write_text(block.text, encoding="utf-8")
        try:
            read_profile(file)
        except InputError as error:
            return f"{block.where}: {error}"
        return None
    added = "" if whole else "".join(line for key, line in _REQUIRED.items() if key not in values)
    file.write_text(added + block.text, encoding="utf-8")
    (folder / "lengths.csv").write_text("3\n5\n", encoding="utf-8")
    code = main(["plan" if whole else "verify", str(file)])
    return f"{block.where}: exit code {code}" if code else None


def anchors_of(text: str) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    anchors = set()
    for heading in _HEADING.findall(re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        anchors.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return anchors


def link_problems(root: Path, page: Path) -> list[str]:
    """One message per link to a file or heading that does not exist."""
    wrong = []
    for link in _LINK.findall(page.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        if "://" in link or link.startswith("mailto:"):
            continue
        target = page.parent / name if name else page
        if not target.exists():
            wrong.append(f"{page.relative_to(root)}: {link}: no such file")
        elif anchor and anchor not in anchors_of(target.read_text(encoding="utf-8")):
            wrong.append(f"{page.relative_to(root)}: {link}: no such heading")
    return wrong


def path_problems(root: Path, page: Path) -> list[str]:
    """One message per file of the project in a code span, or target of `make`, that does not exist."""
    text = page.read_text(encoding="utf-8")
    paths = [found.strip("`") for found in _PATH.findall(text)]
    wrong = [
        f"{page.relative_to(root)}: {path}: no such file"
        for path in paths
        if path.split("/")[0] in _FOLDERS and path not in _MADE_BY_USERS and not (root / path).exists()
    ]
    targets = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    return wrong + [
        f"{page.relative_to(root)}: make {target}: no such target"
        for target in _MAKE.findall(text)
        if target not in targets
    ]
