"""The data paths this version knows, by the name they have on the `packing` axis."""

from __future__ import annotations

from harness.node.data_paths.base import DataPath
from harness.node.data_paths.bridge.in_batch import BridgeInBatchPath
from harness.node.data_paths.bridge.long import BridgeLongPath
from harness.node.data_paths.bridge.offline import BridgeOfflinePath
from harness.node.data_paths.reference import ReferencePath
from harness.node.data_paths.rules import RulesPath
from harness.node.data_paths.scheduler import SchedulerPath
from harness.node.data_paths.sft.data_path import SftPath
from harness.node.data_paths.skyrl import SkyrlPath
from harness.node.data_paths.unpacked import UnpackedPath

DATA_PATHS: dict[str, type[DataPath]] = {
    "unpacked": UnpackedPath,
    "reference": ReferencePath,
    "sft": SftPath,
    "scheduler": SchedulerPath,
    "skyrl": SkyrlPath,
    "bridge_offline": BridgeOfflinePath,
    "bridge_in_batch": BridgeInBatchPath,
    "bridge_long": BridgeLongPath,
    "rules": RulesPath,
}
