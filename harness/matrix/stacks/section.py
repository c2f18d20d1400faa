"""The `stacks:` section: layers of software under test, checked and merged into one Stack each. Pure.

A stack is one layer or a list of layers, the top layer first; a recipe's name stands for its layers. It has at most one
kind of base: packages (an environment is built from them), an interpreter (an existing environment) or a container.
Any number of checkouts go on top of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from harness.core.secrets import NAMES, holds_secret, is_secret_name
from harness.core.stack import DEFAULT, SAFE_NAME, Checkout, Stack
from harness.matrix.problems import KeyPath, Problems, shown
from harness.matrix.schema.section import Section, among
from harness.matrix.stacks.recipes import RECIPES, UNDECLARED, TreeOf, layers_named
from harness.upstreams.table import PROJECTS

PYTHONS = ("3.12", "3.13", "3.11", "3.10")  # in order of preference
_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(\[[\w., -]*\])?\s*(@\s*\S+|[<>=!~][^@;]*)?\s*(;.*)?"
)
_INHERITED = "set it where the harness starts: agents on this machine inherit it; on a cluster see docs/security.md"
_KEPT_BY_GIT = "leave them out; git's credential helper or ~/.netrc supplies them"
PathOf = Callable[[str], str]


def _requirement(value: str) -> str:
    if not _REQUIREMENT.fullmatch(value):
        raise ValueError("must be a requirement like megatron-core==0.17.1")
    return value


def _variable(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
        raise ValueError("must be the name of an environment variable")
    return value


def _ref(value: str) -> str:
    if value.startswith("-") or not value.isprintable():
        raise ValueError("must not begin with '-' or contain control characters")
    return value


def _repository(value: str) -> str:
    if re.match(r"[A-Za-z0-9.+-]+::", value):
        raise ValueError("names a git helper program, which git would run; allowed: a path, a URL or host:path")
    if value.startswith("-") or not value.isprintable():
        raise ValueError("must be a path, a URL or host:path; it must not begin with '-' or contain control characters")
    return value


Requirement = Annotated[str, Field(max_length=500), AfterValidator(_requirement)]
Variable = Annotated[str, AfterValidator(_variable)]
Text = Annotated[str, Field(min_length=1)]
Repository = Annotated[str, Field(min_length=1), AfterValidator(_repository)]
Ref = Annotated[str, Field(min_length=1), AfterValidator(_ref)]
RecipeName = Annotated[str, Field(json_schema_extra={"anyOf": [{"enum": [*RECIPES]}, {"pattern": "=="}]})]
ProjectName = Annotated[str, among(PROJECTS), Field(json_schema_extra=lambda schema: schema.update(enum=[*PROJECTS]))]


class StackLayer(Section):
    """One layer of a stack: packages, a checkout, an interpreter or a container."""

    packages: Annotated[list[Requirement], Field(min_length=1)] | None = Field(
        default=None, description="Requirements; uv builds an environment of them, once."
    )
    no_deps: bool = Field(default=False, description="Install these packages without their dependencies.")
    python: Text | None = Field(
        default=None,
        description='With `packages`: a version, quoted: `"3.12"`. Alone: the interpreter of an existing '
        "environment; nothing is installed into it.",
    )
    checkout: Repository | None = Field(
        default=None,
        description="A git repository: a path relative to the matrix file, or a URL. "
        "Goes first on the module search path.",
    )
    ref: Ref | None = Field(
        default=None,
        description="Commit, tag or branch of the checkout; if omitted, the repository's own working tree, as it is.",
    )
    revert: Annotated[list[Ref], Field(min_length=1)] | None = Field(
        default=None, description="Commits that are reverted there, in this order."
    )
    setup: Text | None = Field(
        default=None,
        description="Shell command that is run once in the checkout's worktree, with the stack's Python first on PATH, "
        "e.g. to build an extension; it must not change files of the commit.",
    )
    package: ProjectName | None = Field(default=None, description="Project in the checkout; required with `checkout`.")
    container: Text | None = Field(default=None, description="Image that jobs run in, on a cluster only.")
    env: dict[Variable, str] = Field(
        default_factory=dict, description="Environment variables of the agents; those of an upper layer win."
    )


def parse_stacks(section: Any, problems: Problems, path_of: PathOf, tree_of: TreeOf) -> dict[str, Stack]:
    """Return the stacks by name; everything wrong is added to `problems`.

    `path_of` makes a path in the file absolute; `tree_of` finds the checkout of the recipe `working-tree`.
    """
    path: KeyPath = ("stacks",)
    if not isinstance(section, Mapping):
        problems.add(path, "must be a mapping of names to definitions", found=shown(section))
        return {}
    stacks: dict[str, Stack] = {}
    for name, definition in section.items():
        where = (*path, str(name))
        if not isinstance(name, str) or not re.fullmatch(SAFE_NAME, name):
            problems.add(where, "a name has at most 64 letters, digits, '.', '_' and '-'", hint="quote a number")
        elif name == DEFAULT:
            problems.add(where, "is reserved for the environment of the harness itself", hint="choose another name")
        else:
            stacks |= _stack(name, definition, where, problems, path_of, tree_of)
    return stacks


def recipe_stack(name: str, problems: Problems, path_of: PathOf, tree_of: TreeOf) -> dict[str, Stack]:
    """Return the stack of a recipe by its name."""
    return _stack(name, name, ("matrix", "stack"), problems, path_of, tree_of)


def _stack(
    name: str, definition: Any, where: KeyPath, problems: Problems, path_of: PathOf, tree_of: TreeOf
) -> dict[str, Stack]:
    """Return the stack by its name; nothing, after adding problems, if a layer is wrong."""
    layers = _layers(definition, where, problems, tree_of)
    return {name: _merged(name, layers, where, problems, path_of)} if layers else {}


def _layers(definition: Any, where: KeyPath, problems: Problems, tree_of: TreeOf) -> list[tuple[KeyPath, StackLayer]]:
    """Return the checked layers of a definition with recipes expanded; none if one is wrong."""
    listed = isinstance(definition, list)
    items = definition if listed else [definition]
    if not items:
        problems.add(where, "an empty list is not a stack", hint="give at least one layer")
    layers, sound = [], True
    for number, layer_as_written in enumerate(items):
        at = (*where, number) if listed else where
        for values in (
            layers_named(layer_as_written, at, problems, tree_of)
            if isinstance(layer_as_written, str)
            else [layer_as_written]
        ):
            layer = problems.validate(StackLayer, values, at) if values is not None else None
            sound = sound and layer is not None and _is_sound(layer, at, problems)
            layers += [(at, layer)] if layer is not None else []
    return layers if sound else []


def _is_sound(layer: StackLayer, at: KeyPath, problems: Problems) -> bool:
    """Return whether the keys of a layer fit together; contradictions are added to `problems`."""
    before = len(problems.found)
    kinds = [name for name in ("packages", "checkout", "container") if getattr(layer, name) is not None]
    kinds += ["python"] if layer.python is not None and layer.packages is None else []
    if not kinds:
        problems.add(at, "names no software", hint="give packages, checkout, python or container")
    elif len(kinds) > 1:
        problems.add(at, f"{' and '.join(kinds)} cannot be in one layer", hint="write a list, the top layer first")
    if layer.checkout is not None:
        if layer.package is None:
            problems.add((*at, "package"), "is required with checkout", allowed=", ".join(PROJECTS))
        if layer.ref is None and is_url(layer.checkout):
            problems.add((*at, "ref"), "is required with a URL", allowed="a commit, tag or branch")
        for key in ("revert", "setup"):
            if layer.ref is None and getattr(layer, key) is not None:
                problems.add((*at, key), "is allowed only with ref", hint="a working tree is used as it is")
    else:
        for key in ("ref", "revert", "setup", "package"):
            if getattr(layer, key) is not None:
                problems.add((*at, key), "is allowed only with checkout")
    if layer.no_deps and layer.packages is None:
        problems.add((*at, "no_deps"), "is allowed only with packages")
    _check_secrets(layer, at, problems)
    _check_python(layer, (*at, "python"), problems)
    return len(problems.found) == before


def _check_secrets(layer: StackLayer, at: KeyPath, problems: Problems) -> None:
    """Add a problem for every secret: others can read run directories and job files, which hold the definition."""
    for name, value in layer.env.items():
        if is_secret_name(name):
            problems.add(
                (*at, "env", name), f"names a secret ({NAMES}); others can read run directories", hint=_INHERITED
            )
        elif holds_secret(value) or holds_secret(f"{name}={value}"):
            problems.add((*at, "env", name), "holds a secret; others can read run directories", hint=_INHERITED)
        elif not value.isprintable():
            problems.add((*at, "env", name), "must be one line of text, without control characters")
    for key in ("checkout", "ref", "setup", "python", "container", "packages"):
        value_of_key = getattr(layer, key)
        if any(map(holds_secret, [value_of_key] if isinstance(value_of_key, str) else value_of_key or ())):
            problems.add((*at, key), "holds credentials; others can read run directories", hint=_KEPT_BY_GIT)


def _check_python(layer: StackLayer, at: KeyPath, problems: Problems) -> None:
    if layer.python is None:
        return
    if layer.packages is not None and layer.python not in PYTHONS:
        problems.add(
            at,
            "must be a version of Python when packages are given",
            found=repr(layer.python),
            allowed=", ".join(sorted(PYTHONS)),
        )
    if layer.packages is None and re.fullmatch(r"[\d.]+", layer.python):
        problems.add(at, "a version needs packages; without them, name an interpreter", found=repr(layer.python))


def _merged(
    name: str, layers: list[tuple[KeyPath, StackLayer]], where: KeyPath, problems: Problems, path_of: PathOf
) -> Stack:
    """Return the layers as one stack; contradictions are added to `problems`. Variables of a higher layer win."""
    env: dict[str, str] = {}
    for _, layer in layers:
        env = {**layer.env, **env}
    version = _only(layers, "python", lambda layer: layer.packages is not None, problems)
    interpreter = _only(layers, "python", lambda layer: layer.packages is None, problems)
    container = _only(layers, "container", lambda layer: True, problems)
    packages = _requirements(layers, problems)
    bases = {"packages": packages, "python": interpreter, "container": container}
    several = [key for key, value in bases.items() if value]
    if len(several) > 1:
        problems.add(where, f"{' and '.join(several)} cannot be in one stack", hint="keep one of these environments")
    checkouts = _checkouts(layers, problems, path_of)
    if container and any(checkout.setup for checkout in checkouts):
        problems.add(where, "setup cannot run in a container", hint="run the command when building the image")
    return Stack(
        name=name,
        packages=tuple(requirement for requirement, alone in packages if not alone),
        no_deps=tuple(requirement for requirement, alone in packages if alone),
        python=version,
        interpreter=path_of(interpreter) if "/" in interpreter else interpreter,
        container=container,
        checkouts=checkouts,
        env=env,
    )


def _only(
    layers: list[tuple[KeyPath, StackLayer]], key: str, counts: Callable[[StackLayer], bool], problems: Problems
) -> str:
    """Return the value of a key that all layers agree on.

    Empty if none gives one. `counts`: whether to look at a layer.
    """
    first = ""
    for at, layer in layers:
        value: str | None = getattr(layer, key) if counts(layer) else None
        if value is not None and first and value != first:
            problems.add((*at, key), "contradicts another layer", found=repr(value), allowed=repr(first))
        first = first or value or ""
    return first


def _requirements(layers: list[tuple[KeyPath, StackLayer]], problems: Problems) -> list[tuple[str, bool]]:
    """Return (requirement, whether without dependencies) of all layers; each distribution once."""
    by_distribution: dict[str, tuple[str, bool]] = {}
    for at, layer in layers:
        for requirement in layer.packages or ():
            entry = (requirement, layer.no_deps)
            if by_distribution.setdefault(distribution(requirement), entry) != entry:
                first = by_distribution[distribution(requirement)][0]
                problems.add((*at, "packages"), f"{requirement!r} contradicts {first!r}", hint="keep one of them")
    return list(by_distribution.values())


def _checkouts(layers: list[tuple[KeyPath, StackLayer]], problems: Problems, path_of: PathOf) -> tuple[Checkout, ...]:
    by_package: dict[str, Checkout] = {}
    for at, layer in layers:
        if layer.checkout is None or layer.package is None:
            continue
        if layer.package in by_package:
            problems.add((*at, "package"), f"another layer is also a checkout of {layer.package}")
        repository = layer.checkout if is_url(layer.checkout) else path_of(layer.checkout)
        revert = tuple(layer.revert or ())
        ref = layer.ref or ""
        setup = layer.setup or (PROJECTS[layer.package].setup if ref else "")
        by_package[layer.package] = Checkout(
            package=layer.package, repository=repository, ref=ref, revert=revert, setup=setup
        )
    return tuple(by_package.values())


def is_url(repository: str) -> bool:
    """Return whether git must fetch the repository: a URL, or host:path as ssh takes it."""
    return re.match(r"[a-z+]+://|[\w.@-]+:[^/\\]?", repository) is not None


def layers_of(stack: Stack) -> list[dict[str, Any]]:
    """Return the stack as a list of layers of a matrix file."""
    python = {"python": stack.python} if stack.python else {}
    layers: list[dict[str, Any]] = [
        {
            "checkout": checkout.repository,
            **({"ref": checkout.ref} if checkout.ref else {}),
            "package": checkout.package,
            **({"revert": list(checkout.revert)} if checkout.revert else {}),
            **({"setup": checkout.setup} if checkout.setup else {}),
        }
        for checkout in stack.checkouts
    ]
    layers += [{"packages": list(stack.packages), **python}] if stack.packages else []
    layers += [{"packages": list(stack.no_deps), "no_deps": True, **python}] if stack.no_deps else []
    layers += [{"python": stack.interpreter}] if stack.interpreter else []
    layers += [{"container": stack.container}] if stack.container else []
    if stack.env:
        layers[0]["env"] = dict(stack.env)
    return layers


def distribution(requirement: str) -> str:
    """Return the normalised name of a requirement: "Megatron_Core==0.17.1" is megatron-core."""
    match = _REQUIREMENT.fullmatch(requirement)
    return re.sub(r"[-_.]+", "-", match["name"]).lower() if match else ""


_NEWER_PYTHON = ("3.12", "3.13")  # megatron-core 0.17 and later


@dataclass(frozen=True, kw_only=True)
class EnvironmentRequest:
    """An environment to build; it is also the cache key: equal requests share an environment."""

    pythons: tuple[str, ...]  # versions, in order of preference
    packages: tuple[str, ...]
    no_deps: tuple[str, ...] = ()


def environment_request(stack: Stack, torch: str = "") -> EnvironmentRequest | None:
    """Return the environment to build for a stack; None if it brings its own (an interpreter or a container).

    It gets torch, the packages and what they import, and nothing of the harness. `torch`: the harness's version, used
    where the stack names none, so that stacks differ only in what they name.
    """
    if stack.interpreter or stack.container:
        return None
    named = {distribution(requirement) for requirement in (*stack.packages, *stack.no_deps)}
    packages = list(stack.packages)
    added = [need for project in named for need in UNDECLARED.get(project, ())]
    added += [need for checkout in stack.checkouts for need in PROJECTS[checkout.package].needs]
    added.append(f"torch=={torch}" if torch else "torch")
    packages += [need for need in dict.fromkeys(added) if distribution(need) not in named]
    pythons = (stack.python,) if stack.python else _pythons_for(stack)
    return EnvironmentRequest(pythons=pythons, packages=tuple(sorted(packages)), no_deps=tuple(sorted(stack.no_deps)))


def _pythons_for(stack: Stack) -> tuple[str, ...]:
    """Return the versions of Python that fit: 3.12 for megatron-core 0.17 and later, and for checkouts; older wheels
    take any version in PYTHONS.
    """
    pinning = [
        requirement for requirement in (*stack.packages, *stack.no_deps) if distribution(requirement) == "megatron-core"
    ]
    pins = [re.search(r"==\s*0\.(\d+)", requirement) for requirement in pinning]
    old = [pin for pin in pins if pin and int(pin[1]) < 17]
    return PYTHONS if old and not stack.checkouts else _NEWER_PYTHON
