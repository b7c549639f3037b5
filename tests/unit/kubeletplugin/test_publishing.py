"""What is published, from simulated GPUs to a server that keeps, drops or refuses counters."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cdi.specfolder import SpecFolder
from driver.claim import ClaimReference
from driver.nodepolicy import NodePolicy, PolicyEntry
from driver.nvml import call_of_thread
from driver.shares import ShareMode, Shares
from kube.asyncclient import AsyncKubeClient
from kube.backoff import Backoff
from kube.client import KubeClient
from kube.resources import NODES, RESOURCE_SLICES, Object
from kubeletplugin import settings
from kubeletplugin.engine import ClaimEngine
from kubeletplugin.featureprobe import COUNTERS, SHARED_DEVICES, TAINTS, FeatureProbe
from kubeletplugin.gpulocks import GpuLocks
from kubeletplugin.hardware import GpuHardware
from kubeletplugin.lanes import Lanes
from kubeletplugin.metrics import Metrics
from kubeletplugin.publisher import DroppedFields, SlicePublisher
from kubeletplugin.publishing import Publishing
from kubeletplugin.serverversion import ServerVersion
from kubeletplugin.store import ClaimRecord, ClaimState, HeldDevice, Store
from kubeletplugin.storethread import StoreThread
from nvmlsim.node import SimulatedNode
from tests.unit.driver.slicevalidator import violations
from tests.unit.kube.fakeapiserver import FakeApiServer
from tests.unit.kubeletplugin.test_publisher import until

COLLECTION = RESOURCE_SLICES.path()


@dataclass
class Reports:
    """The publisher's observer, as far as it matters here, and who is told of conditions."""

    publishing: Publishing | None = None
    events: list[tuple[str, str]] = field(default_factory=list)
    writes: int = 0

    def wrote(self, verb: str) -> None:
        self.writes += 1

    def dropped(self, dropped: DroppedFields) -> None:
        assert self.publishing is not None
        self.publishing.dropped(dropped)

    def published(self, generation: int, slices: int) -> None:
        pass

    def failed_to_publish(self, message: str) -> None:
        self.events.append(("PublishFailed", message))

    def warning(self, reason: str, message: str) -> None:
        self.events.append((reason, message))


