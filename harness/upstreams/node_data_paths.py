"""The adapter of each data path, by its name. Everything else about a data path is in its project's spec.py."""

from __future__ import annotations

from harness.upstreams.builtin.node_reference import ReferencePath
from harness.upstreams.builtin.node_unpacked import UnpackedPath
from harness.upstreams.megatron_bridge.node_in_batch import BridgeInBatchPath
from harness.upstreams.megatron_bridge.node_long import BridgeLongPath
from harness.upstreams.megatron_bridge.node_offline import BridgeOfflinePath
from harness.upstreams.megatron_lm.node_rl import MegatronRlPath
from harness.upstreams.megatron_lm.node_scheduler import SchedulerPath
from harness.upstreams.megatron_lm.node_sft import SftPath
from harness.upstreams.nemo_rl.node_data_path import NemoRlPath
from harness.upstreams.node_base import Adapter
from harness.upstreams.skyrl.node_data_path import SkyrlPath
from harness.upstreams.verl.node_data_path import VerlPath

ADAPTERS: dict[str, type[Adapter]] = {
    "unpacked": UnpackedPath,
    "reference": ReferencePath,
    "sft": SftPath,
    "scheduler": SchedulerPath,
    "skyrl": SkyrlPath,
    "megatron_rl": MegatronRlPath,
    "nemo_rl": NemoRlPath,
    "verl": VerlPath,
    "bridge_offline": BridgeOfflinePath,
    "bridge_in_batch": BridgeInBatchPath,
    "bridge_long": BridgeLongPath,
}
