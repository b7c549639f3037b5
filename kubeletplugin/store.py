"""The store: which claims are prepared on this node, on disk before anybody is told.

One SQLite file (WAL, ``synchronous=FULL``), shared by two plugin processes during a rolling update.
Schema changes only add: a newer program reads an older file and the other way round.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from driver.claim import ClaimReference
from driver.devices import Footprint
from driver.inventory import PciAddress, Placement
from driver.plan import Holding
from driver.timeslicing import Interval, NotedInterval

SCHEMA_VERSION = 1
STORE_NAME = "state.db"
"""The store's file in the plugin's data folder."""
LOCK_TIMEOUT_SECONDS = 10.0
TOMBSTONE_SECONDS = 600.0
_CHECKPOINT_PAGES = 64
_LOG_BYTES = 256 * 1024
"""The log is small, since it shares a disk with others, and is kept at this size as a reserve."""
_INTERVAL_KEY = "time-slice/"
_COLUMNS = "uid, namespace, name, state, boot_id, changed_at, devices"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS claims (
    uid TEXT PRIMARY KEY,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    state TEXT NOT NULL,
    boot_id TEXT NOT NULL DEFAULT '',
    changed_at REAL NOT NULL,
    devices TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS unprepared (
    uid TEXT PRIMARY KEY,
    at REAL NOT NULL
) WITHOUT ROWID;
"""


class StoreError(Exception):
    """The store cannot be used; the text names the file, what is wrong and what to do."""


class StoreCorrupt(StoreError):
    """The file is no database or a damaged one."""


class StoreNewer(StoreError):
    """The file was written by a newer program that an older one must not change."""


class StoreReplaced(StoreError):
    """The file at the store's path is not the one that was opened: the process must end."""


class StoreFull(StoreError):
    """The disk has no space for what was to be written."""


class ClaimState(StrEnum):
    """How far a claim is. ``PREPARING`` found at start means that a process died in the middle."""

    PREPARING = "preparing"
    PREPARED = "prepared"


@dataclass(frozen=True, slots=True)
class HeldDevice:
    """One device of a claim, with all that answering again and undoing it need.

    ``published`` is the device as it stands in a ResourceSlice, kept for when the hardware vanishes while
    the claim holds it. ``uuid`` and ``gpu_uuid`` tell a swapped card. ``profile_id`` is set for a partition,
    an instance that is ours to make and to destroy; until it is made its ids are ``None``, its UUID is empty.
    ``share_id`` is set where other claims may hold shares of the same device, a partition's instance among
    them; ``memory_bytes`` is what the share is granted of its memory.
    ``restore_mig``: MIG mode, which an administrator had turned on, was turned off for this whole GPU.
    ``interval`` is the time-slice interval that the claim asks for on this GPU.
    """

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi_device: str
    uuid: str
    gpu_uuid: str
    footprint: Footprint
    published: dict[str, Any]
    admin_access: bool = False
    share_id: str | None = None
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None
    profile_id: int | None = None
    restore_mig: bool = False
    memory_bytes: int | None = None
    interval: Interval | None = None


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """A claim in the store. ``changed_at`` is in Unix seconds."""

    claim: ClaimReference
    state: ClaimState
    boot_id: str
    changed_at: float
    devices: tuple[HeldDevice, ...]

    def holdings(self) -> Iterator[Holding]:
        for held in self.devices:
            is_share = held.share_id is not None
            yield Holding(self.claim, held.device, held.footprint, held.admin_access, held.interval, is_share)

    @property
    def gpus(self) -> tuple[PciAddress, ...]:
        """The GPUs to lock for a change of this claim, sorted."""
        return tuple(sorted({held.footprint.gpu for held in self.devices if not held.admin_access}))


