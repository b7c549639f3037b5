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
from kube.errors import ApiError, ApiUnavailable
from kubeletplugin import rebuild as rebuild_module
from kubeletplugin.intent import forget
from kubeletplugin.rebuild import ClaimsUnknown, open_store, rebuild
from kubeletplugin.store import ClaimState, StoreError
from kubeletplugin.storethread import StoreThread
from tests.unit.driver.inventories import gpu, gpu_instance, inventory, mig
from tests.unit.kubeletplugin.records import held, record

WHOLE, PART = "gpu-0000-65-00-0", "gpu-0000-66-00-0-mig-1g10gb-2"
GONE = "gpu-0000-ca-00-0-mig-3g40gb-4"
ONE, OTHER = (f"0b2d3a44-1c56-4f0e-9d5a-00000000000{number}" for number in (1, 2))


class Hardware:
    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.ready.set()
        instances = (gpu_instance(19, 2, 1, number=9),)
        self.inventory = inventory(
            gpu(0x65),
            gpu(0x66, index=1, mig_enabled=True, gpu_instances=instances, mig_devices=(mig(2),)),
        )

    async def devices(self, timeout: float) -> dict[str, Device]:
        return dict(known_devices(self.inventory, {}))


class Api:
    def __init__(self, *claims: Any, error: Exception | None = None) -> None:
        self.claims = claims
        self.error = error

    async def list(self, resource: object) -> Any:
        if self.error is not None:
            raise self.error
        return self.claims, "1"


AWAY = Api(error=ApiUnavailable("away"))


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

    async def rebuild(self, *claims: Any, api: Api | None = AWAY) -> int:
        """With an API server that has ``claims``; without any it is ``api``."""
        hardware: Any = self.hardware
        client: Any = Api(*claims) if claims else api
        return await rebuild(self.store, self.specs, hardware, client, "boot-1")

    async def is_complete(self) -> bool:
        return await self.store.run(lambda store: store.is_complete())

    async def records(self) -> dict[str, Any]:
        return await self.store.run(lambda store: dict(store.claims()))


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild_module, "_API_PAUSES_SECONDS", (0.0, 0.0))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Fixture]:
    made = Fixture(tmp_path)
    yield made
    await asyncio.to_thread(made.store.close)


async def test_b063_names_requests_and_hardware_come_back(node: Fixture) -> None:
    node.spec("a", WHOLE, PART)
    results = [
        {"request": "gpu", "pool": "node-1", "device": WHOLE},
        {"request": "any/small", "pool": "node-1", "device": PART, "shareID": ONE},
    ]
    assert await node.rebuild(api_claim("a", *results)) == 1
    rebuilt = (await node.records())["a"]
    assert (rebuilt.claim.namespace, rebuilt.claim.name, rebuilt.state) == (
        "default",
        "claim-a",
        ClaimState.PREPARED,
    )
    whole, part = sorted(rebuilt.devices, key=lambda device: device.device)
    assert (whole.requests, whole.pool, whole.uuid) == (("gpu",), "node-1", gpu(0x65).uuid)
    assert (part.requests, part.share_id, part.uuid) == (("any",), ONE, mig(2).uuid)
    assert (part.gpu_instance_id, part.footprint.placement) == (9, Placement(2, 1))
    assert part.cdi_device == f"gpudra.io/claim=a-{PART}"


async def test_b063_without_the_api_server_the_uid_is_enough_to_hold_and_unprepare(node: Fixture) -> None:
    node.spec("a", WHOLE)
    assert await node.rebuild() == 1
    rebuilt = (await node.records())["a"]
    assert (rebuilt.claim.name, rebuilt.claim.uid) == ("", "a")
    assert [str(address) for address in rebuilt.gpus] == ["0000:65:00.0"]


async def test_b063_hardware_that_is_away_is_held_by_its_address(node: Fixture) -> None:
    node.spec("a", GONE)
    assert await node.rebuild(api_claim("a", {"request": "r", "pool": "p", "device": GONE})) == 1
    ((device,),) = [one.devices for one in (await node.records()).values()]
    assert (device.uuid, device.footprint.gpu, device.footprint.placement) == (
        "",
        PciAddress.parse("0000:ca:00.0"),
        None,
    )


