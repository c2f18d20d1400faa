"""Every name of upstream that the harness looks up, as its source shows, renamed in turn."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import sys
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import megatron.core
import megatron.core.packed_seq_params as upstream
import pytest
import torch
from megatron.core.model_parallel_config import ModelParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.transformer.spec_utils import ModuleSpec, build_module
from megatron.core.transformer.transformer_config import TransformerConfig

import harness
from harness.core.outcomes import Missing, Rejection
from harness.core.packing.fields import ALWAYS_READ
from harness.core.run.records import Failure, Progress
from harness.core.upstream import code_packages
from harness.judge.failures.classification import blame_of
from harness.probe.model.norm import Norm
from harness.probe.model.parts import put
from harness.runtime import refusals
from harness.runtime.recording.errors import UnknownNameError, absent_name, frames_of, lacking_name
from harness.upstreams import node_wrappers
from harness.upstreams.node_base import mask_and_loss
from tests.runtime.conftest import config

FOLDER = Path(str(harness.__file__)).parent
BRIDGE = "upstreams/megatron_bridge"  # count as code under test
WRAPPED = {  # folder -> a module that its trainer wraps
    "upstreams/megatron_lm": "megatron.training.training",
    BRIDGE: "megatron.bridge.training.train",
    "upstreams/skyrl": "skyrl.backends.skyrl_train",
}


class LookUp(NamedTuple):
    file: str  # below harness
    module: str
    name: str  # empty: the module is imported


def test_all_kinds_of_look_ups_are_found() -> None:
    assert {
        LookUp("probe/built.py", "megatron.core.packed_seq_params", ""),
        LookUp("upstreams/builtin/node_reference.py", "megatron.core.packed_seq_params", "PackedSeqParams"),
        LookUp("upstreams/megatron_lm/node_sft_wheel.py", "megatron.core.utils", "get_batch_on_this_tp_rank"),
        LookUp("upstreams/megatron_lm/node_sft_checkout.py", "megatron.training.arguments", "parse_args"),
        LookUp("probe/model/gpt.py", "megatron.core.parallel_state", "initialize_model_parallel"),
        LookUp("upstreams/megatron_lm/node_attach.py", "megatron.training.training", "train_step"),
        LookUp(f"{BRIDGE}/node_attach.py", "megatron.bridge.training.train", "training_log"),
        LookUp(f"{BRIDGE}/node_files.py", "megatron.bridge.data.builders.gpt_sft", "GPTSFTDatasetBuilder"),
    } <= set(LOOK_UPS)


def look_ups() -> Iterator[LookUp]:
    from harness.probe.built import WARM_MODULES

    yield from (LookUp("probe/built.py", name, "") for name in WARM_MODULES if under_test(name))
    for file in sorted(FOLDER.rglob("*.py")):
        path = str(file.relative_to(FOLDER))
        if not path.startswith("faults/") and not path.endswith("node_faults.py"):  # they count as code under test
            for module, name in looked_up(ast.parse(file.read_text()), WRAPPED.get(path.rpartition("/")[0], "")):
                yield LookUp(path, module, name)


def looked_up(tree: ast.AST, wrapped: str) -> Iterator[tuple[str, str]]:
    """(module, name) of imports, of attributes of imported modules, and of what a trainer's module wraps."""
    everywhere = dict(aliases(node for node in getattr(tree, "body", [])))
    for scope in [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))]:
        known = everywhere if scope is tree else {**everywhere, **dict(aliases(ast.walk(scope)))}
        parameters = {one.arg for one in scope.args.args} if isinstance(scope, ast.FunctionDef) else set()
        for node in ast.walk(scope):
            if isinstance(node, ast.ImportFrom) and under_test(node.module or ""):
                yield from ((str(node.module), one.name) for one in node.names)
            if isinstance(node, ast.Import):
                yield from ((one.name, "") for one in node.names if under_test(one.name))
            if module := imported(node):
                yield module, ""
            if isinstance(node, ast.Attribute) and not node.attr.startswith("__"):
                owner = ast.unparse(node.value)
                yield from [(known[owner], node.attr)] if owner in known and owner not in parameters else []
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "self.wrap":
                yield wrapped, ast.literal_eval(node.args[1])