class Store:
    """The claims table, cached in memory and re-read when another process has written.

    Used by one thread at a time. Every method runs inside the caller's :meth:`transaction`.
    """

    def __init__(self, path: Path) -> None:
        """Open or make the file.

        Raises:
            StoreCorrupt: it is no database, or a claim in it cannot be read.
            StoreNewer: its schema has a major step, or a claim a state, that this program does not know.
            StoreError: it cannot be opened or is locked.
        """
        self.path = path
        self._claims: dict[str, ClaimRecord] = {}
        self._data_version = -1
        self._dirty = True
        try:
            self._connection = sqlite3.connect(
                path, isolation_level=None, timeout=LOCK_TIMEOUT_SECONDS, check_same_thread=False
            )
        except sqlite3.DatabaseError as error:
            raise self._translated(error) from error
        try:
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=FULL")
            self._connection.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")
            self._connection.execute(f"PRAGMA journal_size_limit={_LOG_BYTES}")
            self._identity = _identity(path)
            self._prepare_schema()
            self._read_claims()
        except BaseException as error:
            # A connection that outlives the moving of its file removes the log of the one that is made next.
            self._connection.close()
            if isinstance(error, sqlite3.DatabaseError):
                raise self._translated(error) from error
            raise

    def _prepare_schema(self) -> None:
        version = int(self._connection.execute("PRAGMA user_version").fetchone()[0])
        if version > SCHEMA_VERSION:
            raise StoreNewer(
                f"{self.path} has schema {version}, this program knows {SCHEMA_VERSION}: "
                "run the newer program, or move the file away when no claim is prepared on this node"
            )
        if self._connection.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
            raise StoreCorrupt(f"{self.path} is damaged (PRAGMA quick_check)")
        if version < SCHEMA_VERSION:
            self._connection.executescript(_SCHEMA)
            self._connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")

    def close(self) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """One durable commit: all or nothing, on disk when the block ends.

        Raises:
            StoreReplaced: the file was deleted or replaced; nothing may be done by what is in this one.
            StoreFull: the disk is full; :meth:`fold_log` may make space.
            StoreError: another process holds the lock too long, or the disk is broken.
        """
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.DatabaseError as error:
            self._check_identity()
            raise self._translated(error) from error
        try:
            self._check_identity()
            self._refresh()
            yield
            self._check_identity()
            self._connection.execute("COMMIT")
        except BaseException as error:
            self._dirty = True
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            if isinstance(error, sqlite3.DatabaseError):
                raise self._translated(error) from error
            raise

    @contextlib.contextmanager
    def savepoint(self) -> Iterator[None]:
        """A part of a transaction that can fail without the rest.

        Raises:
            StoreError: the disk is full or broken; then the whole transaction must be given up.
        """
        try:
            self._connection.execute("SAVEPOINT part")
            try:
                yield
            except sqlite3.DatabaseError:
                raise
            except BaseException:
                self._connection.execute("ROLLBACK TO part")
                self._connection.execute("RELEASE part")
                self._dirty = True
                self._refresh()
                raise
            self._connection.execute("RELEASE part")
        except sqlite3.DatabaseError as error:
            raise self._translated(error) from error

    def fold_log(self) -> None:
        """Move what is in the log into the database, and give the log's space back.

        Raises:
            StoreError: there is no space for that either.
        """
        try:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.DatabaseError as error:
            raise self._translated(error) from error

    def _check_identity(self) -> None:
        try:
            found = _identity(self.path)
        except OSError:
            found = None
        if found != self._identity:
            what = "deleted" if found is None else "replaced by another file"
            raise StoreReplaced(
                f"{self.path} was {what} while this process had it open: nothing is prepared or unprepared "
                "by it any more; the next start of the plugin opens or rebuilds what is at that path"
            )

    def _refresh(self) -> None:
        version = self._connection.execute("PRAGMA data_version").fetchone()[0]
        if version == self._data_version and not self._dirty:
            return
        self._claims = self._read_claims()
        self._data_version, self._dirty = version, False

    def _read_claims(self) -> dict[str, ClaimRecord]:
        rows = self._connection.execute(f"SELECT {_COLUMNS} FROM claims")
        published: dict[str, dict[str, Any]] = {}
        return {row[0]: self._record(row, published) for row in rows}

    def _record(self, row: tuple[Any, ...], published: dict[str, dict[str, Any]]) -> ClaimRecord:
        """The claim of a row; ``published`` are devices by name that were read already."""
        uid, namespace, name, state, boot_id, changed_at, devices = row
        if not all(isinstance(text, str) for text in (uid, namespace, name, state, boot_id)):
            raise StoreCorrupt(
                f"{self.path}: the record of claim UID {uid!r} is damaged: a column is no text"
            )
        if state not in list(ClaimState):
            raise StoreNewer(
                f"{self.path}: claim {namespace}/{name} (UID {uid}) has state {state!r}, this program knows "
                f"{', '.join(ClaimState)}: run the newer program that wrote it, or move the file away when "
                "no claim is prepared on this node"
            )
        try:
            held = tuple(_held(entry, published) for entry in json.loads(devices))
            since = float(changed_at)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise StoreCorrupt(
                f"{self.path}: the record of claim {namespace}/{name} (UID {uid}) is damaged: {error!r}"
            ) from error
        return ClaimRecord(ClaimReference(namespace, name, uid), ClaimState(state), boot_id, since, held)

    def _translated(self, error: sqlite3.DatabaseError) -> StoreError:
        text = str(error)
        if "locked" in text or "busy" in text:
            return StoreError(
                f"{self.path} was locked by another process for {LOCK_TIMEOUT_SECONDS:.0f} s; "
                "trying again is safe"
            )
        if isinstance(error, sqlite3.OperationalError) and not any(
            sign in text for sign in ("malformed", "decode")
        ):
            kind = StoreFull if "full" in text else StoreError
            return kind(f"{self.path}: {text}; check that its disk is writable and has space")
        return StoreCorrupt(f"{self.path} is no usable database: {text}")

    def claims(self) -> dict[str, ClaimRecord]:
        """All claims by UID. Not to be changed by the caller."""
        return self._claims

    def put(self, record: ClaimRecord) -> None:
        self._connection.execute(
            f"INSERT OR REPLACE INTO claims ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                record.claim.uid,
                record.claim.namespace,
                record.claim.name,
                record.state.value,
                record.boot_id,
                record.changed_at,
                json.dumps([_entry(held) for held in record.devices], separators=(",", ":")),
            ),
        )
        self._claims[record.claim.uid] = record

    def remove(self, uid: str) -> None:
        self._connection.execute("DELETE FROM claims WHERE uid = ?", (uid,))
        self._claims.pop(uid, None)

    def remember_unprepared(self, uid: str) -> None:
        """Remember for some minutes that the kubelet gave the claim up: a late Prepare is refused."""
        now = boot_seconds()
        self._connection.execute("INSERT OR REPLACE INTO unprepared (uid, at) VALUES (?, ?)", (uid, now))
        self._connection.execute("DELETE FROM unprepared WHERE at < ?", (now - TOMBSTONE_SECONDS,))

    def unprepared_at(self, uid: str) -> float | None:
        """When the claim was unprepared (in :func:`boot_seconds`), if that was lately."""
        row = self._connection.execute("SELECT at FROM unprepared WHERE uid = ?", (uid,)).fetchone()
        return None if row is None else float(row[0])

    def enter_boot(self, boot_id: str) -> str:
        """Note under which boot the node runs now; returns the boot id noted before (``""`` if none)."""
        before = self._meta("boot_id")
        if before != boot_id:
            self._connection.execute("DELETE FROM unprepared")
            for noted in self.noted_intervals():
                if not noted.may_be_of_boot(boot_id):
                    self.forget_interval(noted.gpu_uuid)
            self._set_meta("boot_id", boot_id)
        # Without a readable boot id the clock alone tells that the node was booted.
        self._connection.execute("DELETE FROM unprepared WHERE at > ?", (boot_seconds(),))
        return before

    def is_complete(self) -> bool:
        """Whether it has all that is prepared on this node; a new file has not, until it is told so."""
        return self._meta("complete") == "yes"

    def set_complete(self) -> None:
        self._set_meta("complete", "yes")

    def note_mig_on(self, gpu_uuid: str, boot_id: str) -> None:
        """Note, before it is done, that it is us who turn a GPU's MIG mode on in this boot."""
        self._set_meta(f"mig-on/{gpu_uuid}", boot_id)

    def forget_mig_on(self, gpu_uuid: str) -> None:
        if self._meta(f"mig-on/{gpu_uuid}"):
            self._connection.execute("DELETE FROM meta WHERE key = ?", (f"mig-on/{gpu_uuid}",))

    def is_mig_on_ours(self, gpu_uuid: str, boot_id: str) -> bool:
        """Whether MIG mode, if it is on, was turned on by us and not by an administrator.

        Without a readable boot id nobody knows: it counts as the administrator's.
        """
        return boot_id != "" and self._meta(f"mig-on/{gpu_uuid}") == boot_id

    def note_interval(self, noted: NotedInterval) -> None:
        """Note what time-slice interval a GPU has, or is about to get, because of us."""
        state = "holds" if noted.holds else "begun"
        self._set_meta(
            f"{_INTERVAL_KEY}{noted.gpu_uuid}", f"{noted.interval} {state} {noted.pci} {noted.boot_id}"
        )

    def forget_interval(self, gpu_uuid: str) -> None:
        self._connection.execute("DELETE FROM meta WHERE key = ?", (f"{_INTERVAL_KEY}{gpu_uuid}",))

    def noted_interval(self, gpu_uuid: str) -> NotedInterval | None:
        """What is noted of a GPU. Raises StoreCorrupt."""
        text = self._meta(f"{_INTERVAL_KEY}{gpu_uuid}")
        return self._noted_interval(gpu_uuid, text) if text else None

    def noted_intervals(self) -> list[NotedInterval]:
        """What is noted of all GPUs, by UUID. Raises StoreCorrupt."""
        rows = self._connection.execute(
            "SELECT key, value FROM meta WHERE key >= ? AND key < ? ORDER BY key",
            (_INTERVAL_KEY, f"{_INTERVAL_KEY}\uffff"),
        )
        return [self._noted_interval(key.removeprefix(_INTERVAL_KEY), value) for key, value in rows]

    def _noted_interval(self, gpu_uuid: str, text: str) -> NotedInterval:
        try:
            interval, state, pci, boot_id = text.split(" ", 3)
            return NotedInterval(
                PciAddress.parse(pci), gpu_uuid, Interval(interval), boot_id, state == "holds"
            )
        except ValueError as error:
            raise StoreCorrupt(
                f"{self.path}: the time-slice interval noted of GPU {gpu_uuid} is damaged: {error}"
            ) from error

    def _meta(self, key: str) -> str:
        row = self._connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return "" if row is None else str(row[0])

    def _set_meta(self, key: str, value: str) -> None:
        self._connection.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (key, value))


