from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import torch
from megatron.core.packed_seq_params import PackedSeqParams

from harness.core.cell.layout import Coordinates
from harness.core.run.records import LayerSeen, RankRecord
from harness.core.run.run_dir import RunDir, write_atomic
from harness.core.run.run_plan import sealed_text
from harness.core.serialization import from_jsonable, loads
from harness.runtime.recording.recorder import Recorder, last_progress, progress_file
from tests.judge.simulator import config_of, run_of
from tests.runtime.fake_gpu import OnGpu, on_gpu


def _recorder(path: Path) -> Recorder:
    record = RankRecord(cell="cell", rank=0, place=Coordinates(tp=0, cp=0, dp=0, pp=0))
    return Recorder(record, path / "ranks" / "rank-00000.json")


def _read(recorder: Recorder) -> RankRecord:
    return from_jsonable(RankRecord, loads(recorder.path.read_text()))


def test_a_flush_writes_a_complete_record_with_the_progress(tmp_path: Path) -> None:
    recorder = _recorder(tmp_path)
    recorder.progress("training", 1, 3, "forward")
    recorder.flush()
    record = _read(recorder)
    assert (record.ended, record.progress.step, record.progress.micro_batch) == ("running", 1, 3)
    assert not list(recorder.path.parent.glob("*.tmp"))


def test_times_of_parts_follow_the_last_progress_and_leave_out_the_writing(tmp_path: Path) -> None:
    recorder = _recorder(tmp_path)
    recorder.lap("start")
    recorder.progress("end", 2, 0, "done")
    recorder.flush()
    recorder.lap("end")
    recorder.end("completed")
    assert last_progress(recorder.path) == recorder.record.progress
    laps = loads(progress_file(recorder.path).read_text().splitlines()[1])
    assert laps.keys() == {"start", "records", "end"}
    assert laps["records"]["time_s"] > 0
    assert "laps" not in recorder.path.read_text()


def test_a_record_names_the_run_and_the_attempt_that_it_was_written_to(tmp_path: Path) -> None:
    plan, _ = run_of([config_of("sft")])
    run = RunDir(tmp_path / "moved")
    write_atomic(run.plan, sealed_text(plan))
    record = RankRecord(cell="cell", rank=0, place=Coordinates(tp=0, cp=0, dp=0, pp=0))
    recorder = Recorder(record, run.attempt("cell", 3).record(0))
    recorder.flush()
    written = _read(recorder)
    assert (written.run_id, written.attempt) == (plan.run_id, 3)


def test_a_record_outside_a_run_names_none(tmp_path: Path) -> None:
    recorder = _recorder(tmp_path)
    recorder.flush()
    assert (_read(recorder).run_id, _read(recorder).attempt) == ("", 0)


def test_a_failure_keeps_type_message_and_traceback(tmp_path: Path) -> None:
    recorder = _recorder(tmp_path)
    try:
        torch.zeros(2) + torch.zeros(3)
    except RuntimeError as error:
        recorder.fail(error)
    failure = _read(recorder).failure
    assert failure is not None
    assert failure.type == "RuntimeError"
    assert "test_recorder.py" in failure.traceback
    assert _read(recorder).ended == "raised"


def test_params_are_recorded_by_value_and_each_value_once(tmp_path: Path) -> None:
    recorder = _recorder(tmp_path)

    def params(longest: object) -> PackedSeqParams:
        offsets = torch.tensor([0, 3, 8], dtype=torch.int32)
        return PackedSeqParams(qkv_format="thd", cu_seqlens_q=offsets, cu_seqlens_kv=offsets, max_seqlen_q=longest)

    assert recorder.params(None) is None
    assert [recorder.params(params(5)), recorder.params(params(5)), recorder.params(params(torch.tensor(5)))] == [
        0,
        0,
        1,
    ]
    first, second = recorder.record.packed_params
    assert (first.cu_seqlens_q, first.max_seqlen_type) == ([0, 3, 8], "int")
    form = first.forms["cu_seqlens_q"]
    assert (form.dtype, form.shape, form.device, form.same_as) == ("torch.int32", [3], "cpu", None)
    assert first.forms["cu_seqlens_kv"].same_as == "cu_seqlens_q"
    assert (second.max_seqlen_q, second.max_seqlen_type) == (5, "Tensor")


