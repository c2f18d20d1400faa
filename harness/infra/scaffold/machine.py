"""Finds out what the matrix of `harness init` depends on. Asks no questions, and imports neither torch nor Megatron."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from harness.infra.git import standing_in
from harness.infra.local_launcher import cores, gpus_here
from harness.plan.stacks.recipes import WorkingTree


@dataclass(frozen=True, kw_only=True)
class Machine:
    cores: int
    gpus: int
    megatron: str = ""  # version beside the launcher, if torch is there too; empty: cells need a stack
    tree: WorkingTree | None = None  # the checkout that the command was started in


def look() -> Machine:
    return Machine(cores=cores(), gpus=gpus_here(), megatron=_megatron(), tree=standing_in())


def _megatron() -> str:
    try:
        version("torch")
        return version("megatron-core")
    except PackageNotFoundError:
        return ""
