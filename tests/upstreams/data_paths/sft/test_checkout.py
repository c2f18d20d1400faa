"""`sft` with a fake checkout; real checkouts: tests/matrices/test_checkouts.py."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import megatron.core
import pytest
from megatron.core.utils import get_attr_wrapped_model

from harness.core.cell.model import ModelConfig
from harness.core.outcomes import Missing
from harness.features.prediction.config import MtpConfig
from harness.runtime.recording.errors import UnknownNameError, absent_name
from harness.upstreams.megatron_lm import node_sft as sft
from harness.upstreams.megatron_lm import node_sft_checkout as sft_checkout
from harness.upstreams.megatron_lm.node_trainer import MegatronTrainer
from tests.runtime.conftest import config


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout in tmp_path from which megatron.core seems to come; its pretrain_gpt.py does nothing."""
    (tmp_path / "pretrain_gpt.py").write_text("def forward_step(): ...\n")
    monkeypatch.setattr(megatron.core, "__file__", str(tmp_path / "megatron" / "core" / "__init__.py"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "pretrain_gpt", None)  # so that the import in the test is undone, too
    monkeypatch.delitem(sys.modules, "pretrain_gpt")
    return tmp_path


def test_an_installed_megatron_core_is_no_checkout() -> None:
    assert sft_checkout.find() is None


def test_a_checkout_serves_sft_by_its_own_script(checkout: Path) -> None:
    assert sft_checkout.find() == checkout
    assert sft.SftPath.unavailable(config("sft")) is None
    assert Path(str(sys.modules["pretrain_gpt"].__file__)).parent == checkout


@pytest.mark.parametrize("trainer", ["harness", "megatron"])
def test_without_its_script_a_checkout_is_served_by_nothing_else(checkout: Path, trainer: str) -> None:
    (checkout / "pretrain_gpt.py").rename(checkout / "pretrain_language.py")
    cell = replace(config("sft"), trainer=trainer)
    for found in (sft.SftPath.unavailable(cell), MegatronTrainer.unavailable(cell)):
        assert isinstance(found, Missing)
        assert f"has no pretrain_gpt.py (rule stack.data_path), looked for in the checkout {checkout}" in found.reason


@pytest.mark.parametrize(
    ("minor", "trainer", "what"),
    [
        (15, "harness", "packing: sft supports 0.16 and later"),
        (16, "megatron", "trainer: megatron supports 0.17 and later"),
    ],
)
def test_a_checkout_that_is_too_old_is_named_with_its_version(
    checkout: Path, minor: int, trainer: str, what: str
) -> None:
    info = checkout / "megatron" / "core" / "package_info.py"
    info.parent.mkdir(parents=True)
    cell = replace(config("sft"), trainer=trainer)
    for number, missing in ((minor, True), (minor + 1, False)):
        info.write_text(f"MAJOR = 0\nMINOR = {number}\nPATCH = 1\n")
        found = sft_checkout.no_script(cell)
        assert isinstance(found, Missing) == missing
        if found:
            assert f"is megatron-core 0.{minor}.1, and {what}" in found.reason
            assert "may_reject" in found.reason


def test_a_script_without_its_function_is_missing(checkout: Path) -> None:
    (checkout / "pretrain_gpt.py").write_text("def forward(): ...\n")
    found = sft.SftPath.unavailable(config("sft"))
    assert isinstance(found, Missing)
    assert (
        f"has no pretrain_gpt.forward_step (rule stack.data_path), looked for in the checkout {checkout}"
        in found.reason
    )


def test_a_checkout_whose_script_does_not_import_is_missing(checkout: Path) -> None:
    (checkout / "pretrain_gpt.py").write_text("import no_such_package")
    found = sft.SftPath.unavailable(config("sft"))
    assert isinstance(found, Missing)
    assert "No module named 'no_such_package'" in found.reason


def test_a_script_from_elsewhere_is_missing(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = checkout / "other"
    other.mkdir()
    (other / "pretrain_gpt.py").write_text("")
    monkeypatch.syspath_prepend(other)
    found = sft.SftPath.unavailable(config("sft"))
    assert isinstance(found, Missing)
    assert f"comes from {other}" in found.reason


def test_the_command_line_names_the_layout_and_is_restored() -> None:
    flags = sft_checkout.model_flags(config("sft", tp=2, pp=2, cp=2, vpp=2), {})
    assert {"--sft", "--sequence-parallel", "--num-virtual-stages-per-pipeline-rank=2"} <= set(flags)
    assert {"--tensor-model-parallel-size=2", "--context-parallel-size=2", "--seq-length=64"} <= set(flags)
    assert not any("mtp" in flag for flag in flags)
    predicts = replace(config("sft", pp=2), model=ModelConfig(mtp=MtpConfig(layers=2, loss_factor=0.5)))
    assert {"--mtp-num-layers=2", "--mtp-loss-scaling-factor=0.5"} <= set(sft_checkout.model_flags(predicts, {}))
    kept = sys.argv
    with sft_checkout.command_line(flags):
        assert sys.argv == ["pretrain_gpt.py", *flags]
    assert sys.argv is kept


def test_a_name_that_the_script_reads_of_the_model_and_the_stub_lacks_is_no_failure_of_upstream() -> None:
    """As in a fork that has renamed vp_stage."""
    path = object.__new__(sft_checkout.Checkout)
    path.context = SimpleNamespace(config=config("sft"))  # type: ignore[assignment]
    path.upstream = SimpleNamespace(forward_step=lambda _, model: get_attr_wrapped_model(model, "virtual_stage"))
    with pytest.raises(UnknownNameError) as caught:
        path.batch(None, 0)
    said = "pretrain_gpt.forward_step reads virtual_stage of the model, and the harness's stub of it"
    assert absent_name(caught.value).startswith(said) and "has only vp_stage" in str(caught.value)
    path.upstream = SimpleNamespace(forward_step=lambda _, model: getattr(model, "module", None) or {}["labels"])
    with pytest.raises(KeyError):
        path.batch(None, 0)


def test_a_forward_step_that_passes_no_packed_params_hands_over_none() -> None:
    """As before core_v0.16, or in a fork that has lost them: the metadata lane finds it."""

    def forward_step(iterator: Any, model: Any) -> Any:
        return model("tokens", "positions", None, labels="labels"), partial(print, "mask")

    path = object.__new__(sft_checkout.Checkout)
    path.context = SimpleNamespace(config=config("sft"))  # type: ignore[assignment]
    path.upstream = SimpleNamespace(forward_step=forward_step)
    batch = path.batch(None, 0)
    assert (batch.tokens, batch.position_ids, batch.labels) == ("tokens", "positions", "labels")
    assert (batch.loss_mask, batch.params) == ("mask", None)


def test_an_argument_of_the_model_that_no_check_reads_is_named() -> None:
    path = object.__new__(sft_checkout.Checkout)
    path.context = SimpleNamespace(config=config("sft"))  # type: ignore[assignment]

    def forward_step(iterator: Any, model: Any) -> Any:
        return model("tokens", None, "a mask", labels=None, new_argument=True), partial(print, "mask")

    path.upstream = SimpleNamespace(forward_step=forward_step)
    assert path.batch(None, 0).not_read == ("attention_mask", "new_argument")


def test_all_packages_that_upstreams_trainer_needs_are_named_at_once(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.upstreams.megatron_lm.node_trainer.is_installed", lambda name: name == "psutil")
    missing = MegatronTrainer.unavailable(replace(config("sft"), trainer="megatron"))
    assert isinstance(missing, Missing) and missing.reason.startswith("datasets, transformers: not in this stack")
