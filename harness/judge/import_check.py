"""Checks that a cell ran the code of its stack. This comes before all checks: results of other code prove nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from harness.core.run.records import ImportProof, RankRecord
from harness.core.stack import ModuleHome, ReadyStack
from harness.judge.locations import numbered

WRONG_CODE = "wrong code under test"


def import_problem(stack: ReadyStack | None, records: Mapping[int, RankRecord]) -> str:
    """Return the first module imported from outside its required folders, with both paths, or ''.

    `stack`: None is the default stack, this environment, which requires no folders. Under any other a completed rank
    must have recorded imports.
    """
    if stack is None or not stack.homes:
        return ""
    misplaced: dict[str, tuple[ImportProof, ModuleHome, list[int]]] = {}
    known: dict[object, list[tuple[ImportProof, ModuleHome]]] = {}
    for rank in sorted(records):
        record = records[rank]
        if not record.imports and record.ended == "completed":
            return f"{WRONG_CODE}: rank {rank} completed but recorded no imports"
        key = (tuple((proof.module, proof.path) for proof in record.imports), tuple(record.modules.items()))
        if key not in known:  # ranks hardly ever differ, and record a few hundred imports each
            known[key] = list(_misplaced(record, stack.homes))
        for proof, home in known[key]:
            misplaced.setdefault(proof.module, (proof, home, []))[2].append(rank)
    if not misplaced:
        return ""
    proof, home, ranks = next(iter(misplaced.values()))
    others = f"; other modules in wrong folders: {len(misplaced) - 1}" if len(misplaced) > 1 else ""
    return (
        f"{WRONG_CODE}: {proof.module} {proof.version} came from {proof.path} on {numbered('rank', ranks)}, but stack "
        f"{stack.requested.name} has it in {' or '.join(home.folders)}{others}"
    )


def _misplaced(record: RankRecord, homes: tuple[ModuleHome, ...]) -> Iterator[tuple[ImportProof, ModuleHome]]:
    for proof in proofs_of(record):
        home = home_of(proof.module, homes)
        if home is not None and not any(map(PurePosixPath(proof.path).is_relative_to, home.folders)):
            yield proof, home


def home_of(module: str, homes: tuple[ModuleHome, ...]) -> ModuleHome | None:
    """Return the most specific required location of a module; None if the stack requires none."""
    fitting = [home for home in homes if not home.prefix or f"{module}.".startswith(f"{home.prefix}.")]
    return max(fitting, key=lambda home: len(home.prefix), default=None)


def proofs_of(record: RankRecord) -> Iterator[ImportProof]:
    """Yield every import that the record proves.

    `modules` maps a top module to the names of its submodules whose files are where their names say, separated by
    spaces; "a.b" is the file a/b.py next to it and "a.b/" the file a/b/__init__.py.
    """
    yield from record.imports
    heads = {proof.module: proof for proof in record.imports}
    for head, names in record.modules.items():
        proof = heads[head]
        folder = proof.path.rpartition("/")[0]
        for name in names.split():
            plain = name.removesuffix("/")
            end = ".py" if plain == name else "/__init__.py"
            path = f"{folder}/{plain.replace('.', '/')}{end}"
            yield ImportProof(module=f"{head}.{plain}", version=proof.version, path=path)