def test_the_context_ranks_of_params_are_those_of_their_group_or_else_their_size(tmp_path: Path) -> None:
    def seen(**given: object) -> int | None:
        recorder = _recorder(tmp_path)
        offsets = torch.tensor([0, 3, 8], dtype=torch.int32)
        recorder.params(PackedSeqParams(qkv_format="thd", cu_seqlens_q=offsets, cu_seqlens_kv=offsets, **given))
        return recorder.record.packed_params[0].context_ranks

    group = SimpleNamespace(size=lambda: 4)
    assert [seen(), seen(local_cp_size=1), seen(local_cp_size=1, cp_group=group)] == [None, 1, 4]


def test_forms_distinguish_equal_tensors_from_identical_ones(tmp_path: Path) -> None:
    recorder = _recorder(tmp_path)
    offsets = torch.tensor([0, 3, 8], dtype=torch.int32)
    params = PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=offsets,
        cu_seqlens_kv=offsets.clone(),
        cu_seqlens_q_padded=offsets,
        cu_seqlens_kv_padded=offsets.to("meta"),
    )
    recorder.params(params)
    [seen] = recorder.record.packed_params
    assert {name: form.same_as for name, form in seen.forms.items()} == {
        "cu_seqlens_q": None,
        "cu_seqlens_kv": None,
        "cu_seqlens_q_padded": "cu_seqlens_q",
        "cu_seqlens_kv_padded": None,
    }
    assert (seen.cu_seqlens_kv_padded, seen.forms["cu_seqlens_kv_padded"].device) == (None, "meta")


def _layer(layer: int) -> LayerSeen:
    return LayerSeen(step=1, chunk=0, micro_batch=0, layer=layer, params=None)


def _on_gpu() -> PackedSeqParams:
    offsets = on_gpu(torch.tensor([0, 3, 8], dtype=torch.int32))
    return PackedSeqParams(qkv_format="thd", cu_seqlens_q=offsets, cu_seqlens_kv=offsets, max_seqlen_q=5)


def test_params_on_a_gpu_are_read_at_the_next_flush_as_they_were_when_a_layer_got_them(tmp_path: Path) -> None:
    recorder, params = _recorder(tmp_path), _on_gpu()
    OnGpu.read.clear()
    recorder.layer(_layer(1), params)
    recorder.layer(_layer(2), params)
    params.cu_seqlens_q.add_(1)
    recorder.layer(_layer(3), params)
    recorder.layer(_layer(4), None)
    assert OnGpu.read == []
    recorder.flush()
    assert OnGpu.read
    record = _read(recorder)
    assert [seen.params for seen in record.layers] == [0, 0, 1, None]
    assert [seen.cu_seqlens_q for seen in record.packed_params] == [[0, 3, 8], [1, 4, 9]]
    assert record.packed_params[0].forms["cu_seqlens_kv"].same_as == "cu_seqlens_q"


def test_after_an_error_nothing_is_read_from_the_gpu_and_unread_layers_are_dropped(tmp_path: Path) -> None:
    recorder = _recorder(tmp_path)
    recorder.layer(_layer(1), None)
    recorder.layer(_layer(2), _on_gpu())
    OnGpu.read.clear()
    recorder.fail(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert OnGpu.read == []
    record = _read(recorder)
    assert [seen.layer for seen in record.layers] == [1]
    assert record.ended == "raised"


def test_fields_of_packed_params_that_no_check_reads_are_named(tmp_path: Path) -> None:
    recorder, offsets = _recorder(tmp_path), torch.tensor([0, 3, 8], dtype=torch.int32)
    recorder.params(PackedSeqParams(qkv_format="thd", cu_seqlens_q=offsets, cu_seqlens_kv=offsets, total_tokens=8))
    assert recorder.record.not_read == ["seq_idx", "total_tokens"]