async def test_b063_admin_access_stays_in_nobodys_way(node: Fixture) -> None:
    node.spec("a", WHOLE)
    await node.rebuild(api_claim("a", {"request": "r", "pool": "p", "device": WHOLE, "adminAccess": True}))
    ((device,),) = [one.devices for one in (await node.records()).values()]
    assert device.admin_access


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"devices": 3}', b'{"devices": [{}]}', b"\xff\xfe"]
)
async def test_b063_a_spec_that_no_runtime_could_read_is_skipped(node: Fixture, content: bytes) -> None:
    node.spec("a", WHOLE)
    node.specs.write("broken", content)
    assert await node.rebuild() == 1
    assert set(await node.records()) == {"a"}


def sliced(uid: str, device: str, interval: str, **more: Any) -> Any:
    """A claim that asks for a time-slice interval of its device."""
    found = api_claim(uid, {"request": "gpu", "pool": "node-1", "device": device, **more})
    sharing = {"timeSlicingConfig": {"interval": interval}}
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing}
    opaque = {"driver": "gpu.nvidia.com", "parameters": parameters}
    found["status"]["allocation"]["devices"]["config"] = [{"source": "FromClaim", "opaque": opaque}]
    return found


async def test_b063_the_interval_that_a_claim_asks_for_comes_back_and_is_put_back_with_it(
    node: Fixture,
) -> None:
    node.spec("a", WHOLE)
    node.spec("b", PART)
    await node.rebuild(sliced("a", WHOLE, "Long"), sliced("b", PART, "Short"))
    records = await node.records()
    assert [records[uid].devices[0].interval for uid in ("a", "b")] == ["Long", None]
    noted = await node.store.run(lambda store: store.noted_intervals())
    assert [(str(one.pci), str(one.interval), one.holds) for one in noted] == [
        ("0000:65:00.0", "Long", False)
    ]


@pytest.mark.parametrize(
    "claim", [sliced("a", WHOLE, "Forever"), sliced("a", WHOLE, "Long", adminAccess=True)]
)
async def test_b063_a_configuration_that_asks_for_nothing_puts_nothing_back(
    node: Fixture, claim: Any
) -> None:
    node.spec("a", WHOLE)
    await node.rebuild(claim)
    assert [held.interval for held in (await node.records())["a"].devices] == [None]
    assert await node.store.run(lambda store: store.noted_intervals()) == []


async def test_b063_what_the_store_has_is_asked_of_nobody(node: Fixture) -> None:
    assert await node.rebuild() == 0
    node.spec("a", WHOLE)
    known = record(held(WHOLE), uid="a")
    await node.store.run(lambda store: store.put(known))
    node.hardware.ready.clear()
    assert await asyncio.wait_for(node.rebuild(api=None), 5) == 0
    assert await node.records() == {"a": known}


def ours(uid: str, device: str, *made: str) -> Any:
    """A claim that is allocated ``device``; its status tells that the MIG devices ``made`` are its own."""
    claim = api_claim(uid, {"request": "gpu", "pool": "node-1", "device": device})
    claim["status"]["devices"] = [
        {"driver": "gpu.nvidia.com", "data": {"uuid": one, "madeForClaim": True}} for one in made
    ]
    return claim


async def test_b063_shares_are_known_by_the_names_in_their_specs_also_without_the_api_server(
    node: Fixture,
) -> None:
    node.spec("a", f"{WHOLE}-share-{ONE}", f"{WHOLE}-share-{OTHER}")
    assert await node.rebuild(api=None) == 1
    devices = (await node.records())["a"].devices
    assert [(one.device, one.share_id) for one in devices] == [(WHOLE, ONE), (WHOLE, OTHER)]
    assert [one.cdi_device for one in devices] == [
        f"gpudra.io/claim=a-{WHOLE}-share-{share}" for share in (ONE, OTHER)
    ]
    results = [
        {"request": f"r{memory}", "pool": "node-1", "device": WHOLE, "shareID": share}
        | {"consumedCapacity": {"memory": f"{memory}Gi"}}
        for share, memory in ((OTHER, 2), (ONE, 1))
    ]
    assert await node.rebuild(api_claim("a", *results)) == 0
    devices = (await node.records())["a"].devices
    assert [(one.requests, one.memory_bytes) for one in devices] == [(("r1",), 1 << 30), (("r2",), 2 << 30)]


