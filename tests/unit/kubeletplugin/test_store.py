"""The store: what is written is there for every process, or nothing of it is."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from driver.devices import Footprint
from driver.inventory import PciAddress, Placement
from driver.timeslicing import Interval, NotedInterval
from kubeletplugin import store as store_module
from kubeletplugin.store import (
    SCHEMA_VERSION,
    Store,
    StoreCorrupt,
    StoreError,
    StoreNewer,
    StoreReplaced,
    boot_seconds,
    set_aside,
)
from tests.unit.kubeletplugin.records import held, record


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


def test_a_record_comes_back_as_it_was_put_also_after_opening_anew(path: Path) -> None:
    part = Footprint(PciAddress.parse("0000:65:00.0"), Placement(4, 4), Placement(0, 2))
    put = record(
        held(interval=Interval.SHORT),
        held(
            "gpu-0000-65-00-0-mig-3g40gb-4",
            footprint=part,
            share_id="s",
            admin_access=True,
            gpu_instance_id=2,
            compute_instance_id=0,
        ),
    )
    first = Store(path)
    with first.transaction():
        first.put(put)
    assert first.claims() == {put.claim.uid: put}
    first.close()
    second = Store(path)
    with second.transaction():
        assert second.claims() == {put.claim.uid: put}
        assert [str(gpu) for gpu in second.claims()[put.claim.uid].gpus] == ["0000:65:00.0"]


def test_what_is_published_of_a_device_is_one_value_for_all_that_share_it(path: Path) -> None:
    store = Store(path)
    with store.transaction():
        for number in range(3):
            store.put(record(held(share_id=str(number)), held(share_id=f"{number}+"), uid=f"uid-{number}"))
        store.put(record(held(published={"name": "as it was once"}), uid="uid-3"))
    store.close()
    again = Store(path)
    with again.transaction():
        devices = [device for one in again.claims().values() for device in one.devices]
    assert [device.published["name"] for device in devices] == 6 * ["gpu-0000-65-00-0"] + ["as it was once"]
    assert len({id(device.published) for device in devices}) == 2
    again.close()


def test_every_commit_waits_for_the_disk(path: Path) -> None:
    store = Store(path)
    assert store._connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert store._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_what_another_process_writes_is_seen_in_the_next_transaction(path: Path) -> None:
    one, other = Store(path), Store(path)
    with one.transaction():
        assert one.claims() == {}
    put = record()
    with other.transaction():
        other.put(put)
    with one.transaction():
        assert one.claims() == {put.claim.uid: put}
        one.remove(put.claim.uid)
    with other.transaction():
        assert other.claims() == {}


def test_a_transaction_that_fails_leaves_nothing_in_file_or_memory(path: Path) -> None:
    store = Store(path)
    kept, lost = record(), record()
    with store.transaction():
        store.put(kept)

    def fail() -> None:
        with store.transaction():
            store.put(lost)
            store.remove(kept.claim.uid)
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        fail()
    with store.transaction():
        assert store.claims() == {kept.claim.uid: kept}


def test_a_savepoint_that_fails_takes_only_its_own_part_back(path: Path) -> None:
    store = Store(path)
    kept, lost = record(), record()

    def fail() -> None:
        with store.savepoint():
            store.put(lost)
            raise RuntimeError("no")

    with store.transaction():
        store.put(kept)
        with pytest.raises(RuntimeError, match="no"):
            fail()
        assert store.claims() == {kept.claim.uid: kept}
    with store.transaction():
        assert store.claims() == {kept.claim.uid: kept}


@pytest.mark.parametrize("content", [b"no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_b063_a_file_that_is_no_database_is_told_apart(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreCorrupt, match=str(path)):
        Store(path)


def test_b063_a_database_with_pages_that_are_broken_is_told_apart(path: Path) -> None:
    store = Store(path)
    with store.transaction():
        for _ in range(200):
            store.put(record())
    store._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store.close()
    content = bytearray(path.read_bytes())
    content[4096 * 3 : 4096 * 6] = b"\xa5" * 4096 * 3
    path.write_bytes(bytes(content))
    with pytest.raises(StoreCorrupt, match=str(path)):
        Store(path)


def test_b063_what_is_set_aside_keeps_its_logs(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(f"state.db{suffix}").write_text(suffix or "db")
    target = set_aside(path)
    assert target.name.startswith("state.db.corrupt-2")
    assert sorted(entry.name for entry in path.parent.iterdir()) == [
        target.name,
        f"{target.name}-shm",
        f"{target.name}-wal",
    ]


def test_a_newer_schema_is_refused_and_left(path: Path) -> None:
    Store(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    connection.close()
    with pytest.raises(StoreNewer, match="run the newer program"):
        Store(path)
    with pytest.raises(StoreNewer):
        Store(path)


def test_b064_tables_columns_and_fields_that_are_not_known_are_kept(path: Path) -> None:
    put = record()
    store = Store(path)
    with store.transaction():
        store.put(put)
    store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE claims ADD COLUMN later TEXT DEFAULT 'x'")
        connection.execute("CREATE TABLE other (a)")
        ((text,),) = connection.execute("SELECT devices FROM claims")
        devices = [{**device, "later": [1]} for device in json.loads(text)]
        connection.execute("UPDATE claims SET devices = ?", (json.dumps(devices),))
    connection.close()
    again = Store(path)
    more = record()
    with again.transaction():
        assert again.claims() == {put.claim.uid: put}
        again.put(more)
    with again.transaction():
        assert set(again.claims()) == {put.claim.uid, more.claim.uid}


def test_b064_fields_that_came_later_may_be_missing_in_an_older_store(path: Path) -> None:
    put = record()
    store = Store(path)
    with store.transaction():
        store.put(put)
        ((text,),) = store._connection.execute("SELECT devices FROM claims")
        optional = ("admin_access", "share_id", "gpu_instance_id", "compute_instance_id")
        devices = [{k: v for k, v in device.items() if k not in optional} for device in json.loads(text)]
        store._connection.execute("UPDATE claims SET devices = ?", (json.dumps(devices),))
    store.close()
    again = Store(path)
    with again.transaction():
        assert again.claims() == {put.claim.uid: put}


def test_a_store_that_stays_locked_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "LOCK_TIMEOUT_SECONDS", 0.05)
    store, other = Store(path), Store(path)
    with (
        other.transaction(),
        pytest.raises(StoreError, match="was locked by another process"),
        store.transaction(),
    ):
        pass


def test_a_disk_that_is_full_is_named_and_the_store_goes_on(path: Path) -> None:
    store = Store(path)
    kept = record()
    with store.transaction():
        store.put(kept)
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count={pages}")

    def fill() -> None:
        with store.transaction():
            for _ in range(200):
                store.put(record())

    with pytest.raises(StoreError, match="check that its disk is writable and has space"):
        fill()
    store._connection.execute("PRAGMA max_page_count=100000")
    with store.transaction():
        assert store.claims() == {kept.claim.uid: kept}


def test_b048_claims_that_were_unprepared_are_remembered_for_minutes_of_this_boot(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(path)
    before = boot_seconds()
    with store.transaction():
        assert store.enter_boot("boot-1") == ""
        store.remember_unprepared("a")
        noted = store.unprepared_at("a")
        assert noted is not None
        assert before <= noted <= boot_seconds()
        assert store.unprepared_at("b") is None
        assert store.enter_boot("boot-1") == "boot-1"
        assert store.unprepared_at("a") == noted
    monkeypatch.setattr(store_module, "boot_seconds", lambda: noted + 601)
    with store.transaction():
        store.remember_unprepared("b")
        assert store.unprepared_at("a") is None
        assert store.unprepared_at("b") is not None
        assert store.enter_boot("boot-2") == "boot-1"
        assert store.unprepared_at("b") is None


def test_without_a_boot_id_the_clock_tells_that_the_node_was_booted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(path)
    with store.transaction():
        store.enter_boot("")
        store.remember_unprepared("a")
    monkeypatch.setattr(store_module, "boot_seconds", lambda: 1.0)
    with store.transaction():
        assert store.enter_boot("") == ""
        assert store.unprepared_at("a") is None


def test_b063_a_new_file_is_not_complete_until_it_is_told_so(path: Path) -> None:
    store = Store(path)
    with store.transaction():
        assert not store.is_complete()
        store.set_complete()
    store.close()
    again = Store(path)
    with again.transaction():
        assert again.is_complete()


DEVICES = "UPDATE claims SET devices = ? WHERE uid = 'bad'"


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        (DEVICES, '[{"requests": ["gpu"], "po'),
        (DEVICES, "3"),
        (DEVICES, "[[]]"),
        (DEVICES, "[{}]"),
        (DEVICES, '[{"requests": [], "footprint": {"gpu": {}}}]'),
        (DEVICES, "[" * 100_000),
        (DEVICES, b"\xff\xfe"),
        (DEVICES, 7),
        ("UPDATE claims SET changed_at = ? WHERE uid = 'bad'", "yesterday"),
        ("UPDATE claims SET name = ? WHERE uid = 'bad'", b"\xff"),
        ("UPDATE claims SET name = CAST(? AS TEXT) WHERE uid = 'bad'", b"\xff"),
    ],
)
def test_b063_a_record_that_cannot_be_read_makes_the_store_a_damaged_one(
    path: Path, sql: str, value: object
) -> None:
    store = Store(path)
    with store.transaction():
        store.put(record(uid="good"))
        store.put(record(uid="bad"))
    store.close()
    with sqlite3.connect(path) as connection:
        connection.execute(sql, (value,))
    connection.close()
    with pytest.raises(StoreCorrupt, match=str(path)) as caught:
        Store(path)
    assert "bad" in str(caught.value) or "decode" in str(caught.value)


def test_b064_a_state_of_a_newer_program_is_refused_and_left(path: Path) -> None:
    store = Store(path)
    with store.transaction():
        store.put(record(uid="paused"))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE claims SET state = 'pausing'")
    connection.close()
    with pytest.raises(StoreNewer, match=r"\(UID paused\) has state 'pausing'"), store.transaction():
        pass
    store.close()
    with pytest.raises(StoreNewer, match=f"{path}: claim default/claim .*knows preparing, prepared"):
        Store(path)


def _put_into(store: Store) -> None:
    with store.transaction():
        store.put(record())


@pytest.mark.parametrize("replaced", [False, True])
def test_a_store_whose_file_is_deleted_or_replaced_does_nothing_any_more(path: Path, replaced: bool) -> None:
    store = Store(path)
    with store.transaction():
        store.put(record())
    if replaced:
        Store(path.with_name("other.db")).close()
        path.with_name("other.db").replace(path)
    else:
        path.unlink()
    for _ in range(2):
        with pytest.raises(StoreReplaced, match=f"{path} was {'replaced' if replaced else 'deleted'}"):
            _put_into(store)


def test_a_store_that_is_deleted_within_a_transaction_commits_nothing(path: Path) -> None:
    store = Store(path)

    def delete_and_put() -> None:
        with store.transaction():
            store.put(record())
            path.unlink()

    with pytest.raises(StoreReplaced):
        delete_and_put()
    assert not path.exists()


def test_a_store_that_cannot_be_read_lets_go_of_its_file(path: Path) -> None:
    """Else its connection, when it ends, removes the log of the store that is made in its place."""
    store = Store(path)
    with store.transaction():
        store.put(record())
        store._connection.execute("UPDATE claims SET devices = '['")
    store.close()
    with pytest.raises(StoreCorrupt) as caught:
        Store(path)
    set_aside(path)
    put = record()
    new = Store(path)
    with new.transaction():
        new.put(put)
    del caught
    other = Store(path)
    with other.transaction():
        assert other.claims() == {put.claim.uid: put}


def test_the_log_stays_small_under_many_commits(path: Path) -> None:
    store = Store(path)
    for _ in range(300):
        one = record()
        with store.transaction():
            store.put(one)
        with store.transaction():
            store.remove(one.claim.uid)
    assert path.with_name("state.db-wal").stat().st_size <= 512 * 1024
    store.fold_log()
    assert path.with_name("state.db-wal").stat().st_size == 0


def test_noted_intervals_come_back_until_they_are_forgotten(path: Path) -> None:
    pci = PciAddress.parse("0000:65:00.0")
    one = NotedInterval(pci, "GPU-1", Interval.LONG, "boot-1", holds=True)
    two = NotedInterval(pci, "GPU-2", Interval.DEFAULT, "", holds=False)
    store = Store(path)
    with store.transaction():
        store.note_mig_on("GPU-1", "boot-1")
        store.note_interval(replace(one, holds=False))
        store.note_interval(one)
        store.note_interval(two)
    store.close()
    store = Store(path)
    with store.transaction():
        assert store.noted_intervals() == [one, two]
        assert store.noted_interval("GPU-1") == one
        store.forget_interval("GPU-1")
        assert store.noted_interval("GPU-1") is None
        assert store.noted_intervals() == [two]
        assert store.is_mig_on_ours("GPU-1", "boot-1")


def test_b108_what_was_noted_in_an_earlier_boot_is_forgotten_in_the_next(path: Path) -> None:
    pci = PciAddress.parse("0000:65:00.0")
    store = Store(path)
    with store.transaction():
        store.enter_boot("boot-1")
        store.note_interval(NotedInterval(pci, "GPU-1", Interval.LONG, "boot-1", holds=True))
        store.note_interval(NotedInterval(pci, "GPU-2", Interval.LONG, "", holds=True))
        store.enter_boot("boot-1")
        assert len(store.noted_intervals()) == 2
        store.enter_boot("boot-2")
        assert [noted.gpu_uuid for noted in store.noted_intervals()] == ["GPU-2"]


@pytest.mark.parametrize("text", ["Long", "Forever holds 0000:65:00.0 b", "Long holds 65 b"])
def test_a_damaged_note_of_an_interval_is_named(path: Path, text: str) -> None:
    store = Store(path)
    with store.transaction():
        store._set_meta("time-slice/GPU-1", text)
        with pytest.raises(StoreCorrupt, match=r"state\.db: the time-slice interval noted of GPU GPU-1"):
            store.noted_intervals()


def test_a_record_of_a_program_that_knew_no_intervals_asks_for_none(path: Path) -> None:
    put = record(held(interval=Interval.LONG))
    store = Store(path)
    with store.transaction():
        store.put(put)
    with sqlite3.connect(path) as connection:
        ((devices,),) = connection.execute("SELECT devices FROM claims").fetchall()
        older = [{name: value for name, value in json.loads(devices)[0].items() if name != "interval"}]
        connection.execute("UPDATE claims SET devices = ?", (json.dumps(older),))
    connection.close()
    with store.transaction():
        assert [one.interval for one in store.claims()[put.claim.uid].devices] == [None]
