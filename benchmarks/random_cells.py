"""Random clean cells: `python benchmarks/random_cells.py [--seed S] [--cells 40] [--stacks default bridge-0.6.2 ...]`.

Every axis, every key of `model` and `train`, and every part of a model is drawn from all that its declaration allows,
at sizes that two cores train in a second or two. A cell starts from the defaults; keys take drawn values one after the
other, and one by which the loader, or a rule of `harness plan`, would refuse the cell keeps its old value. All cells
run as one matrix, which is kept in --folder. Nothing is broken in them, so none may FAIL or end as ERROR: exit code 1,
unless it is a known fault of upstream: one that findings name (harness/judge/diagnosis/known_issues.py), or one of
KNOWN.

The same seed gives the same cells: `--seed S --only N` runs one of them, and `--show` only prints them.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness.core.cell.axes import Axis, axes, dotted
from harness.core.cell.axis_values import HARNESS
from harness.core.errors import InputError
from harness.core.outcomes import Outcome, Severity
from harness.core.run.report import ReportCell
from harness.core.run.run_plan import Expansion
from harness.core.setting import Key, keys_of
from harness.core.stack import DEFAULT
from harness.features.adapters.config import PeftConfig
from harness.features.attention.config import MlaConfig
from harness.features.experts.config import MoeConfig
from harness.features.prediction.config import MtpConfig
from harness.matrix.expansion.expand import expand
from harness.matrix.load import load
from harness.reporting.render_json import read_report

ROOT = Path(__file__).resolve().parent.parent
MAX_RANKS = 4
CHANGES = 14  # keys that get another value, on average a third of which a cell cannot have

Values = Sequence[Any]
# Values of keys that have no choices, small enough for two cores.
DRAWN: dict[str, Values] = {
    **dict.fromkeys(("tp", "pp", "cp", "dp", "ep"), (1, 2, 4)),
    "etp": (0, 1, 2),
    "vpp": (1, 2),
    **dict.fromkeys(("first_stage_layers", "last_stage_layers"), (None, 1, 2)),
    "stages": (None, "Et|tL", "Ett|ttL", "E|t|tL", "Ettt||L", "Et|m|L", "Et|t||tL"),
    "micro_batch_size": (1, 2, 3),
    "data_files": (1, 2),
    "documents": ("adversarial", "uncut", "plain", "multi_turn", "delimited", "images"),
    "resume": ("", "same", "tp1-pp2", "tp2", "cp2"),
    "pad_seq_to_mult": ("auto", 4, 8, 16),
    "max_tokens_per_microbatch": ("auto", 64, 128, 256),
    "pad_row_to_mult": ("auto", 8, 48, 128),
    "train.steps": (1, 2, 3, 5, 30),
    "train.global_batch": (4, 8, 12, 16),
    "train.seq_length": (32, 64, 96, 128),
    "train.lr": (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0),
    "train.seed": tuple(range(100)),
    "train.eval_interval": (0, 1, 2),
    "train.save_step": (1, 2),
    "train.label_smoothing": (0.0, 0.1),
    "train.lr_decay_iters": (None, 2, 10),
    "train.min_lr": (0.0, 1e-6, 1e-4),
    "train.lr_warmup_iters": (0, 1, 3),
    "train.lr_warmup_fraction": (None, 0.3),
    "train.lr_warmup_init": (0.0, 1e-6),
    "train.lr_wsd_decay_iters": (None, 1, 2),
    "train.start_weight_decay": (None, 0.0, 0.1),
    "train.end_weight_decay": (None, 0.1, 0.2),
    "model.layers": (1, 2, 3, 4),
    "model.hidden": (32, 48, 64),
    "model.heads": (2, 4, 8),
    "model.kv_heads": (1, 2, 4, 8),
    "model.head_size": (None, 4, 16, 24),
    "model.rotary_percent": (0.25, 0.5, 1.0),
    "model.rotary_interpolation": (None, 1, 4),
    "model.rope_scaling_factor": (2.0, 8.0, 32.0),
    "model.no_rope_freq": (None, 1, 2),
    "model.norm_epsilon": (1e-6, 1e-5, 0.1),
    "model.ffn": (32, 96, 128),
    "model.vocab": (64, 128, 200),
    "model.rope_base": (500, 10_000, 1_000_000),
    "model.window": (None, 0, 4, 16),
    "model.window_skip": (None, 2),
    "model.softmax_scale": (None, 0.25),
    "model.pattern": ("", "*-*-", "M*-M", "*-*E", "*-|*-", "G-*-"),
    "moe.experts": (2, 4, 8),
    "moe.topk": (1, 2, 4),
    "moe.ffn": (16, 64),
    "moe.aux_loss_coeff": (0.01, 0.1),
    "moe.z_loss_coeff": (0.0, 0.01),
    "moe.bias_rate": (1e-3, 0.01),
    "moe.shared_ffn": (None, 32),
    "moe.capacity_factor": (None, 0.5, 1.0, 2.0),
    "moe.layer_freq": ("1", "2"),
    "mtp.layers": (1, 2),
    "mtp.loss_factor": (0.1, 0.3),
    "mtp.stage": (None, 0),
    "mla.q_lora_rank": (None, 16),
    "mla.kv_lora_rank": (8, 16),
    "mla.qk_head_dim": (8, 16),
    "mla.qk_pos_emb_head_dim": (4, 8),
    "mla.v_head_dim": (8, 16),
    "peft.rank": (2, 4),
    "peft.alpha": (8, 16),
    "peft.targets": ((), ("linear_qkv", "linear_proj")),
}
# Keys that most values of another one need: they are drawn with it.
TOGETHER = {
    "train.lr_decay_style": ("train.lr_wsd_decay_iters",),
    "train.weight_decay_incr_style": ("train.start_weight_decay", "train.end_weight_decay"),
}
PARTS: dict[str, type[Any]] = {"moe": MoeConfig, "mtp": MtpConfig, "mla": MlaConfig, "peft": PeftConfig}
LEFT_OUT = {
    "stack": "those of --stacks",
    "attention": "kernels need a GPU; `auto` is one that this machine has",
    "device": "`auto` is what this machine has",
    "lift": "asks what upstream makes of a cell that a rule rejects",
    "args": "a name of a section that the matrix would need",
    "timed": "of the throughput lane",
    "model.builder": "of plug-ins",
    "model.rope_fusion": "needs a GPU",
    "model.vision": "its sizes follow from each other, and its data from a checkout of a model",
}
# What runs in a stack of wheels, without a checkout; a stack that is not here runs what `default` does.
OWN, BRIDGE = ("unpacked", "reference", "sft"), ("bridge_offline", "bridge_in_batch", "bridge_long")
PACKINGS = {"bridge-0.6.2": (*OWN, *BRIDGE), "skyrl-0.4.0": (*OWN, *BRIDGE, "skyrl")}
STACK_TRAINERS = {"bridge-0.6.2": (HARNESS, "bridge"), "skyrl-0.4.0": (HARNESS, "bridge", "skyrl")}


class Known(NamedTuple):
    """A fault of released code that the scoreboard lists, and of which no finding can name it with certainty."""

    what: str
    has: Callable[[Mapping[str, Any]], bool]  # whether a row is one that has it
    check: str  # whose finding comes first
    says: str = ""  # in that finding


def _part_of(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return row.get(f"model.{name}") or {}


def _wider_values(given: Mapping[str, Any]) -> bool:
    mla = MlaConfig(**given)
    return mla.v_head_dim > mla.qk_head_dim + mla.qk_pos_emb_head_dim


KNOWN = (
    Known(
        what="the weight of the prediction loss comes from each context rank's own tokens",
        has=lambda row: row["cp"] > 1 and row.get("model.mtp") is not None,
        check="parameter_gradients",
    ),
    Known(
        what="the z-loss is the mean of the ranks' means over different numbers of tokens",
        has=lambda row: row["tp"] * row["cp"] > 1 and bool(_part_of(row, "moe").get("padding_mask")),
        check="z_loss",
    ),
    Known(
        what="keys of latent attention under tp: backward keeps each rank's part of the gradient of their rotary part",
        has=lambda row: row["tp"] > 1 and row.get("model.mla") is not None,
        check="parameter_gradients",
    ),
    Known(
        what="canonical LoRA adds whole queries, keys and values to rows of which ranks have parts of groups",
        has=lambda row: (
            row.get("model.kv_heads", 4) < row["tp"] and _part_of(row, "peft").get("method") == "canonical_lora"
        ),
        check="activations",
    ),
    Known(
        what="latent attention splits compressed queries and keys over the global tensor-parallel group",
        has=lambda row: row["tp"] > 1 and row.get("groups") == "explicit" and row.get("model.mla") is not None,
        check="ended",
        says="in the training leg, step 0, micro-batch 0, forward",
    ),
    Known(
        what="latent attention gathers other ranks' queries and keys, which rows of equal length do not refuse",
        has=lambda row: row["tp"] > 1 and row.get("groups") == "explicit" and row.get("model.mla") is not None,
        check="activations",
    ),
    Known(
        what="latent attention crops values that are wider than keys in packed rows",
        has=lambda row: row["packing"] != "unpacked" and _wider_values(_part_of(row, "mla")),
        check="ended",
        says="shapes cannot be multiplied",
    ),
    Known(
        what="a router's own token count is read after an all-reduce has overwritten it",
        has=lambda row: row["tp"] * row["cp"] > 1 and bool(_part_of(row, "moe").get("padding_mask")),
        check="aux_loss",
    ),
    Known(
        what="label smoothing takes a rank's part of the vocabulary for the vocabulary",
        has=lambda row: row["tp"] > 1 and bool(row.get("train.label_smoothing")),
        check="document_loss",
        says="all layers are right",
    ),
    Known(  # rounding hides it in losses
        what="label smoothing takes a rank's part of the vocabulary for the vocabulary",
        has=lambda row: row["tp"] > 1 and bool(row.get("train.label_smoothing")) and row.get("dtype") == "bf16",
        check="parameter_gradients",
    ),
    Known(
        what="a model that gathers its logits passes them to a loss for split ones",
        has=lambda row: row["tp"] > 1 and bool(row.get("model.gathered_logits")),
        check="document_loss",
        says="all layers are right",
    ),
    Known(
        what="HybridModel makes the angles of rotary positions for halves of heads, and turns interleaved pairs",
        has=lambda row: bool(row.get("model.pattern")) and bool(row.get("model.rotary_interleaved")),
        check="activations",
    ),
    Known(  # no fault at all
        what="training with squared ReLU diverges at a learning rate as large",
        has=lambda row: row.get("model.activation") == "squared_relu" and row.get("train.lr", 0.0) >= 0.1,
        check="finiteness",
    ),
    Known(
        what="interleaved pairs of no token at all have no shape",
        has=lambda row: bool(row.get("model.rotary_interleaved")),
        check="ended",
        says="in _rotate_half",
    ),
    Known(
        what="drop_policy position drops the first tokens on a CPU",
        has=lambda row: _part_of(row, "moe").get("drop_policy") == "position",
        check="capacity",
        says="that drop_policy position ranks before others",
    ),
    Known(
        what="biases of experts apply the mask of padding to experts in place of tokens",
        has=lambda row: (
            bool(_part_of(row, "moe").get("padding_mask")) and bool(_part_of(row, "moe").get("expert_bias"))
        ),
        check="ended",
        says="in _apply_expert_bias",
    ),
    Known(
        what="a model that gathers its logits passes them to a loss that changes split ones in place",
        has=lambda row: bool(row.get("model.gathered_logits")),
        check="ended",
        says="_GatherFromModelParallelRegion is a view",
    ),
)


def values_of(key: Key, name: str) -> Values:
    """What a key is drawn from; KeyError for one that is neither declared with choices nor in DRAWN."""
    if name in DRAWN:
        return DRAWN[name]
    if key.setting.choices:
        return [*key.setting.choices]
    if key.type is bool:
        return ("auto", False) if key.setting.auto else (False, True)
    raise KeyError(name)


def _part(name: str) -> Callable[[random.Random], Any]:
    """Draws a part of the model, about half of its keys at other values than their defaults."""
    keys = keys_of(PARTS[name])

    def draw(dice: random.Random) -> Any:
        if dice.random() < 0.25:
            return None
        drawn = {key: dice.choice(values_of(keys[key], f"{name}.{key}")) for key in keys if dice.random() < 0.5}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in drawn.items()}

    return draw


def draws(stacks: Sequence[str]) -> dict[str, Callable[[random.Random], Any]]:
    """Axis -> draws a value for it."""
    found: dict[str, Callable[[random.Random], Any]] = {"stack": lambda dice: dice.choice(stacks)}
    for name, axis in (axes() | dotted()).items():
        short = name.removeprefix("model.")
        if name in LEFT_OUT:
            continue
        if short in PARTS:
            found[name] = _part(short)
        else:
            found[name] = _chooser(values_of(axis, name))
    return found


def _chooser(values: Values) -> Callable[[random.Random], Any]:
    return lambda dice: dice.choice(values)


def matrix(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A matrix file with one cell per row; every row names every axis that any of them does."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    known = axes() | dotted()
    cases = [{name: row.get(name, _default(known[name])) for name in names} for row in rows]
    return {
        "name": "random",
        "model": {"layers": 2},
        "train": {"steps": 2},
        "launch": {"max_ranks": MAX_RANKS},
        "matrix": {"case": cases},
    }


def _default(axis: Axis) -> Any:
    """As a matrix file writes it."""
    if axis.name in ("model.layers", "train.steps"):
        return 2
    return "auto" if axis.setting.auto else axis.default


def drawn(
    name: str, row: Mapping[str, Any], drawing: Mapping[str, Callable[[random.Random], Any]], dice: random.Random
) -> Any:
    """A value for a key of a row: of packings and trainers, one that the row's stack has."""
    stack = row.get("stack", DEFAULT)
    if name == "packing":
        return dice.choice(PACKINGS.get(stack, OWN))
    if name == "trainer":
        return dice.choice(STACK_TRAINERS.get(stack, (HARNESS,)))
    if name == "model.peft" and stack not in PACKINGS:
        return None
    return drawing[name](dice)


