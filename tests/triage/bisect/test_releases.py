"""Which release of megatron-core fixed `--sft` on later stages. Shares environments with matrices/test_releases.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.serialization import from_jsonable, loads
from harness.reporting.bisection import Bisection
from tests.cli.conftest import harness

pytestmark = pytest.mark.train
LIMIT_S = 1800  # environments are made when this machine has none


def test_sft_over_a_pipeline_is_fixed_in_0_18_0(root: Path, tmp_path: Path) -> None:
    ends = ["--package", "megatron-core", "--bad", "0.17.1", "--good", "0.19.2", "--find", "fixed"]
    command = [
        "bisect",
        str(root / "matrices" / "releases.yaml"),
        *ends,
        "--only",
        "tp2-pp4-cp1-sft",
        "--fresh",
        "--no-shrink",
    ]
    done = harness(*command, cwd=tmp_path, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\nfirst good release of megatron-core: 0.18.0\n  previous release 0.17.1 is bad\n" in done.stdout
    (file,) = tmp_path.glob("reports/bisect-releases-*/result.json")
    found = from_jsonable(Bisection, loads(file.read_text()))
    assert found.evidence is not None
    assert (found.evidence.name, found.cells) == ("0.17.1", ("tp2-pp4-cp1-sft",))
    (absent,) = [item for item in found.findings if item.check == "params_present"]
    assert (absent.where["stages"], absent.where["ranks"]) == ([3], [7])
    assert [point.name for point in found.points] == sorted(point.name for point in found.points)
    assert len(found.points) <= 5


@pytest.mark.parametrize(
    ("good", "bad", "find", "said"),
    [
        ("0.19.2", "0.17.1", "introduced", "is older than --good"),
        ("0.0.1", "0.17.1", "introduced", "0.0.1 is not a release that uv finds in its index"),
        ("0.17.1", "0.17.1", "introduced", "names the same release"),
    ],
)
def test_releases_that_cannot_be_meant_are_bad_input(
    good: str, bad: str, find: str, said: str, root: Path, tmp_path: Path
) -> None:
    ends = ["--package", "megatron-core", "--good", good, "--bad", bad, "--find", find]
    done = harness("bisect", root / "matrices" / "releases.yaml", *ends, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in " ".join(done.stderr.split())
