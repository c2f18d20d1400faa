"""One rank of a cell under torchrun, for comparison in bench_smoke.py: the same probe, but every rank imports itself.

torchrun --nproc-per-node N benchmarks/torchrun_rank.py CONFIG_JSON RECORDS_FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from harness.core.cell.config import CellConfig
from harness.core.cell.identity import cell_id
from harness.core.run.records import RankRecord
from harness.core.serialization import from_jsonable, loads
from harness.probe.run import run_probe
from harness.runtime.recording.recorder import Recorder


def main() -> None:
    config = from_jsonable(CellConfig, loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    rank = int(os.environ["RANK"])
    place = config.layout.coordinates(rank)
    record = RankRecord(cell=cell_id(config), rank=rank, place=place)
    recorder = Recorder(record, Path(sys.argv[2]) / f"rank-{rank:05d}.json")
    run_probe(config, place, recorder, None)
    recorder.end("completed")


if __name__ == "__main__":
    main()
