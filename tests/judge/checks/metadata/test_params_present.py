from __future__ import annotations

from harness.core.run.records import BatchSeen, LayerSeen
from harness.judge.diagnosis import fault_classes
from tests.judge.simulator import at, config_of, drop_params, evidence_for, place_of, the_only_finding


def test_middle_stages_without_params_are_named() -> None:
    evidence = evidence_for(config_of("sft", tp=2, pp=4))
    for stage in (1, 2):
        for record in at(evidence, pp=stage):
            drop_params(record)
    finding = the_only_finding(evidence, "params_present")
    assert place_of(finding, "stage", "tp", "cp", "micro_batch", "leg") == (1, 0, 0, 0, "metadata")
    assert finding.where["stages"] == [1, 2]
    assert finding.where["layers"] == [2, 3]
    assert finding.where["ranks"] == [2, 3, 4, 5]
    assert finding.fault_class == fault_classes.MIDDLE_STAGES
    assert "stage 1, tp 0" in finding.message


def test_tp_ranks_above_0_without_params_on_the_last_stage() -> None:
    evidence = evidence_for(config_of("sft", tp=2, pp=2))
    for record in at(evidence, pp=1, tp=1):
        drop_params(record)
    finding = the_only_finding(evidence, "params_present")
    assert place_of(finding, "stage", "tp", "rank") == (1, 1, 3)
    assert finding.fault_class == fault_classes.LAST_STAGE


def test_tp_ranks_above_0_of_every_stage() -> None:
    evidence = evidence_for(config_of("sft", tp=2, pp=2))
    for record in at(evidence, tp=1):
        drop_params(record)
    finding = the_only_finding(evidence, "params_present")
    assert place_of(finding, "stage", "tp", "rank") == (0, 1, 1)
    assert finding.fault_class == fault_classes.TP_RANKS


def test_params_lost_inside_the_model_on_one_layer_of_a_later_chunk() -> None:
    evidence = evidence_for(config_of(pp=2, vpp=2))
    [record] = at(evidence, pp=1)
    for layer in record.layers:
        if layer.chunk == 1 and layer.micro_batch == 1 and layer.step == 1:
            layer.params = None
    finding = the_only_finding(evidence, "params_present")
    assert place_of(finding, "stage", "chunk", "layer", "micro_batch", "step") == (1, 1, 4, 1, 1)
    assert finding.where["places"] == 1
    assert finding.fault_class == fault_classes.LOST_IN_MODEL


def test_a_layer_that_was_never_recorded_is_missing() -> None:
    evidence = evidence_for(config_of(pp=2))
    [record] = at(evidence, pp=1)
    record.layers = [layer for layer in record.layers if layer.layer != 4]
    finding = the_only_finding(evidence, "params_present")
    assert finding.where["layers"] == [4]


def test_a_batch_that_was_never_recorded_is_missing() -> None:
    evidence = evidence_for(config_of(pp=2))
    [record] = at(evidence, pp=0)
    record.batches = record.batches[1:]
    finding = the_only_finding(evidence, "params_present")
    assert place_of(finding, "leg", "micro_batch") == ("metadata", 0)


def test_later_chunks_of_an_interleaved_stage() -> None:
    evidence = evidence_for(config_of(pp=2, vpp=2))
    for record in evidence.records.values():
        entries: list[BatchSeen | LayerSeen] = [*record.batches, *record.layers]
        for seen in entries:
            if seen.chunk == 1:
                seen.params = None
    finding = the_only_finding(evidence, "params_present")
    assert place_of(finding, "stage", "chunk") == (0, 1)
    assert finding.fault_class == fault_classes.LATER_CHUNKS
