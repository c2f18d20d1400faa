"""The inputs that fuzz_inputs.py mutates, and the command that reads each of them."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

from fuzz_mutations import mutate

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
WEIGHTS = {"matrix": 55, "profile": 12, "template": 8, "lengths": 5, "run": 20}
COMMANDS_ON_RUNS = (("report", "RUN", "--no-history"), ("status", "RUN"), ("logs", "RUN"), ("compare", "RUN", "OTHER"))
COMMANDS_ON_HISTORY = (
    (),
    ("cells",),
    ("outcomes",),
    ("html",),
    ("export",),
    ("prune", "--older-than", "1d", "--dry-run"),
)


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
    if kind == "run":
        return _prepare_run(corpus, chance, folder)
    base = folder / "matrix.yaml"
    files = {"matrix.yaml": MATRIX.encode(), "fuzz.yaml": PROFILE.encode(), "own.j2": corpus.template}
    choices = [["plan", str(base)], ["run", str(base), "--dry-run", *runs]]
    if kind == "matrix":
        others = list(corpus.matrices.values())
        files["matrix.yaml"] = mutate(chance.choice(others), others, chance, is_json=False)
        choices = [["verify", str(base)]] * 4 + choices
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
    for name, content in files.items():
        (folder / name).write_bytes(content)
    words = chance.choice(choices)
    return f"{kind} {words[0]}", words


def _prepare_run(corpus: Corpus, chance: random.Random, folder: Path) -> tuple[str, list[str]]:
    """Mutate one file of a copy of the run, or the history."""
    run, other = folder / "runs" / "mutated", folder / "runs" / "other"
    shutil.copytree(corpus.run, run)
    if corpus.history and chance.random() < 0.1:
        content = corpus.history.read_bytes()
        history = folder / "history.sqlite"
        history.write_bytes(mutate(content, [content], chance, is_json=False) if chance.random() < 0.9 else b"")
        words = chance.choice(COMMANDS_ON_HISTORY)
        return f"history {words[0] if words else 'runs'}", [
            "history",
            "--history",
            str(history),
            "--run-dir",
            str(run.parent),
            *words,
        ]
    files = [path for path in sorted(run.rglob("*")) if path.is_file() and path.suffix not in (".html", ".log")]
    chosen = chance.choice(files)
    content = chosen.read_bytes()
    is_json = chosen.suffix in (".json", ".jsonl", ".progress", ".heartbeat")
    chosen.write_bytes(mutate(content, [path.read_bytes() for path in files[:5]], chance, is_json=is_json))
    if chosen.name == "report.json" and chance.random() < 0.8:
        shutil.copytree(corpus.run, other)
        words = chance.choice((["compare", str(other), "--baseline", str(chosen)], ["compare", str(run), str(other)]))
        return f"{chosen.name} compare", words
    words = [
        str(run) if word == "RUN" else str(other) if word == "OTHER" else word
        for word in chance.choice(COMMANDS_ON_RUNS)
    ]
    if words[0] == "compare":
        shutil.copytree(corpus.run, other)
    return f"{chosen.name if chosen.suffix != '.json' or 'rank' not in chosen.name else 'record'} {words[0]}", words
