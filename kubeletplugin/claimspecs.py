"""The CDI spec of a claim, from its devices and from what every container with a GPU needs.

What is common to all claims is found once for each driver version, and anew when a folder changes that it was
found in.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from cdi.claimspec import claim_spec
from cdi.devicenodes import DeviceNodeError, gpu_edits, mig_edits
from cdi.drivermounts import common_edits, folders_read
from cdi.driverroot import DriverRoot
from cdi.hooks import HookTool, find_hook_tool
from cdi.spec import ContainerEdits, to_json
from driver.devices import Device
from driver.names import share_name
from kubeletplugin.settings import Settings
from kubeletplugin.store import HeldDevice

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ContainerDevice:
    """A device or share for a container; of a MIG device, the ids of the instances that it is now."""

    device: Device
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None
    share_id: str | None = None
    memory_bytes: int | None = None

    @classmethod
    def of(cls, device: Device, held: HeldDevice) -> Self:
        """The device as a claim's record has it."""
        return cls(device, held.gpu_instance_id, held.compute_instance_id, held.share_id, held.memory_bytes)


@dataclass(frozen=True, slots=True)
class _Common:
    """Edits, and when the folders that they were read from had been changed last."""

    driver_version: str
    changed: tuple[tuple[str, int], ...]
    edits: ContainerEdits

    def is_current(self, driver_version: str) -> bool:
        if driver_version != self.driver_version:
            return False
        return all(_changed_at(folder) == changed for folder, changed in self.changed)


class ClaimSpecs:
    """Makes CDI specs. Every call reads the file system, so it belongs into a thread."""

    def __init__(self, settings: Settings, driver_root: DriverRoot) -> None:
        self._settings = settings
        self._driver_root = driver_root
        self._common: _Common | None = None
        self._warned: set[str] = set()

    def build(self, claim_uid: str, devices: Sequence[ContainerDevice], driver_version: str) -> bytes:
        """The claim's spec as JSON.

        Raises:
            DeviceNodeError: a device node or capability file is missing.
            DriverRootError: the driver root has no libcuda of this version.
            SpecError: a name that CDI does not allow.
        """
        edits = {
            share_name(item.device.name, item.share_id): self._of_device(item) + _of_share(item)
            for item in devices
        }
        return to_json(claim_spec(claim_uid, edits, self._of_all(driver_version)))

    def _of_device(self, item: ContainerDevice) -> ContainerEdits:
        device, gpu, proc_root = item.device, item.device.gpu, self._settings.proc_root
        dev_root, host_dev_root = self._settings.dev_roots()
        if gpu.minor is None:
            raise DeviceNodeError(
                f"device {device.name}: NVML does not tell the minor number of GPU {gpu.uuid}, so its node "
                "is unknown"
            )
        if item.gpu_instance_id is None or item.compute_instance_id is None:
            return gpu_edits(dev_root, host_dev_root, gpu.minor, str(gpu.pci), proc_root=proc_root)
        return mig_edits(
            dev_root,
            host_dev_root,
            proc_root,
            gpu.minor,
            item.gpu_instance_id,
            item.compute_instance_id,
        )

    def _of_all(self, driver_version: str) -> ContainerEdits:
        if self._common is not None and self._common.is_current(driver_version):
            return self._common.edits
        dev_root, host_dev_root = self._settings.dev_roots()
        folders = [str(folder) for folder in folders_read(self._driver_root, dev_root)]
        changed = tuple((folder, _changed_at(folder)) for folder in folders)
        common = common_edits(
            self._driver_root,
            driver_version,
            dev_root=dev_root,
            host_dev_root=host_dev_root,
            proc_root=self._settings.proc_root,
            hooks=self._hook_tool(),
        )
        for warning in common.warnings:
            if warning not in self._warned:
                log.warning("%s", warning)
        self._warned = set(common.warnings)
        self._common = _Common(driver_version, changed, common.edits)
        return common.edits

    def _hook_tool(self) -> HookTool | None:
        if self._settings.hooks == "none":
            return None
        if self._settings.hooks == "auto":
            return find_hook_tool([self._driver_root])
        return HookTool.at(self._settings.hooks)


def _of_share(item: ContainerDevice) -> ContainerEdits:
    """Nothing holds a container to its part of the memory but itself, so it is told how much that is."""
    if item.memory_bytes is None:
        return ContainerEdits()
    name = re.sub(r"[^A-Z0-9]", "_", item.device.name.upper())
    return ContainerEdits(env=(f"GPU_MEMORY_LIMIT_BYTES_{name}={item.memory_bytes}",))


def _changed_at(folder: str) -> int:
    try:
        return os.stat(folder).st_mtime_ns  # noqa: PTH116 - half the time of Path.stat, for each claim
    except OSError:
        return 0
