"""The contracts of pyproject.toml catch imports that they forbid; `make lint` checks that none is broken."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

FORBIDDEN = {
    "A layer of the launcher imports only layers below it": ("runs/lock.py", "import harness.campaign.judging"),
    "The launcher imports nothing that runs in ranks": ("features/experts/rules.py", "import torch.cuda"),
    "Ranks import nothing of the launcher": ("features/experts/node_routers.py", "import harness.matrix.load"),
    "The oracle imports nothing of the probe": ("oracle/model.py", "from megatron.core import mpu"),
    "Within a folder, imports have no cycles": ("core/cell/layout.py", "import harness.core.cell.config"),
    "Decisions are pure": ("upstreams/skyrl/rules.py", "def f():\n    import subprocess"),
    "pydantic is for the schema of matrices": ("core/run/run_dir.py", "import pydantic"),
    "The launcher's other packages have one importing module each": ("cli/cli.py", "import rich.table"),
}


def test_each_contract_is_broken_by_an_import_that_it_forbids(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "harness", tmp_path / "harness", ignore=shutil.ignore_patterns("__pycache__"))
    for file, source in FORBIDDEN.values():
        with (tmp_path / "harness" / file).open("a", encoding="utf-8") as stream:
            stream.write(f"\n{source}\n")
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache", root / "pyproject.toml"]
    done = subprocess.run(command, cwd=tmp_path, env={"COLUMNS": "200"}, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    assert set(re.findall(r"(?m)^(.*?) BROKEN", done.stdout)) == set(FORBIDDEN)
    assert not re.search(r"(?m) KEPT", done.stdout)
