"""The inputs that fuzz_inputs.py mutates, and the command that reads each of them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from fuzz_mutations import mutate
from fuzz_runs import of_history, of_log, of_options, of_run

ROOT = Path(__file__).resolve().parent.parent
MATRIX = """
name: fuzz
model: {layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 32, vocab: 32}
train: {steps: 1, global_batch: 4, seq_length: 32}
matrix: {tp: 2, packing: reference}
checks: {canaries: none}
"""
LENGTHS = "name: fuzz\ndocuments: {mode: file, path: lengths.csv}\nmatrix: {tp: [1, 2], packing: [sft, reference]}\n"
PROFILE = "name: fuzz\nkind: slurm\nranks_per_node: 8\npartition: main\ntemplate: own.j2\n"
WEIGHTS = {"matrix": 40, "profile": 10, "template": 7, "lengths": 4, "run": 17, "log": 6, "history": 8, "options": 8}


@dataclass(frozen=True)
class Corpus:
    """Files by kind, and a finished run."""

    matrices: dict[str, bytes]
    profiles: dict[str, bytes]
    template: bytes
    lengths: bytes
    run: Path
    history: Path | None


def corpus_of(run: Path, history: Path | None) -> Corpus:
    def read(folder: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted((ROOT / folder).glob("*.yaml"))}

    return Corpus(
        matrices=read("matrices"),
        profiles=read("matrices/clusters"),
        template=(ROOT / "sbatch_templates" / "default.sbatch.j2").read_bytes(),
        lengths=b"length\n" + b"".join(b"%d\n" % (n * 7 % 90 + 1) for n in range(40)),
        run=run,
        history=history,
    )


def prepare(corpus: Corpus, number: int, seed: int, folder: Path) -> tuple[str, list[str]]:
    """Write input `number` below the folder; returns a description of it, and its command's arguments."""
    chance = random.Random(f"{seed}:{number}")
    kind = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    runs = ["--run-dir", str(folder / "runs")]
    base = folder / "matrix.yaml"
    files = {"matrix.yaml": MATRIX.encode(), "fuzz.yaml": PROFILE.encode(), "own.j2": corpus.template}
    choices = [["plan", str(base)], ["run", str(base), "--dry-run", *runs]]
    if kind in ("run", "log") or (kind == "history" and corpus.history is None):
        return (of_log if kind == "log" else of_run)(corpus.run, chance, folder)
    if kind == "history" and corpus.history is not None:
        return of_history(corpus.run, corpus.history, chance, folder)
    if kind == "options":
        base.write_bytes(files["matrix.yaml"])
        words = of_options(corpus.run, corpus.history, base, chance, folder)
        return f"{kind} {words[0]}", words
    if kind == "matrix":
        others = list(corpus.matrices.values())
        files["matrix.yaml"] = mutate(chance.choice(others), others, chance, is_json=False)
        choices = [["verify", str(base)]] * 4 + [*choices, ["plan", str(base), "--json"]]
    elif kind == "lengths":
        files["matrix.yaml"] = LENGTHS.encode()
        files["lengths.csv"] = mutate(corpus.lengths, [corpus.lengths], chance, is_json=False)
        choices = [["verify", str(base)], *choices]
    else:
        if kind == "profile":
            others = list(corpus.profiles.values())
            files["fuzz.yaml"] = mutate(chance.choice(others), others, chance, is_json=False)
        else:
            files["own.j2"] = mutate(corpus.template, [corpus.template], chance, is_json=False)
            choices = choices[1:]
        choices = [[*words, "--cluster", str(folder / "fuzz.yaml")] for words in choices]
        if kind == "profile" and chance.random() < 0.02:  # it looks for programs and waits for a clock
            choices = [["doctor", "--cluster", str(folder / "fuzz.yaml"), *runs]]
    for name, content in files.items():
        (folder / name).write_bytes(content)
    words = chance.choice(choices)
    return f"{kind} {words[0]}", words
