"""Rules of cells that continue from a checkpoint."""

from __future__ import annotations

from harness.core.cell.config import SAME_LAYOUT, CellConfig, resumed_layout
from harness.features.adapters.rules import ADAPTER_RULES
from harness.features.attention.rules import ATTENTION_RULES
from harness.features.experts.rules import EXPERT_RULES
from harness.features.prediction.rules import PREDICTION_RULES
from harness.matrix.rules.packing import LAYOUT_RULES, LOSS_RULES, PACKING_RULES
from harness.matrix.rules.rule import Rule
from harness.upstreams.megatron_bridge.rules import BRIDGE_RULES
from harness.upstreams.table import UPSTREAM_TRAINERS

# Argument that saves whole tensors of a sharded optimizer: of a command line, and of Megatron-Bridge's configuration.
_RESHARDABLE = ("dist_ckpt_optim_fully_reshardable", "checkpoint.dist_ckpt_optim_fully_reshardable")
_OF_LAYOUT = (
    *(*LAYOUT_RULES, *PACKING_RULES, *BRIDGE_RULES, *LOSS_RULES),
    *(*ATTENTION_RULES, *EXPERT_RULES, *PREDICTION_RULES, *ADAPTER_RULES),
)


def trainer_saves(config: CellConfig) -> str | None:
    saving = [name for name, trainer in UPSTREAM_TRAINERS.items() if trainer.saves]
    if not config.resume or config.trainer in saving:
        return None
    able = " or ".join(saving)
    return f"resume is {config.resume}, and trainer {config.trainer} saves no checkpoint; use trainer {able}"


def saves_in_mid_training(config: CellConfig) -> str | None:
    train = config.train
    if not config.resume or train.save_step < train.steps:
        return None
    return f"train.save_step is {train.save_step} of {train.steps} steps, so no step is left to resume"


def layout_of_the_ranks(config: CellConfig) -> str | None:
    if not config.resume:
        return None
    try:
        resumed_layout(config.resume, config.layout)
    except ValueError as error:
        return f"resume is {config.resume}: {error}"
    return None


def layout_is_allowed(config: CellConfig) -> str | None:
    """The first rule that forbids the layout in which the cell continues."""
    if config.resume in ("", SAME_LAYOUT) or layout_of_the_ranks(config):
        return None
    resumed = config.resumed
    reason = next((found for rule in _OF_LAYOUT if (found := rule.predicate(resumed))), None)
    return None if reason is None else f"resume is {config.resume}: {reason}"


def experts_as_other_weights(config: CellConfig) -> str | None:
    if not config.resume or not config.layout.etp:
        return None
    return f"etp is {config.layout.etp}; the harness compares checkpoints of weights that are split over tp"


def shards_are_reshardable(config: CellConfig) -> str | None:
    """By default shards of the optimizer are saved for other sizes of dp x cp, but not of tp and pp."""
    if config.resume in ("", SAME_LAYOUT) or config.distributed_optimizer == "off" or layout_of_the_ranks(config):
        return None
    name = _RESHARDABLE[config.trainer == "bridge"]
    before, after = ((layout.tp, layout.pp) for layout in (config.layout, config.resumed.layout))
    if before == after or config.args.text(name) in ("on", "true"):
        return None
    return (
        f"resume is {config.resume}, from tp {before[0]} and pp {before[1]} to tp {after[0]} and pp {after[1]}, and "
        f"distributed_optimizer is {config.distributed_optimizer}: set args {name}"
    )


def rows_stay(config: CellConfig) -> str | None:
    """A resumed run goes on in the same file, of which each row holds the same documents in every layout."""
    if config.resume in ("", SAME_LAYOUT) or layout_is_allowed(config) or layout_of_the_ranks(config):
        return None
    resumed = config.resumed
    names = {step: f"step {step}" for step in resumed.steps}
    names |= {config.train.steps + n: f"the evaluation after step {after}" for n, after in resumed.evaluations.items()}
    for step, name in names.items():
        try:
            if _row_documents(config, step) == _row_documents(resumed, step):
                continue
        except ValueError:
            return None  # a rule of the layout names the step
        return (
            f"resume is {config.resume}, and there the rows of {name} do not hold the same documents, since these "
            f"are padded to a multiple of {resumed.style.document_multiple}, not {config.style.document_multiple}; use "
            "documents that fill the same rows either way"
        )
    return None


def _row_documents(config: CellConfig, step: int) -> list[list[int]]:
    return [[item.document.index for item in row.placed] for row in config.samples(step)]


RESUME_RULES: tuple[Rule, ...] = (
    Rule("resume.trainer", "harness: the adapters of upstream's trainers", trainer_saves),
    Rule(
        "resume.step",
        "harness: a resume trains at least one step; Megatron-LM saves after every --save-interval steps",
        saves_in_mid_training,
    ),
    Rule("resume.etp", "harness: the checks of a resume", experts_as_other_weights),
    Rule("resume.ranks", "harness: a cell has one number of ranks", layout_of_the_ranks),
    Rule("resume.layout", "the rules of layouts, for the one that continues", layout_is_allowed),
    Rule(
        "resume.shards",
        "Megatron-LM, Megatron-Bridge _load_base_checkpoint: sharding type dp_reshardable",
        shards_are_reshardable,
    ),
    Rule(
        "resume.rows",
        "harness: one file of rows for both parts; Megatron-LM MegatronPretrainingSampler continues after "
        "consumed_samples rows of it",
        rows_stay,
    ),
)
