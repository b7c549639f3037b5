"""Rebuilding a store from CDI specs, with what the API server and the hardware add."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cdi.claimspec import claim_spec
from cdi.spec import ContainerEdits, DeviceNode, to_json
from cdi.specfolder import SpecFolder
from driver.devices import Device, known_devices
from driver.inventory import PciAddress, Placement
from kube.errors import ApiUnavailable
from kubeletplugin.rebuild import open_store, rebuild
from kubeletplugin.store import ClaimState, StoreError
from kubeletplugin.storethread import StoreThread
from tests.unit.driver.inventories import gpu, inventory, mig

WHOLE, PART = "gpu-0000-65-00-0", "gpu-0000-66-00-0-mig-1g10gb-2"
GONE = "gpu-0000-ca-00-0-mig-3g40gb-4"


class Hardware:
    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.ready.set()
        self.inventory = inventory(gpu(0x65), gpu(0x66, index=1, mig_enabled=True, mig_devices=(mig(2),)))

    async def devices(self, timeout: float) -> dict[str, Device]:
        return dict(known_devices(self.inventory, {}))


class Api:
    def __init__(self, *claims: Any) -> None:
        self.claims = claims

    async def list(self, resource: object) -> Any:
        if not self.claims:
            raise ApiUnavailable("away")
        return self.claims, "1"


def api_claim(uid: str, *results: dict[str, Any]) -> Any:
    ours = [{"driver": "gpu.nvidia.com", **each} for each in results]
    return {
        "metadata": {"namespace": "default", "name": f"claim-{uid}", "uid": uid},
        "status": {
            "allocation": {"devices": {"results": ours}},
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
        },
    }


class Fixture:
    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.specs = SpecFolder(folder / "cdi")
        self.hardware = Hardware()
        store, self.aside = open_store(self.data)
        self.store = StoreThread(store)

    def spec(self, uid: str, *names: str) -> None:
        edits = {name: ContainerEdits(device_nodes=(DeviceNode("/dev/nvidia0"),)) for name in names}
        self.specs.write(uid, to_json(claim_spec(uid, edits, ContainerEdits())))

    async def rebuild(self, *claims: Any) -> int:
        hardware: Any = self.hardware
        client: Any = Api(*claims)
        return await rebuild(self.store, self.specs, hardware, client, "boot-1")

    async def records(self) -> dict[str, Any]:
        return await self.store.run(lambda store: dict(store.claims()))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Fixture]:
    made = Fixture(tmp_path)
    yield made
    await asyncio.to_thread(made.store.close)


async def test_b063_names_requests_and_hardware_come_back(node: Fixture) -> None:
    node.spec("a", WHOLE, PART)
    results = [
        {"request": "gpu", "pool": "node-1", "device": WHOLE},
        {"request": "any/small", "pool": "node-1", "device": PART, "shareID": "s"},
    ]
    assert await node.rebuild(api_claim("a", *results)) == 1
    record = (await node.records())["a"]
    assert (record.claim.namespace, record.claim.name, record.state) == (
        "default",
        "claim-a",
        ClaimState.PREPARED,
    )
    whole, part = sorted(record.devices, key=lambda device: device.device)
    assert (whole.requests, whole.pool, whole.uuid) == (("gpu",), "node-1", gpu(0x65).uuid)
    assert (part.requests, part.share_id, part.uuid) == (("any",), "s", mig(2).uuid)
    assert (part.gpu_instance_id, part.footprint.placement) == (9, Placement(2, 1))
    assert part.cdi_device == f"gpudra.io/claim=a-{PART}"


async def test_b063_without_the_api_server_the_uid_is_enough_to_hold_and_unprepare(node: Fixture) -> None:
    node.spec("a", WHOLE)
    assert await node.rebuild() == 1
    record = (await node.records())["a"]
    assert (record.claim.name, record.claim.uid) == ("", "a")
    assert [str(address) for address in record.gpus] == ["0000:65:00.0"]


async def test_b063_hardware_that_is_away_is_held_by_its_address(node: Fixture) -> None:
    node.spec("a", GONE)
    assert await node.rebuild() == 1
    ((held,),) = [record.devices for record in (await node.records()).values()]
    assert (held.uuid, held.footprint.gpu, held.footprint.placement) == (
        "",
        PciAddress.parse("0000:ca:00.0"),
        None,
    )


async def test_b063_admin_access_stays_in_nobodys_way(node: Fixture) -> None:
    node.spec("a", WHOLE)
    await node.rebuild(api_claim("a", {"request": "r", "pool": "p", "device": WHOLE, "adminAccess": True}))
    ((held,),) = [record.devices for record in (await node.records()).values()]
    assert held.admin_access


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"devices": 3}', b'{"devices": [{}]}', b"\xff\xfe"]
)
async def test_b063_a_spec_that_no_runtime_could_read_is_skipped(node: Fixture, content: bytes) -> None:
    node.spec("a", WHOLE)
    node.specs.write("broken", content)
    assert await node.rebuild() == 1
    assert set(await node.records()) == {"a"}


async def test_b063_a_store_is_rebuilt_once_and_only_when_it_is_new(node: Fixture) -> None:
    assert await node.rebuild() == 0
    node.spec("a", WHOLE)
    assert await node.rebuild() == 0
    assert await node.records() == {}


async def test_b063_a_claim_that_is_unprepared_meanwhile_does_not_come_back(node: Fixture) -> None:
    node.spec("a", WHOLE)
    node.hardware.ready.clear()
    task = asyncio.create_task(node.rebuild())
    await asyncio.sleep(0.01)
    await node.store.run(lambda store: store.remember_unprepared("a"))
    node.hardware.ready.set()
    assert await task == 0
    assert await node.records() == {}


async def test_b063_a_damaged_file_is_moved_and_a_new_one_is_there(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_bytes(b"no database" * 100)
    store, aside = open_store(tmp_path)
    assert aside is not None
    assert aside.read_bytes() == b"no database" * 100
    with store.transaction():
        assert (store.claims(), store.is_complete()) == ({}, False)
    store.close()


def test_a_data_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=f"the data folder {tmp_path}/file/data cannot be made"):
        open_store(tmp_path / "file" / "data")
