"""The adapter of each data path, by its name. Everything else about a data path is in harness/core/data_paths."""

from __future__ import annotations

from harness.node.data_paths.base import Adapter
from harness.node.data_paths.bridge.in_batch import BridgeInBatchPath
from harness.node.data_paths.bridge.long import BridgeLongPath
from harness.node.data_paths.bridge.offline import BridgeOfflinePath
from harness.node.data_paths.megatron_rl import MegatronRlPath
from harness.node.data_paths.nemo_rl import NemoRlPath
from harness.node.data_paths.reference import ReferencePath
from harness.node.data_paths.scheduler import SchedulerPath
from harness.node.data_paths.sft.data_path import SftPath
from harness.node.data_paths.skyrl import SkyrlPath
from harness.node.data_paths.unpacked import UnpackedPath
from harness.node.data_paths.verl import VerlPath

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
