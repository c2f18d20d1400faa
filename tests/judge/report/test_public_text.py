from __future__ import annotations

import pytest

from harness.judge.report.public_text import public, publish

HOME = "/" + "home/melinda"
HOST = "gpu-node-17.cluster.internal"
PLACES = [
    f"{HOME}/a/b.py",
    f"at:{HOME}/x",
    f"a.py:{HOME}/a/b",
    f"-I{HOME}/include",
    f"--prefix={HOME}/x",
    f"--prefix {HOME}/x",
    f"file://{HOME}/x",
    f"file:{HOME}/x",
    "~/melinda/x",
    "~melinda/x",
    "//nfs/melinda/x",
    f'"{HOME}/x"',
    f"({HOME}/x)",
    f"[{HOME}/x,{HOME}/y]",
    f"PYTHONPATH={HOME}/a:{HOME}/b",
    f"{HOME}/a/../b//c/",
    "ssh://melinda@gpu-node-17/x",
    "https://git.corp.example/melinda/x",
    "melinda@gpu-node-17.cluster.internal",
    "https://melinda:hunter2@github.com/x/y",
]
ENVIRONMENT = f"{HOME}/.cache/venv/lib/python3.12/site-packages"


@pytest.mark.parametrize("place", PLACES)
def test_nothing_of_the_machine_is_kept(place: str) -> None:
    for text in (place, f"before {place} after", f"{place}:12: error", f"a\n{place}\nb"):
        assert "melinda" not in public(text), public(text)
        assert public(public(text)) == public(text)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"{ENVIRONMENT}/megatron/core/utils.py", "megatron/core/utils.py"),
        (f"{HOME}/wt/megatron/training/utils.py:12", "megatron/training/utils.py:12"),
        (f"see {HOME}/log.txt", "see PATH/TO/log.txt"),
        (f"-I{HOME}/include -lm", "-IPATH/TO/include -lm"),
        ("connect to 10.1.2.3:29500 failed", "connect to HOST failed"),
        ("https://github.com/NVIDIA/Megatron-LM", "https://github.com/NVIDIA/Megatron-LM"),
        ("see https://github.com/NVIDIA/Megatron-LM/issues/1.", "see https://github.com/NVIDIA/Megatron-LM/issues/1."),
        ("see https://git.example/a/b, please", "see https://HOST/..., please"),
        ("1/2 of tokens/s, a/b", "1/2 of tokens/s, a/b"),
        ("scores = q@k.transpose(-1, -2) / norm", "scores = q@k.transpose(-1, -2) / norm"),
        ("git@github.com:NVIDIA/Megatron-LM.git", "git@github.com:NVIDIA/Megatron-LM.git"),
        ("tp2-pp1/x 0.17.0.1 PATH/TO/Megatron-LM", "tp2-pp1/x 0.17.0.1 PATH/TO/Megatron-LM"),
    ],
)
def test_public_information_is_kept(before: str, after: str) -> None:
    assert public(before) == after


def test_hosts_are_replaced() -> None:
    value = {"where": [f"lost {HOST}", "lost gpu-node-17, not gpu-node-170"], "rank": 3}
    assert publish(value, [HOST]) == {"where": ["lost HOST", "lost HOST, not gpu-node-170"], "rank": 3}
    assert publish("unknown host", ["unknown"]) == "unknown host"
