from __future__ import annotations

from pathlib import Path

from harness.node.supervisor import _hung_in

DUMP = """Timeout (0:00:08)!
Thread 0x1 (most recent call first):
  File "site-packages/torch/distributed/distributed_c10d.py", line 2714 in all_reduce
  File "site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "megatron/core/distributed/finalize_model_grads.py", line 300 in finalize_model_grads
"""


def test_the_innermost_collective_of_the_dump_is_named(tmp_path: Path) -> None:
    log = tmp_path / "rank.log"
    log.write_text("some warning\n" + DUMP)
    assert _hung_in(log) == "all_reduce"


def test_a_hang_in_the_pipeline_is_named_by_its_function(tmp_path: Path) -> None:
    log = tmp_path / "rank.log"
    log.write_text('  File "megatron/core/pipeline_parallel/p2p_communication.py", line 9 in _communicate_shapes\n')
    assert _hung_in(log) == "_communicate_shapes"


def test_no_dump_names_nothing(tmp_path: Path) -> None:
    assert _hung_in(tmp_path / "missing.log") is None
