"""The worked example of docs/projects.md: slime's packing and loss, in a clone that HARNESS_SLIME_REPO names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.launch.stacks.build import uv_environment
from tests.cli.conftest import only_run
from tests.launch.stacks.test_checkout import git
from tests.plugins.conftest import plugged

CLONE = os.environ.get("HARNESS_SLIME_REPO", "")
pytestmark = [
    pytest.mark.train,
    pytest.mark.skipif(not CLONE, reason="HARNESS_SLIME_REPO does not name a clone of slime"),
]
LOSS, DATA = (f"slime/backends/megatron_utils/{name}.py" for name in ("loss", "data"))
# Tag -> file, a line of it, and what it is replaced by.
BROKEN = {
    "counted": (LOSS, 'for loss_mask in batch["loss_masks"]])', 'for loss_mask in batch["loss_masks"]]) + 1'),
    "unshifted": (LOSS, "tokens[tokens_offset[half][0] : tokens_offset[half][1]]", "tokens[lo:hi]"),
    "offsets": (DATA, "max_seqlen_kv=max_seqlen,", "max_seqlen_kv=max_seqlen - 1,"),
}
MATRIX = """\
name: broken
documents: {mode: plain}
train: {steps: 1}
checks: {canaries: none}
matrix:
  packing: slime
  cp: 2
  stack: [right, counted, unshifted, offsets]
  include: [{stack: right, packing: slime, cp: 1, documents: adversarial}]
stacks:
"""


@pytest.fixture(scope="session")
def slime_site(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slime") / "site"
    uv = [Path(sys.executable).with_name("uv"), "pip", "install", "--quiet", "--no-deps", "--python", sys.executable]
    options = ["--build-constraints", root / "constraints.txt", "--target", folder]
    subprocess.run([*uv, *options, root / "tests" / "plugins" / "slime"], check=True, env=uv_environment())
    return folder


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone with a tag `right`, and one for each thing that is broken on its own."""
    place = tmp_path_factory.mktemp("clone") / "slime"
    git(place.parent, "clone", "--quiet", "--shared", CLONE, str(place))
    git(place, "tag", "right")
    for name, (file, old, new) in BROKEN.items():
        git(place, "checkout", "--quiet", "right")
        text = (place / file).read_text()
        assert text.count(old) == 1, f"{file} of {CLONE} has changed: {old}"
        (place / file).write_text(text.replace(old, new))
        git(place, "commit", "--quiet", "--all", "--message", name)
        git(place, "tag", name)
    git(place, "checkout", "--quiet", "right")
    return place


def test_its_gate_passes(clone: Path, slime_site: Path, tmp_path: Path) -> None:
    done = plugged("run", "gate", "--run-dir", tmp_path / "reports", cwd=clone, site=slime_site)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 PASS" in done.stdout


def test_what_is_broken_is_seen_by_the_check_of_it(clone: Path, slime_site: Path, tmp_path: Path) -> None:
    packages = "{packages: [megatron-core==0.19.2, transformers==5.8.1]}"
    layers = (
        f"  {name}: [{{checkout: {clone}, ref: {name}, package: slime}}, {packages}]" for name in ["right", *BROKEN]
    )
    (tmp_path / "broken.yaml").write_text(MATRIX + "\n".join(layers))
    done = plugged("run", "broken.yaml", cwd=tmp_path, site=slime_site)
    assert done.returncode == 1, done.stdout + done.stderr
    report: Any = json.loads((only_run(tmp_path / "reports") / "report.json").read_text())
    cells = [cell for cell in report["cells"] if cell["role"] == "cell"]
    seen = {
        (cell["axes"]["stack"], cell["axes"]["cp"]): {finding["check"] for finding in cell["findings"]}
        for cell in cells
    }
    assert seen["right", 2] == set()
    assert "token_count" in seen["counted", 2]
    assert "tokens_placed" in seen["unshifted", 2]
    assert "params_agree_plan" in seen["offsets", 2]
    assert "token_count" in seen["right", 1]  # a document of which no token counts has one: torch.clamp_min
