"""Asks Megatron-Bridge about the fields that cells set: see node/trainers/asking.py."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

from harness.core.cell.config import CellConfig
from harness.node.data_paths.lookup import Unavailable
from harness.node.process import end_process
from harness.node.trainers.asking import as_a_rank, ask, refused
from harness.node.trainers.bridge.config import container
from harness.node.trainers.bridge.fields import FieldError
from harness.node.trainers.bridge.files import reserve_files
from harness.node.trainers.bridge.trainer import BridgeTrainer


def problem_of(config: CellConfig) -> str:
    """Why this stack's ConfigContainer does not accept the cell's fields; empty if it does.

    An unknown field comes with the nearest one that upstream has.
    """
    unavailable: Unavailable = BridgeTrainer.unavailable(config)
    if unavailable is not None:
        return ""  # the cell itself says so
    device = as_a_rank(config)
    with tempfile.TemporaryDirectory(prefix="harness-fields-") as made, redirect_stdout(sys.stderr):
        folder = Path(made) / "data"
        reserve_files(folder)
        try:
            container(config, folder, device).validate()
        except FieldError as error:
            return str(error)
        except Exception as error:  # upstream asserts and raises
            return refused(" ".join(word for argument in config.args.given for word in argument.flag), error)
    return ""


if __name__ == "__main__":
    os.environ.setdefault("RANK", "0")  # validate() reads the rank, in processes that torchrun starts
    ask(sys.argv[1], problem_of)
    end_process(0)
