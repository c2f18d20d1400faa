"""Asks Megatron-Bridge about the fields that cells set: see upstreams/node_asking.py."""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

from harness.core.cell.config import CellConfig
from harness.probe.built import text_of, values_of
from harness.runtime.process import end_process
from harness.upstreams.megatron_bridge.node_config import FieldError, container
from harness.upstreams.megatron_bridge.node_files import reserve_files
from harness.upstreams.megatron_bridge.node_trainer import BridgeTrainer
from harness.upstreams.node_asking import Built, as_a_rank, ask, other_model, refused
from harness.upstreams.node_lookup import Unavailable


def problem_of(config: CellConfig) -> str:
    """Return why this stack's ConfigContainer does not accept the cell's fields; empty if it does.

    An unknown field comes with the nearest one that upstream has.
    """
    unavailable: Unavailable = BridgeTrainer.unavailable(config)
    if unavailable is not None:
        return ""  # the cell itself says so
    try:
        built = _built(config)
    except FieldError as error:
        return str(error)
    except Exception as error:  # upstream asserts and raises
        return refused(" ".join(word for argument in config.args.given for word in argument.flag), error)
    return other_model(config, built, _built)


def _built(config: CellConfig) -> Built:
    """Return the validated configurations of model, DDP and optimizer, those of the model with its provider's own
    fields.
    """
    device = as_a_rank(config)
    with tempfile.TemporaryDirectory(prefix="harness-fields-") as scratch, redirect_stdout(sys.stderr):
        folder = Path(scratch) / "data"
        reserve_files(folder)
        configuration = container(config, folder, device)
        configuration.validate()
    model = {
        field.name: text_of(getattr(configuration.model, field.name, None))
        for field in dataclasses.fields(configuration.model)
    }
    return {
        "model": model,
        "ddp": values_of("ddp", configuration.ddp),
        "optimizer": values_of("optimizer", configuration.optimizer),
    }


if __name__ == "__main__":
    os.environ.setdefault("RANK", "0")  # validate() reads the rank, in processes that torchrun starts
    ask(sys.argv[1], problem_of)
    end_process(0)
