"""Pages are correct: YAML blocks load; links, anchors, files and make targets exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.upstreams.table import DATA_PATHS
from tests.docs.pages import Block, anchors_of, blocks_of, link_problems, path_problems, yaml_problem

ROOT = Path(__file__).resolve().parents[2]
DOCS = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "generated").glob("*.md")])
PAGES = [*(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "reports/README.md")), *DOCS]
BLOCKS = [
    block
    for page in PAGES
    for block in blocks_of(page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8"))
    if block.language == "yaml"
]
RECIPES = [block for block in BLOCKS if block.where.startswith("docs/data_paths.md")]

each_block = pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.where)
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


@each_block
def test_a_yaml_block_is_accepted_by_the_loader(
    block: Block, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = yaml_problem(block, tmp_path)
    assert problem is None, f"{problem}\n{capsys.readouterr().err}"


@pytest.mark.parametrize("block", RECIPES, ids=lambda block: block.where)
def test_a_recipe_is_a_whole_matrix_without_a_rejected_cell(
    block: Block, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = yaml_problem(block, tmp_path, whole=True)
    said = capsys.readouterr()
    assert problem is None, f"{problem}\n{said.err}"
    assert " 0 rejected" in said.out


def test_every_data_path_has_a_recipe() -> None:
    named = re.findall(r"packing: \[?(.*?)\]?\n", "".join(block.text for block in RECIPES))
    assert set(", ".join(named).split(", ")) == set(DATA_PATHS)


@each_page
def test_links_and_anchors_exist(page: Path) -> None:
    assert link_problems(ROOT, page) == []


@each_page
def test_files_and_make_targets_of_a_page_exist(page: Path) -> None:
    assert path_problems(ROOT, page) == []


def test_every_path_of_the_architecture_page_exists() -> None:
    """Its tables give paths without backticks."""
    folders = "harness|docs|tests|matrices|scripts|sbatch_templates|benchmarks"
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    paths = set(re.findall(rf"(?<![\w/])(?:{folders})/[\w./-]*[\w/]", text))
    assert len(paths) > 10
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []


def test_the_index_links_every_page_and_the_readme_links_the_index() -> None:
    docs = ROOT / "docs"
    index = docs / "README.md"
    text = index.read_text(encoding="utf-8")
    assert [page for page in DOCS if page != index and f"({page.relative_to(docs).as_posix()})" not in text] == []
    assert "(docs/README.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_has_the_figures_of_the_scoreboard() -> None:
    readme, board = (
        (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/generated/scoreboard.md")
    )
    shown = re.findall(
        r"\[(\d+) bugs\].*?(\d+) of them unknown.*?with no false alarm in (\d+) clean", readme, re.DOTALL
    )
    bugs = re.findall(r"\*\*(\d+) distinct bugs", board)
    unknown = re.findall(r"\| Not known before \| (\d+) \|", board)
    clean = re.findall(r"\*\*0 false alarms in (\d+) clean", board)
    assert shown == [(*bugs, *unknown, *clean)]


def test_the_glossary_defines_each_term_once_and_is_linked() -> None:
    lines = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| **")]
    terms = [term for row in rows for term in re.findall(r"\*\*(.+?)\*\*", row[0])]
    assert sorted(terms) == sorted(set(terms))
    assert [row[0] for row in rows if not row[1].rstrip(" |").endswith(".")] == []
    others = [page for page in PAGES if page.name != "glossary.md"]
    assert sum("glossary.md" in page.read_text(encoding="utf-8") for page in others) >= 5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("train: {stepps: 3}\n", "train.stepps: unknown key"),
        ("matrix: {packing: sfd}\n", "sfd"),
        ("matrix: {packing: sft, tp: [3], stack: gone}\n", "gone"),
        ("name: c\nkind: slurm\npartitian: main\n", "partitian"),
        ("a: [1\n", "page.md:1"),
    ],
)
def test_a_broken_block_is_found(text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks_of("page.md", f"```yaml\n{text}```\n")
    problem = yaml_problem(block, tmp_path)
    assert problem is not None
    assert said in problem + capsys.readouterr().err


def test_a_part_of_a_matrix_is_no_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert yaml_problem(Block("page.md:1", "yaml", "matrix: {packing: sft}\n"), tmp_path, whole=True) is not None
    assert "name" in capsys.readouterr().err


def test_a_dead_link_anchor_path_and_target_are_found(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("smoke: setup\n")
    (tmp_path / "other.md").write_text("# One `thing`: and two\n\n```sh\n# no heading\n```\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n[a](other.md#one-thing-and-two) [b](other.md#no-heading) [c](gone.md) [d](#page) [e](#gone)\n"
        "`harness/gone.py` `made/up.py`\n\n    make smoke\n    make smok\n"
    )
    assert anchors_of((tmp_path / "other.md").read_text()) == {"one-thing-and-two"}
    assert link_problems(tmp_path, page) == [
        "page.md: other.md#no-heading: no such heading",
        "page.md: gone.md: no such file",
        "page.md: #gone: no such heading",
    ]
    assert path_problems(tmp_path, page) == [
        "page.md: harness/gone.py: no such file",
        "page.md: make smok: no such target",
    ]
