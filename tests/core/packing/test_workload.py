from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.core.cell.layout import Layout
from harness.core.packing.arithmetic import plan_step
from harness.core.packing.documents import Document
from harness.core.packing.workload import workload
from tests.packing_styles import packing_style

SEQ = 64


@given(
    lengths=st.lists(st.integers(1, SEQ - 1), min_size=24, max_size=24),  # so that every dp x pp can share them
    tp=st.sampled_from([1, 2]),
    cp=st.sampled_from([1, 2]),
    dp=st.sampled_from([1, 2, 3]),
    vpp=st.sampled_from([1, 2]),
)
def test_real_lengths_are_summed_once_whatever_the_layout(
    lengths: list[int], tp: int, cp: int, dp: int, vpp: int
) -> None:
    layout = Layout(tp=tp, cp=cp, dp=dp, pp=2, vpp=vpp, sp=tp > 1)
    documents = [Document(index=i, length=length, original_length=length) for i, length in enumerate(lengths)]
    step = plan_step(documents, packing_style("reference", layout, SEQ), layout, seq_length=SEQ, micro_batch_size=1)
    for replica in range(dp):
        found = workload(step, replica)
        assert (found.tokens, found.squares) == (sum(lengths), sum(length**2 for length in lengths))
        assert found.micro_batches == len(step[replica])


def test_lengths_are_those_of_the_offsets_and_rows_where_nothing_is_packed() -> None:
    documents = [Document(index=i, length=length, original_length=length) for i, length in enumerate((3, 9))]

    def counted(data_path: str, layout: Layout) -> tuple[int, int]:
        style = packing_style(data_path, layout, SEQ)
        work = workload(plan_step(documents, style, layout, seq_length=SEQ, micro_batch_size=1), 0)
        return work.tokens, work.squares

    assert counted("scheduler", Layout(cp=2)) == (4 + 12, 4**2 + 12**2)  # only padded lengths are passed
    assert counted("unpacked", Layout()) == (2 * SEQ, 2 * SEQ**2)
