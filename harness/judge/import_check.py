"""Whether a cell ran the code that its stack asked for. Judged before anything else: other code proves nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from harness.core.run.import_proofs import proofs_of
from harness.core.run.records import ImportProof, RankRecord
from harness.core.stack import ModuleHome, ReadyStack
from harness.judge.locations import counted

WRONG_CODE = "wrong code under test"


def wrong_code(stack: ReadyStack | None, records: Mapping[int, RankRecord]) -> str:
    """The first module not imported from where the stack requires, with both paths; empty if there is none.

    `stack`: None for the default one, which asks for nothing but to be this environment. A rank that completed must
    have proven something.
    """
    if stack is None or not stack.homes:
        return ""
    strays: dict[str, tuple[ImportProof, ModuleHome, list[int]]] = {}
    known: dict[object, list[tuple[ImportProof, ModuleHome]]] = {}
    for rank in sorted(records):
        record = records[rank]
        if not record.imports and record.ended == "completed":
            return f"{WRONG_CODE}: rank {rank} completed and proved no import"
        key = (tuple((proof.module, proof.path) for proof in record.imports), tuple(record.modules.items()))
        if key not in known:  # ranks hardly ever differ, and prove a few hundred imports each
            known[key] = list(_strays(record, stack.homes))
        for proof, home in known[key]:
            strays.setdefault(proof.module, (proof, home, []))[2].append(rank)
    if not strays:
        return ""
    proof, home, ranks = next(iter(strays.values()))
    others = f"; so did {len(strays) - 1} more modules" if len(strays) > 1 else ""
    return (
        f"{WRONG_CODE}: {proof.module} {proof.version} came from {proof.path} on {counted('rank', ranks)}, but stack "
        f"{stack.asked.name} has it in {' or '.join(home.folders)}{others}"
    )


def _strays(record: RankRecord, homes: tuple[ModuleHome, ...]) -> Iterator[tuple[ImportProof, ModuleHome]]:
    for proof in proofs_of(record):
        home = home_of(proof.module, homes)
        if home is not None and not _within(proof.path, home.folders):
            yield proof, home


def home_of(module: str, homes: tuple[ModuleHome, ...]) -> ModuleHome | None:
    """The most specific required location of a module; None if the stack requires none."""
    fitting = [home for home in homes if not home.prefix or f"{module}.".startswith(f"{home.prefix}.")]
    return max(fitting, key=lambda home: len(home.prefix), default=None)


def _within(path: str, folders: tuple[str, ...]) -> bool:
    return any(PurePosixPath(path).is_relative_to(folder) for folder in folders)