@pytest.mark.parametrize("first_to_go", ["told", "untold"])
async def test_b063_the_last_share_knows_that_its_mig_device_was_made_for_claims(
    node: Fixture, first_to_go: str
) -> None:
    claims = []
    for uid, share, made in (("told", ONE, [mig(2).uuid]), ("untold", OTHER, [])):
        node.spec(uid, f"{PART}-share-{share}")
        claims.append(ours(uid, PART, *made))
        claims[-1]["status"]["allocation"]["devices"]["results"][0]["shareID"] = share
    assert await node.rebuild(*claims) == 2
    records = await node.records()
    assert {one.devices[0].uuid for one in records.values()} == {mig(2).uuid}
    await node.store.run(lambda store: forget(store, records[first_to_go]))
    ((left,),) = [one.devices for one in (await node.records()).values()]
    assert left.profile_id == 19


async def test_b063_an_older_copy_of_the_store_gets_back_what_is_in_use_and_nothing_that_is_gone(
    node: Fixture,
) -> None:
    assert await node.rebuild() == 0
    for uid in ("running", "deleted", "deallocated"):
        node.spec(uid, WHOLE)
    deallocated = {"metadata": {"namespace": "default", "name": "x", "uid": "deallocated"}, "status": {}}
    assert await node.rebuild(ours("running", WHOLE), deallocated) == 1
    records = await node.records()
    assert {uid: one.claim.name for uid, one in records.items()} == {"running": "claim-running"}


async def test_b063_an_older_copy_of_the_store_holds_what_has_a_spec_while_the_api_server_is_away(
    node: Fixture,
) -> None:
    assert await node.rebuild() == 0
    node.spec("a", WHOLE)
    assert await node.rebuild() == 1
    assert [str(gpu) for gpu in (await node.records())["a"].gpus] == ["0000:65:00.0"]
    assert await node.rebuild(ours("a", WHOLE)) == 0
    assert (await node.records())["a"].claim.name == "claim-a"


@pytest.mark.parametrize("older_copy", [False, True])
@pytest.mark.parametrize(
    "error", [ApiUnavailable("away"), ApiError(503, "ServiceUnavailable", "away"), TimeoutError()]
)
async def test_b063_whose_mig_devices_are_is_asked_until_the_api_server_tells(
    node: Fixture, older_copy: bool, error: Exception
) -> None:
    if older_copy:
        await node.rebuild()
    node.spec("a", PART)
    with pytest.raises(
        ClaimsUnknown, match=r"MIG devices of 1 claims .* (away|no answer in time).*; the list"
    ):
        await node.rebuild(api=Api(error=error))
    assert (await node.records(), await node.is_complete()) == ({}, older_copy)
    assert await node.rebuild(ours("a", PART, mig(2).uuid)) == 1
    ((part,),) = [one.devices for one in (await node.records()).values()]
    assert part.profile_id == 19
    assert await node.is_complete()


async def test_b063_without_a_client_nothing_is_decided_for_good(node: Fixture) -> None:
    node.spec("a", PART)
    assert await node.rebuild(api=None) == 1
    ((part,),) = [one.devices for one in (await node.records()).values()]
    assert (part.profile_id, await node.is_complete()) == (None, False)
    with pytest.raises(ClaimsUnknown):
        await node.rebuild()
    assert await node.rebuild(ours("a", PART, mig(2).uuid)) == 0
    one = (await node.records())["a"]
    assert (one.claim.name, one.devices[0].profile_id) == ("claim-a", 19)
    assert await node.is_complete()


async def test_b063_a_spec_that_is_removed_while_the_api_server_is_asked_is_nobodys(node: Fixture) -> None:
    node.spec("a", WHOLE)
    node.hardware.ready.clear()
    task = asyncio.create_task(node.rebuild())
    await asyncio.sleep(0.05)
    node.specs.remove("a")
    node.hardware.ready.set()
    assert await task == 0
    assert await node.records() == {}


async def test_b063_a_store_with_a_record_that_cannot_be_read_is_rebuilt(tmp_path: Path) -> None:
    store, _ = open_store(tmp_path)
    with store.transaction():
        store.set_complete()
        store.put(record(held(WHOLE), uid="a"))
        store._connection.execute("UPDATE claims SET devices = substr(devices, 1, 30)")
    store.close()
    again, aside = open_store(tmp_path)
    assert aside is not None
    with again.transaction():
        assert (again.claims(), again.is_complete()) == ({}, False)
    again.close()


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