def planned(rows: Sequence[Mapping[str, Any]]) -> Expansion | None:
    """The cells of these rows; None if the loader or a rule refuses one."""
    try:
        found = expand(load(matrix(rows), file="random", lines={}, read_lengths=lambda name: ()))
    except InputError:
        return None
    tested = [cell for cell in found.cells if cell.role == "cell"]
    return found if not found.rejected and len(tested) == len(rows) else None


def cells_of(seed: int, count: int, stacks: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows of `count` cells: axes that differ from their defaults."""
    drawing, known = draws(stacks), axes() | dotted()
    seen: set[str] = set()
    number = 0
    while number < count:
        dice = random.Random(f"{seed} {number} {len(seen)}")
        row: dict[str, Any] = {"packing": "unpacked", "tp": 1, "pp": 1, "cp": 1}
        # What the rest depends on comes first.
        first = ["stack", "packing", *dice.sample(["trainer", "tp", "pp", "cp", "dp"], 5)]
        others = dice.sample([name for name in drawing if name not in first], CHANGES)
        for name in [*first, *others]:
            values = {each: drawn(each, row, drawing, dice) for each in (name, *TOGETHER.get(name, ()))}
            changed = row | values
            if values[name] != _default(known[name]) and planned([changed]) is not None:
                row = changed
        text = repr(sorted(row.items()))
        if text not in seen:
            number += 1
            seen.add(text)
            yield row


def shown(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in row.items())


def excused(row: Mapping[str, Any], cell: ReportCell) -> bool:
    """Whether a failed cell shows a known fault of upstream, and nothing that does not follow from it."""
    errors = [finding for finding in cell.findings if finding.severity is Severity.ERROR]
    if not errors:
        return False
    first = errors[0]
    if any(known.has(row) and first.check == known.check and known.says in first.message for known in KNOWN):
        return True
    return bool(first.known) and all(
        one.known or one.follows_from or one.fault_class == first.fault_class for one in errors
    )


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--cells", type=int, default=40, metavar="N", help="how many (40)")
    options.add_argument(
        "--stacks", nargs="+", default=[DEFAULT], metavar="STACK", help="recipes to draw from (default)"
    )
    options.add_argument("--only", type=int, nargs="+", metavar="N", help="of the cells of this seed, counted from 0")
    options.add_argument("--show", action="store_true", help="print the cells, and run nothing")
    options.add_argument("--folder", type=Path, metavar="DIR", help="of the matrix (a temporary one)")
    arguments = options.parse_args()
    rows = list(cells_of(arguments.seed, arguments.cells, arguments.stacks))
    chosen = arguments.only if arguments.only else range(len(rows))
    if arguments.show:
        for number in chosen:
            print(f"{number:>3}  {shown(rows[number])}")
        return 0
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="harness-random-"))
    return run([rows[number] for number in chosen], list(chosen), folder)


def run(rows: Sequence[dict[str, Any]], numbers: Sequence[int], folder: Path) -> int:
    """Run the cells as one matrix, print their outcomes, and return the exit code."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "random.yaml"
    file.write_text(json.dumps(matrix(rows), indent=1), encoding="utf-8")  # JSON is YAML
    command = [sys.executable, "-m", "harness", "run", str(file), "--no-history", "-q"]
    done = subprocess.run(command, cwd=folder)
    [reported] = sorted((folder / "reports").glob("*/report.json"))[-1:]
    report = read_report(reported.read_text(encoding="utf-8"))
    expansion = planned(rows)
    assert expansion is not None
    by_id = {cell.id: cell for cell in report.cells}
    tested = [cell.id for cell in expansion.cells if cell.role == "cell"]
    counts: Counter[str] = Counter()
    for number, row, cell in zip(numbers, rows, tested):
        found = by_id.get(cell)
        outcome = found.outcome if found else Outcome.REJECTED  # at run time: the release lacks what the cell needs
        bad = outcome in (Outcome.FAIL, Outcome.ERROR)
        known = found is not None and bad and excused(row, found)
        counts["known" if known else outcome.value] += 1
        print(f"{number:>3}  {outcome.value:<8} {'known fault of upstream; ' if known else ''}{shown(row)}")
        if found is not None and bad:
            print(f"       {found.id}: {found.reason or found.findings[0].message}")
    using = {planned.id: row for row, planned in zip(rows, (one for one in expansion.cells if one.role == "cell"))}
    for control in (cell for cell in expansion.cells if cell.role == "control"):
        found = by_id.get(control.id)
        users = [using[cell.id] for cell in expansion.cells if cell.control == control.id and cell.id in using]
        if found is not None and found.outcome in (Outcome.FAIL, Outcome.ERROR):
            known = any(excused(row, found) for row in users)
            counts["known" if known else found.outcome.value] += 1
            print(f"    control {found.outcome.value} {'of a known fault' if known else found.id}")
    print(", ".join(f"{count} {name}" for name, count in sorted(counts.items())), f"({reported.parent})")
    return int(bool(counts["FAIL"] or counts["ERROR"]) or done.returncode == 2)


if __name__ == "__main__":
    raise SystemExit(main())
