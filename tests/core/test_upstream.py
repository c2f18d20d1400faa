from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.upstream import (
    CODE,
    HARNESS,
    KERNEL,
    UNOWNED,
    deciding,
    distribution_of,
    distributions,
    frame_text,
    heads,
    owner_of,
    why_unsupported,
)
from harness.judge.diagnosis.known_issues import KNOWN_ISSUES


@pytest.mark.parametrize(
    ("module", "distribution"),
    [("megatron.core", "megatron-core"), ("skyrl_train", "skyrl-train"), ("torch", "torch"), ("a_b", "a-b")],
)
def test_a_module_belongs_to_its_distribution(module: str, distribution: str) -> None:
    assert distribution_of(module) == distribution


def test_every_module_with_a_version_is_recorded_once() -> None:
    assert len(set(heads())) == len(heads())
    assert {*distributions().values(), "megatron.training", "pretrain_gpt"} == set(heads())


def test_known_issues_name_distributions_whose_version_is_recorded() -> None:
    assert {issue.package for issue in KNOWN_ISSUES} <= set(distributions())


@pytest.mark.parametrize(
    ("version", "supported"), [((0, 10, 0), False), ((0, 11, 2), False), ((0, 13, 0), True), ((1, 0, 0), True)]
)
def test_a_release_below_what_is_supported_is_named_with_its_version(
    version: tuple[int, int, int], supported: bool, tmp_path: Path
) -> None:
    major, minor, patch = version
    (tmp_path / "package_info.py").write_text(
        f"MAJOR = {major}\nMINOR = {minor}\nPATCH = {patch}\nPRE_RELEASE = 'rc1'\n"
    )
    why = f"{tmp_path} is megatron-core 0.{minor}.{patch}, and the harness supports 0.13 and later"
    assert why_unsupported(tmp_path) == ("" if supported else why)


def test_a_release_that_does_not_say_its_version_is_tried(tmp_path: Path) -> None:
    assert why_unsupported(tmp_path) == ""


@pytest.mark.parametrize(
    ("frame", "owner"),
    [
        ("megatron/core/models/gpt/gpt_model.py:90 in forward", CODE),
        ("megatron/bridge/training/gpt_step.py:12 in forward_step", CODE),
        ("skyrl_train/distributed/megatron/megatron_utils.py:7 in preprocess_packed_seqs", CODE),
        ("transformer_engine/pytorch/attention.py:7 in forward", CODE),
        ("pretrain_gpt.py:120 in get_batch", CODE),
        ("./train_rl.py:120 in forward_step", CODE),
        ("harness/faults/node_endings.py:35 in on_step", CODE),
        ("harness/upstreams/megatron_lm/node_sft_wheel.py:90 in _of_iterator", CODE),
        ("harness/upstreams/megatron_lm/node_sft_wheel.py:40 in __init__", HARNESS),
        ("harness/probe/hooks/layers.py:41 in _before_output", HARNESS),
        ("harness/runtime/device/cpu_stubs.py:85 in _thd_get_partitioned_indices", KERNEL),
        ("harness/runtime/device/cpu_factories.py:46 in on_cpu", UNOWNED),
        ("harness/runtime/device/gloo_stubs.py:50 in _send_by_host", UNOWNED),
        ("harness/features/attention/node_reference.py:80 in _attend", KERNEL),
        ("torch/nn/modules/module.py:1751 in _wrapped_call_impl", UNOWNED),
        ("threading.py:355 in wait", UNOWNED),
        ("megatron_like/core.py:1 in f", UNOWNED),
    ],
)
def test_every_frame_has_its_owner(frame: str, owner: str) -> None:
    assert owner_of(frame) == owner


def test_the_innermost_owned_frame_decides() -> None:
    ours, upstream = "harness/probe/run.py:9 in f", "megatron/core/utils.py:3 in g"
    library = "torch/functional.py:4 in h"
    assert deciding([ours, upstream, library]) == (CODE, upstream)
    assert deciding([upstream, ours, library]) == (HARNESS, ours)
    assert deciding([library]) == (UNOWNED, "")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("/env/lib/python3.12/site-packages/megatron/core/utils.py", "megatron/core/utils.py:3 in f"),
        ("/checkouts/abc/megatron/core/utils.py", "megatron/core/utils.py:3 in f"),
        ("/checkouts/abc/nested/megatron/core/utils.py", "megatron/core/utils.py:3 in f"),
        ("/elsewhere/script.py", "script.py:3 in f"),
        ("<frozen runpy>", "<frozen runpy>:3 in f"),
    ],
)
def test_frames_are_relative_to_the_folder_of_their_package(file: str, text: str) -> None:
    assert frame_text(file, 3, "f", ["", "/checkouts/abc", "/checkouts/abc/nested/"]) == text


@pytest.mark.parametrize("test", ["_require_ascending", "_require_tensor"])
def test_offsets_that_no_kernel_takes_are_blamed_on_the_caller_of_the_replacement(test: str) -> None:
    caller = "megatron/core/utils.py:7 in get_thd_batch_on_this_cp_rank"
    stub = "harness/runtime/device/cpu_stubs.py:85 in _thd_get_partitioned_indices"
    assert deciding([caller, stub]) == (KERNEL, stub)
    assert deciding([caller, stub, f"harness/runtime/device/cpu_stubs.py:96 in {test}"]) == (CODE, caller)
