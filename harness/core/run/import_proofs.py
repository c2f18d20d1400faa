"""Expands the short form in which a rank record holds its imports."""

from __future__ import annotations

from collections.abc import Iterator

from harness.core.run.records import ImportProof, RankRecord


def proofs_of(record: RankRecord) -> Iterator[ImportProof]:
    """Every import that the record proves.

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
