"""`harness list stacks`, and the recipes as `harness explain` shows them."""

from __future__ import annotations

import json
from collections.abc import Mapping

from harness.core.outcomes import EXIT_PASS
from harness.infra import screen
from harness.infra.git import working_tree
from harness.infra.inputs.reference import Entry
from harness.plan.stacks.recipes import RECIPES, Recipe, recipe_layers

_PAGE = "stacks.md"


def list_stacks(*, as_json: bool) -> int:
    """Print the name of each recipe and what software it is."""
    if as_json:
        found = [
            {
                "name": name,
                "software": recipe.doc,
                "layers": recipe_layers(name, working_tree),
                "matrices": recipe.matrices,
            }
            for name, recipe in RECIPES.items()
        ]
        screen.json_data(json.dumps(found, indent=2) + "\n")
        return EXIT_PASS
    width = max(map(len, RECIPES))
    for name, recipe in RECIPES.items():
        screen.out(screen.beside(f"{name:<{width}}  ", recipe.doc))
    return EXIT_PASS


def stack_entries() -> list[Entry]:
    return [
        Entry(name=name, page=_PAGE, section="Recipes", fields=tuple(_fields(name, recipe)))
        for name, recipe in RECIPES.items()
    ]


def _fields(name: str, recipe: Recipe) -> list[tuple[str, str]]:
    layers = [("layer", _layer(layer)) for layer in recipe_layers(name, working_tree)]
    run_by = [("run by", ", ".join(f"matrices/{matrix}.yaml" for matrix in recipe.matrices))]
    return [
        ("software", recipe.doc),
        *layers,
        *(run_by if recipe.matrices else []),
        ("use", f"matrix: {{stack: {name}}}"),
    ]


def _layer(layer: Mapping[str, object]) -> str:
    """As a matrix file would have it."""
    return f"{{{', '.join(f'{key}: {_value(value)}' for key, value in layer.items())}}}"


def _value(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(value)}]"
    if isinstance(value, Mapping):
        return _layer(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
