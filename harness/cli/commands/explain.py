"""`harness explain`: what a rule, check, fault, key, recipe or term means, and why a cell ended so."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path

from harness.core.errors import InputError, Problem
from harness.core.outcomes import EXIT_PASS, Outcome
from harness.infra import screen
from harness.infra.screen import relative_path
from harness.inputs.reference import Entry
from harness.inputs.working_tree import working_tree
from harness.matrix.stacks.recipes import RECIPES, Recipe, recipe_layers, recipe_name

_STACKS_PAGE = "stacks.md"


def explain(word: str, run: str, run_parent: Path) -> int:
    """Print the documentation's entries of this name, or the cell of a run."""
    from harness.inputs.reference import reference

    entries = [*reference(), *stack_entries()]
    names = {word.lower(), recipe_name(word)}
    found = [entry for entry in entries if not names.isdisjoint(name.lower() for name in entry.names)]
    if found:
        texts = ("\n".join(screen.beside(head, said) for head, said in entry.rows) for entry in found)
        screen.out("\n\n".join(texts))
        return EXIT_PASS
    if cells := _cells(word, run, run_parent):
        screen.out("\n\n".join(cells))
        return EXIT_PASS
    near = difflib.get_close_matches(word, dict.fromkeys(entry.name for entry in entries), n=3)
    hint = f"did you mean {', '.join(near)}?" if near else None
    allowed = "a rule, check, failure class, fault, outcome, bug, key of a matrix, recipe or term, or a cell of a run"
    raise InputError(Problem(message=f"nothing is known of {word!r}", allowed=allowed, hint=hint))


def _cells(word: str, run: str, run_parent: Path) -> list[str]:
    """Return each cell of the run whose id or name begins with the word, or matches it as a pattern."""
    from fnmatch import fnmatchcase

    from harness.campaign.selection import find_run
    from harness.core.run.run_dir import LinkError, text_of
    from harness.reporting.render_json import read_report

    try:
        directory = find_run(run, run_parent)
        report = read_report(text_of(directory.root / "report.json"))
    except LinkError:
        raise
    except (InputError, OSError, ValueError):
        return []
    texts = []
    for cell in report.cells:
        if not (cell.id.startswith(word) or fnmatchcase(cell.id.rpartition("-")[0], word)):
            continue
        attempt = directory.attempt(cell.id, cell.attempts)
        said = [f"{cell.id}: {cell.outcome}" + (f", {cell.reason}" if cell.reason else "")]
        said += [f"  {finding.lane}, {finding.check}: {finding.message}" for finding in cell.findings]
        if cell.failure:
            said += [f"  {cell.failure.title}: {cell.failure.message}", f"  {cell.failure.advice}"]
        lines = [screen.wrapped(line) for line in said]  # not the commands below, which are to be copied
        if cell.outcome in (Outcome.PASS, Outcome.FLAKY):
            lines.append(f"  rests on {cell.evidence.text}")
        lines += [f"  compared with  {cell.evidence.reference}"] if cell.evidence.reference else []
        lines += [f"  control        {cell.control}"] if cell.control else []
        lines += [
            f"  configuration  {relative_path(attempt.config)}",
            f"  logs           harness logs {relative_path(directory.root)} {cell.id}",
            f"  run it again   {cell.reproduce}",
        ]
        texts.append("\n".join(lines))
    for rejected in report.rejected:
        if rejected.id.startswith(word) or fnmatchcase(rejected.id.rpartition("-")[0], word):
            reasons = rejected.rejections or []
            lines = [f"{rejected.id}: REJECTED"]
            lines += [screen.wrapped(f"  {one.rule}: {one.reason} (source: {one.source})") for one in reasons]
            texts.append("\n".join(lines))
    return texts


def stack_entries() -> list[Entry]:
    return [
        Entry(name=name, page=_STACKS_PAGE, section="Recipes", fields=tuple(_stack_fields(name, recipe)))
        for name, recipe in RECIPES.items()
    ]


def _stack_fields(name: str, recipe: Recipe) -> list[tuple[str, str]]:
    layers = [("layer", _layer_text(layer)) for layer in recipe_layers(name, working_tree)]
    run_by = [("run by", ", ".join(f"matrices/{matrix}.yaml" for matrix in recipe.matrices))]
    return [
        ("software", recipe.doc),
        *layers,
        *(run_by if recipe.matrices else []),
        ("use", f"matrix: {{stack: {name}}}"),
    ]


def _layer_text(layer: Mapping[str, object]) -> str:
    """As a matrix file would have it."""
    return f"{{{', '.join(f'{key}: {_layer_value(value)}' for key, value in layer.items())}}}"


def _layer_value(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(value)}]"
    if isinstance(value, Mapping):
        return _layer_text(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
