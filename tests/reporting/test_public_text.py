from __future__ import annotations

import pytest

from harness.reporting.render_issue import public, publish

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
    HOME,
    f"{HOME}/",
    "'/scratch/my project/melinda/train.py'",
    'File "/scratch/my project/melinda/train.py", line 3',
    "{'path': '/scratch/a b/melinda/c d/e'}",
    "/data/team(a)/melinda/x.py",
    "/data/[x]/melinda/y.py",
    "-I/data/{x}/melinda/y",
    "/data/a#1/melinda/x.py",
    "ssh melinda@nid001234",
    "ssh -p 22 melinda@login",
    "melinda@nid001234",
    "scp x melinda@login:/data/x",
    "melinda@login:~/x",
    "melinda@login.uni-melinda.de",
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
        ("128.55.210.7:29500 and 128.55.210.7, 8.8.8.8:53", "HOST and HOST, HOST"),
        ("to 9.1.0.70, address=9.1.0.70", "to HOST, address=HOST"),
        ("cudnn 9.1.0.70, nccl==2.21.5.1, 535.104.05.1", "cudnn 9.1.0.70, nccl==2.21.5.1, 535.104.05.1"),
        ("[fe80::1%eth0]:29500, fe80::1%eth0, [2001:db8::7]:1", "HOST, HOST, HOST"),
        ("2001:0db8:0:1:2:3:4:5 aa:bb:cc:dd:ee:0f ip-10-0-0-5", "HOST HOST HOST"),
        (
            "x[::2] x[1::2] x[a::b] at::Tensor c10::Error 12:34:56",
            "x[::2] x[1::2] x[a::b] at::Tensor c10::Error 12:34:56",
        ),
        ("qs@keys.mean w@x1 a@b", "qs@keys.mean w@x1 a@b"),
        ("'a' or '/' and '/b'", "'a' or '/' and '/b'"),
        ("tp2-pp1/x 0.17.0.1 PATH/TO/Megatron-LM", "tp2-pp1/x 0.17.0.1 PATH/TO/Megatron-LM"),
    ],
)
def test_public_information_is_kept(before: str, after: str) -> None:
    assert public(before) == after


def test_hosts_are_replaced() -> None:
    value = {"where": [f"lost {HOST}", "lost gpu-node-17, not gpu-node-170"], "rank": 3}
    assert publish(value, [HOST]) == {"where": ["lost HOST", "lost HOST, not gpu-node-170"], "rank": 3}
    assert publish("unknown host", ["unknown"]) == "unknown host"