def aliases(nodes: Any) -> Iterator[tuple[str, str]]:
    """(name in the harness, module of upstream)."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((one.asname, one.name) for one in node.names if one.asname and under_test(one.name))
        if isinstance(node, ast.ImportFrom) and node.module == "megatron.core":
            below = [(one.name, f"megatron.core.{one.name}") for one in node.names]
            yield from ((name, module) for name, module in below if importlib.util.find_spec(module))
        if isinstance(node, ast.Assign | ast.AnnAssign) and (module := imported(node.value)):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            yield ast.unparse(target), module


def imported(node: ast.AST | None) -> str:
    """The module of importlib.import_module("module")."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
        module = getattr(node.args[0], "value", "")
        return module if isinstance(module, str) and under_test(module) else ""
    return ""


def under_test(module: str) -> bool:
    top, _, below = module.partition(".")
    return bool(below) and top in code_packages()  # a project that is not there at all is a gap in the environment


LOOK_UPS = sorted(set(look_ups()))


@pytest.mark.parametrize("one", LOOK_UPS, ids=lambda one: f"{one.file}:{one.module}:{one.name}")
def test_a_name_that_the_harness_looks_up_is_named_when_it_is_absent(
    one: LookUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = one.module.split(".")
    for count in range(1, len(parts) + 1):
        made: Any = ModuleType(".".join(parts[:count]))
        made.__path__ = []
        monkeypatch.setitem(sys.modules, made.__name__, made)
    monkeypatch.delitem(sys.modules, f"{one.module}.{one.name}" if one.name else one.module, raising=False)
    for statement in (f"from {one.module} import {one.name}", f"import {one.module} as m; m.{one.name}"):
        error = raised(one.file, statement if one.name else f"import {one.module}")
        said = absent_name(error)
        assert f" has no {'.'.join(filter(None, (one.module, one.name)))}; harness/{one.file} needs it (" in said
        verdict = lacking_name(error)
        assert verdict is not None and verdict.rejection is not None and "may_reject" in verdict.reason
        failure = Failure(
            type=type(error).__name__,
            message=str(error),
            traceback="",
            time=0.0,
            frames=frames_of(error),
            absent=said,
        )
        assert blame_of(failure, Progress(leg="training"))[:2] == blame_of(failure, Progress())[:2]
        assert blame_of(failure, Progress()).pattern.name == "absent-name"


def raised(file: str, statement: str, **names: Any) -> Exception:
    """What a statement raises as if it were in a file of the harness."""
    with pytest.raises(Exception) as caught:
        exec(compile(statement, str(FOLDER / file), "exec"), {"__doc__": "Why it is needed. More.", **names})
    return caught.value


def test_a_trainer_s_function_is_named_by_what_wraps_it() -> None:
    trainer = ModuleType("megatron.training.training")
    with pytest.raises(AttributeError) as caught:
        node_wrappers.Wrappers.wrap(object.__new__(node_wrappers.Wrappers), trainer, "train_step", print)
    purpose = "Wrappers around functions of an upstream trainer, from which a rank's record is written"
    assert f"training.train_step; harness/upstreams/node_wrappers.py needs it ({purpose})" in absent_name(caught.value)


def test_attributes_of_objects_and_arguments_are_names_too() -> None:
    params = upstream.PackedSeqParams()
    told = absent_name(raised("upstreams/verl/node_data_path.py", "params.longest", params=params))
    assert (
        "has no megatron.core.packed_seq_params.PackedSeqParams.longest; harness/upstreams/verl/node_data_path.py"
        in told
    )
    told = absent_name(raised("upstreams/verl/node_data_path.py", "make(longest=1)", make=upstream.PackedSeqParams))
    assert "has no argument longest of megatron.core.packed_seq_params.PackedSeqParams; " in told
    assert "(Why it is needed)" in told


def test_an_error_that_upstream_raises_again_in_other_words_is_still_that_of_the_look_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(ModelParallelConfig, "sequence_parallel")
    with pytest.raises(AttributeError) as caught:
        build_module(ModuleSpec(module=Norm), config=object.__new__(TransformerConfig), hidden_size=8)
    assert "when instantiating Norm" in str(caught.value)
    assert " has no megatron.core.transformer.transformer_config.TransformerConfig.sequence_parallel; " in absent_name(
        caught.value
    )


@pytest.mark.parametrize("bound", [((1,), {}), ((), {"loss_mask": 1})], ids=["by-place", "by-name"])
def test_the_mask_that_upstream_binds_to_its_loss_may_be_named(bound: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    by_place, named = bound
    loss = (
        (lambda loss_mask, losses: loss_mask - losses) if by_place else (lambda losses, loss_mask: loss_mask - losses)
    )
    mask, of_mask = mask_and_loss(partial(loss, *by_place, **named))
    assert mask == 1 and of_mask(5, 2) == 3  # type: ignore[comparison-overlap, arg-type]


def test_a_loss_without_its_mask_is_a_name_that_is_absent() -> None:
    with pytest.raises(UnknownNameError) as caught:
        mask_and_loss(partial(print, weights=1))
    assert absent_name(caught.value) == "upstream's forward_step binds weights to its loss function, and no loss_mask"


def test_an_argument_that_training_log_no_longer_has_is_named() -> None:
    def training_log(losses: Any) -> None: ...

    with pytest.raises(UnknownNameError) as caught:
        node_wrappers.Arguments(training_log, {})["loss_dict"]
    assert "training_log was called without loss_dict, which the record of the step needs" in absent_name(caught.value)


def test_a_loss_that_upstream_reports_by_another_name_is_named() -> None:
    assert node_wrappers._mean_loss({}) is None
    assert node_wrappers._mean_loss({"lm loss": 2.0, "balance": 1.0}) == 2.0
    with pytest.raises(UnknownNameError) as caught:
        node_wrappers._mean_loss({"language model loss": 2.0})
    assert absent_name(caught.value) == "upstream reports 'language model loss', and no 'lm loss'"


@pytest.mark.parametrize(
    ("call", "function"),
    [
        ("wrapper.train_step(forward_step_func=1)", "Wrappers.train_step() missing"),
        ("wrapper.forward_step(1, 2, data_iterator=3)", "Wrappers.forward_step() missing"),
        ("wrapper.print_line(line=1)", "Wrappers.print_line() got an unexpected keyword argument 'line'"),
    ],
)
def test_upstream_may_call_a_wrapper_otherwise(call: str, function: str) -> None:
    wrapper = object.__new__(node_wrappers.Wrappers)
    error = raised("../../site-packages/megatron/training/training.py", call, wrapper=wrapper)
    told = absent_name(error)
    assert told.startswith(
        "upstream calls harness/upstreams/node_wrappers.py with other arguments than the releases that it knows"
    )
    assert function in told
    assert absent_name(raised("probe/run.py", call, wrapper=wrapper)) == ""  # the harness's own mistake


@pytest.mark.parametrize(
    ("statement", "what"),
    [("weight.main_grad", "attribute main_grad of parameters"), ("args.seen", "argument seen of its command line")],
)
def test_what_upstream_sets_on_an_object_of_others_is_a_name_too(statement: str, what: str) -> None:
    told = absent_name(
        raised("probe/updates.py", statement, weight=torch.nn.Parameter(torch.ones(1)), args=Namespace())
    )
    assert f" has no {what}; harness/probe/updates.py needs it" in told


def test_a_loss_that_is_no_partial_is_a_name_that_is_absent() -> None:
    with pytest.raises(UnknownNameError, match="returns a function as its loss"):
        mask_and_loss(lambda losses: losses)


def test_a_part_of_a_layer_that_upstream_does_not_have_is_not_put_there() -> None:
    with pytest.raises(AttributeError) as caught:
        put(ModuleSpec(module=Norm), core_attention=1)
    assert " has no megatron.core.transformer.spec_utils.ModuleSpec.core_attention; " in absent_name(caught.value)


def test_a_model_that_takes_packed_params_by_another_name_is_missing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GPTModel, "forward", lambda self, packed_params: None)
    found = refusals.unavailable_fields(config("unpacked"))
    assert isinstance(found, Rejection) and "has no argument packed_seq_params of GPTModel.forward" in found.reason


TRAINED = ["input_ids", "position_ids", "labels", "loss_mask"]


@pytest.mark.parametrize("name", TRAINED)
def test_a_trainer_needs_every_argument_of_the_model_by_its_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [
        other for other in ("input_ids", "position_ids", "labels", "loss_mask", "packed_seq_params") if other != name
    ]
    monkeypatch.setattr(GPTModel, "forward", eval(f"lambda self, {', '.join(given)}: None"))
    found = refusals.unavailable_fields(dataclasses.replace(config("sft"), trainer="megatron"))
    assert isinstance(found, Rejection) and f"has no argument {name} of GPTModel.forward" in found.reason
    assert refusals.unavailable_fields(config("sft")) is None


@pytest.mark.parametrize(
    ("file", "statement"),
    [
        ("upstreams/verl/node_data_path.py", "import no_such_package"),  # a gap in the environment
        ("upstreams/verl/node_data_path.py", "import nemo_rl.algorithms"),  # not installed
        ("upstreams/verl/node_data_path.py", "None.name"),
        ("upstreams/verl/node_data_path.py", "params.name"),  # an object of the harness
        ("upstreams/verl/node_data_path.py", "{}['name']"),
        ("../../site-packages/megatron/core/utils.py", "import megatron.core.renamed"),  # upstream's own
    ],
)
def test_other_errors_are_no_absent_names(file: str, statement: str) -> None:
    error = raised(file, statement, params=config())
    assert absent_name(error) == "" and lacking_name(error) is None


FIELDS = [*ALWAYS_READ, *refusals._SET]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("checkout", [True, False])
def test_a_field_of_packed_seq_params_that_is_absent_is_named(
    field: str, checkout: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    others = [name for name in FIELDS if name != field]
    monkeypatch.setattr(upstream, "PackedSeqParams", dataclasses.make_dataclass("PackedSeqParams", others))
    monkeypatch.setattr("megatron.core.package_info.MINOR", 20)
    if checkout:
        monkeypatch.setattr(megatron.core, "__file__", str(tmp_path / "megatron" / "core" / "__init__.py"))
    found = refusals.unavailable_fields(config())
    assert isinstance(found, Missing if checkout else Rejection)
    assert f"has no megatron.core.packed_seq_params.PackedSeqParams.{field}" in found.reason
    assert refusals.unavailable_fields(config("unpacked")) is None
    assert (refusals.unavailable_fields(config("sft")) is None) == (field in refusals._SET)


def test_a_field_may_be_absent_from_commits_before_the_release_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "PackedSeqParams", dataclasses.make_dataclass("PackedSeqParams", ALWAYS_READ))
    wanted = partial(refusals.unavailable_fields, config())
    monkeypatch.setattr("megatron.core.package_info.MINOR", 17)
    assert wanted() is None
    monkeypatch.setattr("megatron.core.package_info.MINOR", 18)
    assert "total_tokens" in str(wanted()) and "pad_between_seqs" not in str(wanted())