@dataclass
class Running:
    server: FakeApiServer
    simulated: SimulatedNode
    hardware: GpuHardware
    engine: ClaimEngine
    store: StoreThread
    reports: Reports
    metrics: Metrics

    def specs(self) -> list[Object]:
        return [item["spec"] for item in self.server.items(COLLECTION)]

    def devices(self) -> dict[str, Any]:
        return {device["name"]: device for spec in self.specs() for device in spec.get("devices", [])}

    async def when(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The devices, once they are as wanted and the pool is complete and valid."""
        await until(lambda: condition(self.devices()) and violations(self.specs()) == [])
        return self.devices()

    def ways(self) -> dict[str, str]:
        (metric,) = self.metrics.gpu_mig.collect()
        return {sample.labels["gpu"]: sample.labels["way"] for sample in metric.samples if sample.value}


@contextlib.asynccontextmanager
async def running(
    tmp_path: Path,
    machine: str,
    *,
    records: tuple[ClaimRecord, ...] = (),
    on_write: Callable[[Object], None] = lambda written: None,
    kubernetes: str = "v1.37.2",
    **overrides: Any,
) -> AsyncIterator[Running]:
    simulated = SimulatedNode.create(tmp_path / "node", machine, **overrides)
    parser = argparse.ArgumentParser()
    settings.add_arguments(parser, {})
    flags = [*simulated.plugin_flags(), "--node-name", "n1", "--rescan-seconds", "0.2"]
    chosen = settings.read(parser.parse_args(flags))
    server = FakeApiServer()
    server.put(NODES.path(), {"metadata": {"name": "n1"}})
    server.on_write = on_write
    server.kubernetes = kubernetes
    metrics, lanes, reports = Metrics(), Lanes(call_of_thread), Reports()
    store = StoreThread(Store(tmp_path / "state.db"))

    async def held() -> list[ClaimRecord]:
        return await store.run(lambda target: list(target.claims().values()))

    hardware = GpuHardware(chosen, lanes, metrics, records=held)
    hardware.apply_requested({})
    for record in records:
        await store.run(lambda target, one=record: target.put(replace(one, boot_id=hardware.boot_id())))  # type: ignore[misc]
    engine = ClaimEngine(
        hardware=hardware,
        store=store,
        locks=GpuLocks(tmp_path / "locks"),
        specs=SpecFolder(tmp_path / "cdi"),
        lanes=lanes,
        metrics=metrics,
        pool="n1",
        boot_id=hardware.boot_id(),
    )
    engine.restored.set()
    client = AsyncKubeClient(KubeClient(server.rest_client(), read_timeout=2.0))
    probe = FeatureProbe(
        client, COUNTERS, metrics.counters_supported, driver="gpu.nvidia.com", node_name="n1", period=0.3
    )
    shares = FeatureProbe(
        client, SHARED_DEVICES, metrics.shared_devices_supported, driver="gpu.nvidia.com", node_name="n1"
    )
    publisher = SlicePublisher(
        client, driver="gpu.nvidia.com", node_name="n1", observer=reports, backoff=Backoff(0.02, 0.2)
    )
    taints = FeatureProbe(
        client, TAINTS, metrics.taints_supported, driver="gpu.nvidia.com", node_name="n1", period=0.3
    )
    version = ServerVersion(client, period=0.2)
    publishing = Publishing(
        hardware,
        engine,
        publisher,
        probe,
        shares,
        taints,
        version,
        metrics,
        reports.warning,
        node_name="n1",
        pool="n1",
    )
    reports.publishing = publishing
    probes = [probe.run(), shares.run(), taints.run(), version.run()]
    parts = [hardware.run(), *probes, publisher.run(), publishing.run()]
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        yield Running(server, simulated, hardware, engine, store, reports, metrics)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        client.close()
        server.close()
        store.close()


def is_partition(device: dict[str, Any]) -> bool:
    attributes = device["attributes"]
    return bool(attributes["type"] == {"string": "mig"} and attributes["uuid"] == {"string": ""})


def without_counters(written: Object) -> None:
    written["spec"].pop("sharedCounters", None)
    for device in written["spec"].get("devices", []):
        device.pop("consumesCounters", None)


async def test_b009_capability_is_decided_for_each_gpu(tmp_path: Path) -> None:
    gpus = [{"model": "t4"}, {"model": "h100-sxm5-80gb"}, {"model": "a100-sxm4-80gb"}]
    async with running(tmp_path, "t4x4", gpus=gpus) as node:
        devices = await node.when(lambda devices: len(devices) == 1 + 26 + 1)
        assert [sum(is_partition(device) for device in devices.values()), len(node.ways())] == [25, 3]
        assert list(node.ways().values()) == ["whole-gpu", "whole-gpu-and-partitions", "whole-gpu"]
        counters = [len(spec.get("sharedCounters", [])) for spec in node.specs()]
        assert counters == [1, 0]


async def test_b077_on_ampere_the_mode_is_an_administrators(tmp_path: Path) -> None:
    async with running(tmp_path, "a100-pcie-pair") as node:
        await node.when(lambda devices: len(devices) == 2)
        node.simulated.set_mig_mode(0)
        devices = await node.when(lambda devices: len(devices) == 25 + 1)
        first = [name for name in devices if name.startswith("gpu-0000-17-00-0")]
        assert "gpu-0000-17-00-0" not in first
        assert all(is_partition(devices[name]) and devices[name]["consumesCounters"] for name in first)
        assert list(node.ways().values()) == ["partitions", "whole-gpu"]
        assert node.simulated.calls().get("nvmlDeviceSetMigMode", 0) == 0


async def test_b086_an_instance_of_somebody_else_takes_its_place(tmp_path: Path) -> None:
    async with running(tmp_path, "hgx-h100", gpus=[{"model": "h100-sxm5-80gb"}]) as node:
        await node.when(lambda devices: len(devices) == 26)
        node.simulated.set_mig_mode(0)
        made = node.simulated.create_mig(0, "3g.40gb", 0)
        devices = await node.when(lambda devices: len(devices) == 10 + 1)
        (static,) = [device for device in devices.values() if not is_partition(device)]
        assert static["attributes"]["uuid"] == {"string": made.compute_instances[0].uuid}
        assert "consumesCounters" not in static
        for device in devices.values():
            if device is not static:
                assert int(device["name"].rpartition("-")[2]) >= 4
        # Without a compute instance it is no device, but its place is taken.
        node.simulated.destroy_mig(0, made.id, ci=0)
        await node.when(lambda devices: len(devices) == 10)
        node.simulated.destroy_mig(0, made.id)
        await node.when(lambda devices: len(devices) == 26)


async def test_b030_partitions_go_in_the_write_that_loses_their_counters(tmp_path: Path) -> None:
    """A dry run that promised too much, as of one of several API servers."""
    seen: list[Object] = []

    def lose(written: Object) -> None:
        if str(written["metadata"].get("generateName")).startswith("feature-probe-"):
            return
        without_counters(written)
        seen.append(written)

    async with running(tmp_path, "hgx-h100", on_write=lose) as node:
        await node.when(lambda devices: len(devices) == 8)
        with_partitions = [
            item["spec"]["pool"]
            for item in seen
            if any(is_partition(device) for device in item["spec"].get("devices", []))
        ]
        generations = [item["spec"]["pool"]["generation"] for item in seen]
        # The next dry run promises them again, so there may be several; no generation of them was complete.
        assert with_partitions
        for pool in with_partitions:
            assert generations.count(pool["generation"]) < pool["resourceSliceCount"]
        assert {reason for reason, _ in node.reports.events} == {"PartitionsWithheld"}
        assert all("DRAPartitionableDevices" in message for _, message in node.reports.events)


async def test_b030_a_cluster_that_is_upgraded_while_the_plugin_runs(tmp_path: Path) -> None:
    async with running(tmp_path, "hgx-h100", on_write=without_counters) as node:
        await node.when(lambda devices: len(devices) == 8)
        await until(lambda: node.reports.writes > 0)
        writes = node.reports.writes
        await asyncio.sleep(0.8)
        assert node.reports.writes == writes
        assert set(node.ways().values()) == {"whole-gpu"}
        node.server.on_write = lambda written: None
        await node.when(lambda devices: len(devices) == 8 * 26)
        node.server.on_write = without_counters
        await node.when(lambda devices: len(devices) == 8)


async def test_a_held_partition_stays_one_while_its_instance_is_there(tmp_path: Path) -> None:
    async with running(tmp_path, "hgx-h100", gpus=[{"model": "h100-sxm5-80gb"}]) as node:
        before = await node.when(lambda devices: len(devices) == 26)
        name = "gpu-0000-11-00-0-mig-2g20gb-4"
        device = (await node.hardware.devices(1))[name]
        assert device.partition is not None
        held = HeldDevice(
            ("gpu",),
            "n1",
            name,
            "gpudra.io/claim=x",
            "",
            device.gpu.uuid,
            device.footprint,
            node.hardware.published(device),
            gpu_instance_id=5,
            profile_id=device.partition.profile.id,
        )
        record = ClaimRecord(
            ClaimReference("default", "one", "uid-1"),
            ClaimState.PREPARING,
            node.hardware.boot_id(),
            0.0,
            (held,),
        )
        await node.store.run(lambda target: target.put(record))
        node.simulated.set_mig_mode(0)
        made = node.simulated.create_mig(0, "2g.20gb", 4)
        assert made.id == 5
        await until(lambda: bool(node.hardware.inventory.gpus[0].gpu_instances))
        await asyncio.sleep(0.3)
        assert list(node.devices()) == list(before)
        # The cluster loses its counters: what is in use stays, and nothing that overlaps it is offered.
        node.server.on_write = without_counters
        devices = await node.when(lambda devices: list(devices) == [name])
        assert "consumesCounters" not in devices[name]
        node.server.on_write = lambda written: None
        await node.when(lambda devices: len(devices) == 26)
        node.simulated.destroy_mig(0, made.id)
        await node.store.run(lambda target: target.remove("uid-1"))
        await node.when(lambda devices: devices == before)


async def test_a_whole_gpu_keeps_its_nvlink_while_mig_mode_is_on_for_partitions(tmp_path: Path) -> None:
    async with running(tmp_path, "hgx-h100") as node:
        before = await node.when(lambda devices: len(devices) == 8 * 26)
        writes = 5
        await until(lambda: node.reports.writes == writes)
        node.simulated.set_mig_mode(2)
        await until(lambda: node.hardware.inventory.gpus[2].mig_enabled)
        await asyncio.sleep(0.3)
        assert node.devices() == before
        assert node.reports.writes == writes
        node.simulated.create_mig(2, "1g.10gb")
        after = await node.when(lambda devices: "gpu-0000-52-00-0" not in devices)
        assert after["gpu-0000-1b-00-0"]["attributes"]["nvlinkPeers"] == {"int": 6}


async def test_partitions_are_shared_only_where_the_scheduler_counts_them_right(tmp_path: Path) -> None:
    profiles = (("1g.10gb", Shares(ShareMode.PLACES, 4)), ("2g.20gb", Shares(ShareMode.UNLIMITED)))
    entry = PolicyEntry(None, shares=Shares(ShareMode.PLACES, 2), profile_shares=profiles)
    gpus = [{"model": "t4"}, {"model": "h100-sxm5-80gb"}]

    def shared(devices: dict[str, Any]) -> list[str]:
        names = [name for name, device in devices.items() if device.get("allowMultipleAllocations")]
        return [name.partition("-mig-")[2].partition("-")[0] or "whole" for name in names]

    def told(node: Running) -> str:
        return next((text for reason, text in node.reports.events if reason == "SharesWithheld"), "")

    async with running(tmp_path, "t4x4", gpus=gpus, kubernetes="v1.36.2") as node:
        node.hardware.apply(NodePolicy(entries=(entry,)))
        # The T4 takes from no counters.
        await node.when(lambda devices: shared(devices) == ["whole"] and len(devices) == 27)
        await until(lambda: "(places, unlimited)" in told(node))
        assert "v1.36.2" in told(node)
        assert "that of 1.37.0 does" in told(node)
        # The API server is upgraded.
        node.server.kubernetes = "v1.36.3"
        await node.when(lambda devices: sorted(shared(devices)) == ["1g10gb"] * 7 + ["whole"] * 2)
        node.server.kubernetes = "v1.37.0"
        await node.when(lambda devices: shared(devices).count("2g20gb") == 3)
        assert len(node.devices()) == 27
