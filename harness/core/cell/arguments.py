"""Arguments of upstream's training script that a matrix passes on.

A name is that of upstream's argument with underscores, e.g. "clip_grad" for --clip-grad, as in argparse's namespace. A
dotted name is that of a field of Megatron-Bridge's ConfigContainer, e.g. "ddp.overlap_grad_reduce".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

PREFIX = "args."  # of an axis of one argument, e.g. "args.clip_grad"
# Arguments that decide what an optimizer step computes; the harness's own loop applies them too, so a control has them.
OF_OPTIMIZER = ("clip_grad", "weight_decay", "adam_beta1", "adam_beta2", "adam_eps")
# Argument -> the values under which upstream reads the harness's conversations as the plan says.
PASSED_ON = {"sft_tokenizer_prompt_format": ("nemotron-h-aligned", "identity")}
_LONGEST_LABEL = 80  # characters in the name of a cell, which is a file name; its hash covers all of them


@dataclass(frozen=True, kw_only=True)
class Argument:
    name: str
    words: tuple[str, ...] = ()  # none for a switch

    @property
    def is_field(self) -> bool:
        """Whether it is a field of a configuration, not an argument of a command line."""
        return "." in self.name

    @property
    def flag(self) -> tuple[str, ...]:
        """As words of a command line. One word is joined by "=", so that it may begin with a dash."""
        if self.is_field:
            return (f"{self.name}={','.join(self.words)}",)
        flag = f"--{self.name.replace('_', '-')}"
        return (f"{flag}={self.words[0]}",) if len(self.words) == 1 else (flag, *self.words)

    @property
    def label(self) -> str:
        """As part of a cell's name, which is also a file name: "clip-grad-0.5"."""
        text = "-".join([self.name.replace("_", "-"), *self.words])
        return re.sub(r"[^A-Za-z0-9._-]", "", text)


@dataclass(frozen=True)
class Arguments:
    """Arguments of a cell, sorted by name, at most one for each name."""

    given: tuple[Argument, ...] = ()
    profile: str = ""  # the matrix's profile among their origins
    label: str = ""  # part of the cell's name: the profile, and the values of axes

    def flags(self) -> list[str]:
        """As words of a command line."""
        return [word for argument in self.given for word in argument.flag]

    def of(self, name: str) -> Argument | None:
        """Return the argument of this name; None if the cell does not have it."""
        return next((argument for argument in self.given if argument.name == name), None)

    def text(self, name: str) -> str:
        """Return the value as tables show it: "on" for a switch, empty where the cell does not have the argument."""
        argument = self.of(name)
        return "" if argument is None else " ".join(argument.words) or "on"

    def numbers(self) -> dict[str, float]:
        """Name -> value, of those in OF_OPTIMIZER."""
        return {argument.name: float(argument.words[0]) for argument in self.of_optimizer().given}

    def effective_recompute(self, otherwise: str) -> str:
        """Return what backward recomputes around core attention, one of RECOMPUTE; `otherwise`: the value of the
        axis.
        """
        if self.of("recompute_activations"):
            return "selective"
        granularity = self._of_model("recompute_granularity") or otherwise
        modules = self.of("recompute_modules") or self.of("model.recompute_modules")
        without = granularity == "selective" and modules and "core_attn" not in modules.words
        return "none" if without else granularity

    @property
    def recomputed_layers(self) -> int | None:
        """The first layers of each chunk, those that `--recompute-method block` recomputes; None: all."""
        layers = self._of_model("recompute_num_layers")
        return int(layers) if layers.isdecimal() and self._of_model("recompute_method") == "block" else None

    def _of_model(self, name: str) -> str:
        """Return the value of an argument, or of the field of the model that has its name."""
        return self.text(name) or self.text(f"model.{name}")

    def of_optimizer(self) -> Arguments:
        """Return those that the harness's own loop applies too."""
        given = tuple(argument for argument in self.given if argument.name in OF_OPTIMIZER)
        return Arguments(given, label=label_of({argument.name: argument.words for argument in given}))


NO_ARGUMENTS = Arguments()


def label_of(given: Mapping[str, tuple[str, ...]], profile: str = "") -> str:
    """Return the part of a cell's name for arguments and a profile, cut to its longest."""
    parts = [Argument(name=name, words=words).label for name, words in given.items()]
    return "-".join([profile, *parts] if profile else parts)[:_LONGEST_LABEL].rstrip("-.")


def merged(*layers: Mapping[str, tuple[str, ...] | None]) -> tuple[Argument, ...]:
    """Arguments of several layers, a later one before an earlier one; None leaves an argument out.

    A layer maps names to words.
    """
    values: dict[str, tuple[str, ...] | None] = {}
    for layer in layers:
        values |= layer
    return tuple(Argument(name=name, words=words) for name, words in sorted(values.items()) if words is not None)
