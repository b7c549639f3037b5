"""The CDI spec of a claim, from its devices and from what every container with a GPU needs.

What is common to all claims is found once for each driver version, unless something was missing then.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from cdi.claimspec import claim_spec
from cdi.devicenodes import DeviceNodeError, gpu_edits, mig_edits
from cdi.drivermounts import common_edits
from cdi.driverroot import DriverRoot
from cdi.hooks import HookTool, find_hook_tool
from cdi.spec import ContainerEdits, to_json
from driver.devices import Device
from kubeletplugin.settings import Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ContainerDevice:
    """A device for a container; of a MIG device, the ids of the instances that it is now."""

    device: Device
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None


class ClaimSpecs:
    """Makes CDI specs. Every call reads the file system, so it belongs into a thread."""

    def __init__(self, settings: Settings, driver_root: DriverRoot) -> None:
        self._settings = settings
        self._driver_root = driver_root
        self._common: tuple[str, ContainerEdits] | None = None
        self._warned: set[str] = set()

    def build(self, claim_uid: str, devices: Sequence[ContainerDevice], driver_version: str) -> bytes:
        """The claim's spec as JSON.

        Raises:
            DeviceNodeError: a device node or capability file is missing.
            DriverRootError: the driver root has no libcuda of this version.
            SpecError: a name that CDI does not allow.
        """
        edits = {item.device.name: self._of_device(item) for item in devices}
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
        if self._common is not None and self._common[0] == driver_version:
            return self._common[1]
        dev_root, host_dev_root = self._settings.dev_roots()
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
                self._warned.add(warning)
                log.warning("%s", warning)
        if not common.warnings:
            self._common = (driver_version, common.edits)
        return common.edits

    def _hook_tool(self) -> HookTool | None:
        if self._settings.hooks == "none":
            return None
        if self._settings.hooks == "auto":
            return find_hook_tool([self._driver_root])
        return HookTool.at(self._settings.hooks)