def boot_seconds() -> float:
    """Seconds since boot: the same clock in every process of the node, and never set back."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def set_aside(path: Path) -> Path:
    """Move a database that cannot be read, with its log files, out of the way; returns the new path."""
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    target = path.with_name(f"{path.name}.corrupt-{stamp}")
    path.rename(target)
    for suffix in ("-wal", "-shm"):
        log = path.with_name(path.name + suffix)
        if log.exists():
            log.rename(target.with_name(target.name + suffix))
    return target


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _entry(held: HeldDevice) -> dict[str, Any]:
    # Not dataclasses.asdict as a whole: it would copy what is published value by value, in each commit.
    entry = {name: getattr(held, name) for name in HeldDevice.__slots__}
    entry["footprint"] = asdict(held.footprint)
    return entry


def _held(entry: dict[str, Any], published: dict[str, dict[str, Any]]) -> HeldDevice:
    known = {key: entry[key] for key in HeldDevice.__slots__ if key in entry}
    # One value for all shares of a device: it is the larger part of a record.
    alike = published.setdefault(known["device"], known["published"])
    if alike == known["published"]:
        known["published"] = alike
    footprint = entry["footprint"]
    known["footprint"] = Footprint(
        PciAddress(**footprint["gpu"]),
        _placement(footprint["placement"]),
        _placement(footprint["compute_placement"]),
    )
    # Formatting tells numbers from anything else.
    str(known["footprint"].gpu)
    known["requests"] = tuple(entry["requests"])
    if known.get("interval") is not None:
        known["interval"] = Interval(known["interval"])
    return HeldDevice(**known)


def _placement(value: dict[str, int] | None) -> Placement | None:
    return None if value is None else Placement(**value)
