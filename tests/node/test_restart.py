"""Restarts, reboots and lost folders: what was prepared stays, what is gone is made again or forgotten."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
import uuid
from collections.abc import Callable

from tests.cluster.api import wait_until
from tests.harness.claims import Claim, create_claim, delete_claim, result
from tests.harness.plugin import PluginNode

DRIVER_NOT_LOADED = 9

MakeNode = Callable[..., PluginNode]


def names(node: PluginNode) -> list[str]:
    return sorted(node.wait_published(8))


def write(node: PluginNode, sql: str, *parameters: object) -> None:
    connection = sqlite3.connect(node.store_path)
    with connection:
        connection.execute(sql, parameters)
    connection.close()


def damage(node: PluginNode, content: bytes) -> None:
    """Replace the database, and take away the log from which SQLite would mend it."""
    for suffix in ("-wal", "-shm"):
        node.store_path.with_name(f"state.db{suffix}").unlink(missing_ok=True)
    node.store_path.write_bytes(content)


def whole_store(node: PluginNode) -> bytes:
    """The database file with its log folded in."""
    connection = sqlite3.connect(node.store_path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return node.store_path.read_bytes()


def wait_gone(node: PluginNode, claim: Claim, timeout: float = 10.0) -> None:
    def gone() -> bool:
        return claim.uid not in node.claims_in_store() and not any(
            claim.uid in name for name in node.cdi_files()
        )

    wait_until(gone, f"claim {claim} to be forgotten; the log:\n{node.log()[-2000:]}", timeout)


def test_a_restart_keeps_claims_and_a_repeated_prepare_answers_the_same(node: PluginNode) -> None:
    claim = create_claim(node.api, [result(name, node.name) for name in names(node)[:2]])
    first = node.kubelet.prepare_one(claim)
    assert node.stop() == 0
    node.start()
    assert node.kubelet.prepare_one(claim) == first
    node.kill()
    node.start()
    assert node.kubelet.prepare_one(claim) == first
    assert node.kubelet.unprepare_one(claim).error == ""
    assert (node.claims_in_store(), node.cdi_files()) == ({}, [])


def test_b016_after_a_reboot_with_other_minors_a_claim_gets_the_same_gpu_at_its_new_node(
    node: PluginNode,
) -> None:
    before = node.wait_published(8)
    name = names(node)[1]
    claim = create_claim(node.api, [result(name, node.name)])
    first = node.kubelet.prepare_one(claim)
    assert node.device_nodes(claim.uid) == {name: ["/dev/nvidia1"]}

    node.kill()
    node.gpus.reboot()
    node.gpus.permute_minors([3, 6, 5, 7, 0, 1, 4, 2])
    node.gpus.permute_indexes([7, 5, 6, 4, 1, 0, 2, 3])
    node.start()

    assert node.kubelet.prepare_one(claim) == first
    assert node.device_nodes(claim.uid) == {name: ["/dev/nvidia6"]}
    after = node.wait_published(8)
    assert {name: device["attributes"]["uuid"] for name, device in after.items()} == {
        name: device["attributes"]["uuid"] for name, device in before.items()
    }


def test_b017_swapped_card_is_refused(node: PluginNode) -> None:
    name = names(node)[2]
    claim = create_claim(node.api, [result(name, node.name)])
    node.kubelet.prepare_one(claim)
    old = node.gpus.gpu(2)
    node.gpus.unplug(2)
    card = f"GPU-{uuid.uuid4()}"
    new = node.gpus.plug("h100-sxm5-80gb", pci=old.pci_bus_id, minor=old.minor, uuid=card)

    at_once = node.kubelet.prepare_one(claim).error
    node.restart()
    node.wait_published(8)
    later = node.kubelet.prepare_one(claim).error
    for error in (at_once, later):
        assert all(text in error for text in (name, old.uuid, new.uuid)), error

    assert node.kubelet.unprepare_one(claim).error == ""
    following = create_claim(node.api, [result(name, node.name)])
    assert node.kubelet.prepare_one(following).names == [name]


def test_b055_unprepare_needs_neither_the_api_server_nor_nvml(make_node: MakeNode) -> None:
    node = make_node()
    node.start()
    claims = [create_claim(node.api, [result(name, node.name)]) for name in names(node)[:2]]
    node.kubelet.prepare(*claims)
    delete_claim(node.api, claims[0])
    node.stop()
    kubeconfig = node.folder / "away.yaml"
    kubeconfig.write_text(node.kubeconfig.read_text().replace(node.control_plane.url, "https://127.0.0.1:1"))
    node.gpus.load_driver(False)
    node.start(kubeconfig=str(kubeconfig))
    started = time.monotonic()
    answers = node.kubelet.unprepare(*claims)
    assert {answer.error for answer in answers.values()} == {""}
    assert time.monotonic() - started < 5
    assert (node.claims_in_store(), node.cdi_files()) == ({}, [])


def test_b056_unprepare_works_while_nvml_cannot_start_after_a_reboot(node: PluginNode) -> None:
    claim = create_claim(node.api, [result(names(node)[0], node.name)])
    node.kubelet.prepare_one(claim)
    node.kill()
    node.gpus.reboot()
    node.gpus.set_return("nvmlInit_v2", DRIVER_NOT_LOADED)
    node.start()
    assert node.kubelet.register().name == "gpu.nvidia.com"
    assert node.kubelet.unprepare_one(claim).error == ""
    assert (node.claims_in_store(), node.cdi_files()) == ({}, [])


def test_b058_a_half_prepared_claim_is_kept_as_long_as_the_api_server_is_away(make_node: MakeNode) -> None:
    node = make_node()
    node.start()
    claim = create_claim(node.api, [result(names(node)[0], node.name)])
    node.kubelet.prepare_one(claim)
    node.stop()
    write(node, "UPDATE claims SET state = 'preparing'")
    delete_claim(node.api, claim)
    kubeconfig = node.folder / "away.yaml"
    kubeconfig.write_text(node.kubeconfig.read_text().replace(node.control_plane.url, "https://127.0.0.1:1"))
    node.start(kubeconfig=str(kubeconfig), cleanup_seconds="0.1")
    node.wait_log("is kept, the API server did not tell")
    assert node.claims_in_store() == {claim.uid: "preparing"}
    node.stop()
    node.start()
    wait_gone(node, claim)


def test_b058_a_half_prepared_claim_whose_name_another_has_now_is_undone_at_start(node: PluginNode) -> None:
    name = names(node)[0]
    claim = create_claim(node.api, [result(name, node.name)])
    node.kubelet.prepare_one(claim)
    node.stop()
    write(node, "UPDATE claims SET state = 'preparing'")
    delete_claim(node.api, claim)
    other = create_claim(node.api, [result(name, node.name)], name=claim.name)
    node.start()
    wait_gone(node, claim)
    assert node.kubelet.prepare_one(other).names == [name]


def test_b059_claims_that_the_kubelet_forgot_are_freed_after_a_grace_time(make_node: MakeNode) -> None:
    node = make_node()
    node.flags.update({"cleanup-seconds": "0.3", "claim-grace-seconds": "1"})
    node.start()
    first, second, third = names(node)[:3]
    deleted, elsewhere, kept = (
        create_claim(node.api, [result(name, node.name)]) for name in (first, second, third)
    )
    node.kubelet.prepare(deleted, elsewhere, kept)
    delete_claim(node.api, deleted)
    api = ("resource.k8s.io/v1", "ResourceClaim", elsewhere.name)
    node.api.patch(*api, {"status": {"reservedFor": None, "allocation": None}}, subresource="status")
    gone_at = time.monotonic()

    wait_gone(node, deleted)
    assert time.monotonic() - gone_at > 0.9
    wait_gone(node, elsewhere)
    assert node.claims_in_store() == {kept.uid: "prepared"}
    for name in (first, second):
        assert node.kubelet.prepare_one(create_claim(node.api, [result(name, node.name)])).names == [name]


def test_b063_a_damaged_store_is_set_aside_and_rebuilt(make_node: MakeNode) -> None:
    node = make_node(mig={0: ["3g.40gb"]})
    node.start()
    devices = sorted(node.wait_published(8))
    whole = create_claim(node.api, [result(devices[1], node.name)])
    part = create_claim(node.api, [result(devices[0], node.name, "slice")])
    first = node.kubelet.prepare(whole, part)
    node.kill()
    for content in (b"this is no database\n" * 500, b"", whole_store(node)[:5000]):
        damage(node, content)
        node.start()
        wait_until(lambda: len(node.claims_in_store()) == 2, "both claims to be rebuilt", 10)
        assert node.kubelet.prepare(whole, part) == first
        blocked = node.kubelet.prepare_one(create_claim(node.api, [result(devices[1], node.name)]))
        assert f"in use by claim default/{whole.name}" in blocked.error
        node.kill()
    assert len(list(node.data_path.glob("state.db.corrupt-*[0-9]"))) == 2
    wait_until(
        lambda: any("StoreRebuilt" in event for event in node.api.events(node.name)),
        "an event on the Node",
        5,
    )
    node.start()
    gone = node.kubelet.unprepare(whole, part)
    assert {answer.error for answer in gone.values()} == {""}
    assert (node.claims_in_store(), node.cdi_files()) == ({}, [])


def test_b063_a_rebuild_that_is_killed_goes_on_at_the_next_start(node: PluginNode) -> None:
    claim = create_claim(node.api, [result(names(node)[0], node.name)])
    first = node.kubelet.prepare_one(claim)
    node.kill()
    damage(node, b"no database" * 1000)
    node.gpus.set_return("nvmlInit_v2", DRIVER_NOT_LOADED)
    node.start()
    node.wait_log("was moved to")
    node.kill()
    node.gpus.clear_faults()
    node.start()
    wait_until(lambda: node.claims_in_store() == {claim.uid: "prepared"}, "the claim to be rebuilt", 10)
    assert node.kubelet.prepare_one(claim) == first


def test_b063_a_rebuild_skips_a_cdi_file_that_cannot_be_read(node: PluginNode) -> None:
    claim = create_claim(node.api, [result(names(node)[0], node.name)])
    node.kubelet.prepare_one(claim)
    node.kill()
    damage(node, b"no database" * 1000)
    broken = node.cdi_root / f"gpudra.io-claim_{uuid.uuid4()}.json"
    broken.write_text('{"devices": [')
    node.start()
    wait_until(lambda: node.claims_in_store() == {claim.uid: "prepared"}, "the claim to be rebuilt", 10)


def test_b064_a_store_with_more_tables_and_columns_and_fields_keeps_its_claims(node: PluginNode) -> None:
    claim = create_claim(node.api, [result(names(node)[0], node.name)])
    first = node.kubelet.prepare_one(claim)
    node.stop()
    write(node, "CREATE TABLE later (anything TEXT)")
    write(node, "ALTER TABLE claims ADD COLUMN later TEXT")
    ((text,),) = sqlite3.connect(node.store_path).execute("SELECT devices FROM claims").fetchall()
    devices = [{**device, "later": {"deep": 1}} for device in json.loads(text)]
    write(node, "UPDATE claims SET devices = ?", json.dumps(devices))
    node.start()
    assert node.claims_in_store() == {claim.uid: "prepared"}
    assert node.kubelet.prepare_one(claim) == first
    assert node.kubelet.unprepare_one(claim).error == ""


def test_b065_the_state_of_another_driver_in_the_data_folder_is_left_alone(make_node: MakeNode) -> None:
    node = make_node()
    node.data_path.mkdir(parents=True)
    foreign = node.data_path / "checkpoint.json"
    for content in (b'{"v1": {}}', b"\xff\x00 broken"):
        foreign.write_bytes(content)
        node.start()
        assert node.kubelet.register().name == "gpu.nvidia.com"
        assert node.stop() == 0
        assert foreign.read_bytes() == content


def test_b068_after_a_reboot_a_prepared_claim_is_kept_and_made_again(node: PluginNode) -> None:
    claim = create_claim(node.api, [result(name, node.name) for name in names(node)[:2]])
    first = node.kubelet.prepare_one(claim)
    node.kill()
    node.gpus.reboot()
    shutil.rmtree(node.cdi_root)
    node.start()
    assert node.claims_in_store() == {claim.uid: "prepared"}
    assert node.cdi_files() == []
    assert node.kubelet.prepare_one(claim) == first
    assert node.cdi_files() == [f"gpudra.io-claim_{claim.uid}.json"]
    assert node.kubelet.unprepare_one(claim).error == ""


def test_b069_claims_without_a_boot_id_are_verified_before_they_are_trusted(node: PluginNode) -> None:
    claim = create_claim(node.api, [result(names(node)[0], node.name)])
    first = node.kubelet.prepare_one(claim)
    node.stop()
    write(node, "DELETE FROM meta WHERE key = 'boot_id'")
    write(node, "UPDATE claims SET boot_id = ''")
    shutil.rmtree(node.cdi_root)
    node.gpus.lose(0)
    node.start()
    assert node.kubelet.prepare_one(claim).error != ""
    node.gpus.restore(0)
    node.wait_published(8)
    wait_until(lambda: node.kubelet.prepare_one(claim) == first, "the same answer as before", 10)
    assert node.cdi_files() == [f"gpudra.io-claim_{claim.uid}.json"]


def test_b063_an_older_copy_of_the_store_does_not_give_a_gpu_in_use_away(node: PluginNode) -> None:
    name = names(node)[0]
    assert node.stop() == 0
    older = whole_store(node)
    node.start()
    claim = create_claim(node.api, [result(name, node.name)])
    first = node.kubelet.prepare_one(claim)
    assert node.stop() == 0
    damage(node, older)
    node.start()
    wait_until(lambda: node.claims_in_store() == {claim.uid: "prepared"}, "the claim to be back", 10)
    other = node.kubelet.prepare_one(create_claim(node.api, [result(name, node.name)]))
    assert f"in use by claim default/{claim.name}" in other.error
    assert node.cdi_files() == [f"gpudra.io-claim_{claim.uid}.json"]
    assert node.kubelet.prepare_one(claim) == first
    assert node.kubelet.unprepare_one(claim).error == ""


def test_a_store_deleted_under_the_running_plugin_ends_it_before_a_gpu_is_given_twice(
    node: PluginNode,
) -> None:
    name = names(node)[0]
    claim = create_claim(node.api, [result(name, node.name)])
    first = node.kubelet.prepare_one(claim)
    for path in node.data_path.glob("state.db*"):
        path.unlink()
    other = create_claim(node.api, [result(name, node.name)])
    assert "state.db was deleted while this process had it open" in node.kubelet.prepare_one(other).error
    assert node.process is not None
    assert node.process.wait(30) == 1
    assert "state.db was deleted while this process had it open" in node.log()
    node.start()
    wait_until(lambda: node.claims_in_store() == {claim.uid: "prepared"}, "the claim to be rebuilt", 10)
    assert f"in use by claim default/{claim.name}" in node.kubelet.prepare_one(other).error
    assert node.kubelet.prepare_one(claim) == first
