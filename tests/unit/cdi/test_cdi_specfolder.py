from __future__ import annotations

import errno
import os
import stat
import threading
import time
from pathlib import Path

import pytest

from cdi import specfolder
from cdi.claimspec import claim_spec
from cdi.spec import ContainerEdits, to_json
from cdi.specfolder import SpecFolder, SpecFolderError
from tests.unit.cdi.cdivalidator import validate

UID = "5c3e7c5e-8f7b-4f0e-9a53-1b6a7f0f3c11"


def content(uid: str = UID, value: str = "1") -> bytes:
    return to_json(claim_spec(uid, {"gpu": ContainerEdits(env=(f"A={value}",))}, ContainerEdits()))


def test_write_read_remove(tmp_path: Path) -> None:
    folder = SpecFolder(tmp_path)
    assert folder.read(UID) is None
    folder.write(UID, content())
    assert (tmp_path / f"gpudra.io-claim_{UID}.json").read_bytes() == folder.read(UID) == content()
    assert folder.claim_uids() == {UID}
    folder.write(UID, content(value="2"))
    assert folder.read(UID) == content(value="2")
    folder.remove(UID)
    folder.remove(UID)
    assert list(tmp_path.iterdir()) == []


def test_b129_mode_lets_the_runtime_read_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        folder = SpecFolder(tmp_path / "cdi")
        folder.write(UID, content())
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "cdi").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / f"cdi/gpudra.io-claim_{UID}.json").stat().st_mode) == 0o644


def test_b127_a_folder_that_was_deleted_is_made_again(tmp_path: Path) -> None:
    folder = SpecFolder(tmp_path / "run" / "cdi")
    folder.write(UID, content())
    folder.remove(UID)
    folder.path.rmdir()
    assert folder.claim_uids() == set()
    assert folder.sweep(set()) == []
    folder.remove(UID)
    folder.write(UID, content())
    assert folder.read(UID) == content()


def test_b128_sweep_takes_our_dead_specs_and_nothing_else(tmp_path: Path) -> None:
    folder = SpecFolder(tmp_path)
    for uid in ("live", "dead"):
        folder.write(uid, content(uid))
    foreign = [
        "k8s.gpu.nvidia.com-claim_dead.yaml",
        "nvidia.yaml",
        "gpudra.io-other_dead.json",
        "gpudra.io-claim_.json",
        "gpudra.io-claim_dead.yaml",
        "spec.123.tmp",
    ]
    for name in foreign:
        (tmp_path / name).write_text("{}")
    (tmp_path / "gpudra.io-claim_folder.json").mkdir()
    assert folder.sweep({"live"}) == ["gpudra.io-claim_dead.json"]
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {*foreign, "gpudra.io-claim_live.json", "gpudra.io-claim_folder.json"}


def test_b128_sweep_takes_a_half_written_file_when_its_writer_is_gone(tmp_path: Path) -> None:
    old = tmp_path / "gpudra.io-claim_a.0123456789abcdef.tmp"
    new = tmp_path / "gpudra.io-claim_b.0123456789abcdef.tmp"
    for path in (old, new):
        path.write_text("{")
    past = time.time() - specfolder.TEMPORARY_FILE_AGE_SECONDS - 1
    os.utime(old, (past, past))
    assert SpecFolder(tmp_path).sweep(set()) == [old.name]
    assert list(tmp_path.iterdir()) == [new]


def test_a_claim_prepared_during_a_sweep_stays(tmp_path: Path) -> None:
    folder = SpecFolder(tmp_path)
    folder.write("dead", content("dead"))
    listed = folder.claim_uids()
    folder.write("new", content("new"))
    assert folder.sweep(set(), among=listed) == ["gpudra.io-claim_dead.json"]
    assert folder.claim_uids() == {"new"}


@pytest.mark.parametrize("uid", ["", "../etc/passwd", "a/b", ".", "a b"])
def test_a_uid_that_is_no_file_name_is_refused(tmp_path: Path, uid: str) -> None:
    with pytest.raises(ValueError, match="cannot be part of a file name"):
        SpecFolder(tmp_path).write(uid, content())


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.EROFS, "mount it read-write"),
        (errno.ENOSPC, "free space"),
        (errno.EACCES, "run the plugin as root"),
        (errno.EIO, "check the folder"),
    ],
)
def test_b124_an_unwritable_folder_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, advice: str
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    folder = SpecFolder(tmp_path)
    monkeypatch.setattr(os, "open", refuse)
    for action in (folder.check_writable, lambda: folder.write(UID, content())):
        with pytest.raises(SpecFolderError) as caught:
            action()
        assert str(tmp_path) in str(caught.value)
        assert os.strerror(code) in str(caught.value)
        assert advice in str(caught.value)


def test_a_full_disk_leaves_the_old_spec_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = SpecFolder(tmp_path)
    folder.write(UID, content())

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fchmod", full)
    with pytest.raises(SpecFolderError, match="No space left"):
        folder.write(UID, content(value="2"))
    assert folder.read(UID) == content()
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_in_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "cdi").write_text("")
    folder = SpecFolder(tmp_path / "cdi")
    for action in (folder.check_writable, folder.claim_uids, lambda: folder.read(UID)):
        with pytest.raises(SpecFolderError, match="Not a directory; choose a folder with --cdi-root"):
            action()


def test_check_writable_leaves_nothing(tmp_path: Path) -> None:
    SpecFolder(tmp_path / "cdi").check_writable()
    assert list((tmp_path / "cdi").iterdir()) == []


def test_b129_a_watching_reader_never_sees_an_incomplete_file(tmp_path: Path) -> None:
    folder = SpecFolder(tmp_path)
    finished = threading.Event()
    checked: list[str] = []
    broken: list[str] = []

    def watch() -> None:
        while not finished.is_set():
            for path in tmp_path.glob("*.json"):
                try:
                    found = path.read_bytes()
                    mode = path.stat().st_mode
                except FileNotFoundError:
                    continue
                try:
                    validate(found)
                except Exception as error:
                    broken.append(f"{path.name}: {error}")
                if stat.S_IMODE(mode) != 0o644:
                    broken.append(f"{path.name}: mode {mode:o}")
                checked.append(path.name)

    def write(part: int) -> None:
        for i in range(250):
            uid = f"claim-{part}-{i}"
            folder.write(uid, content(uid))
            folder.write(uid, content(uid, "2"))
            folder.remove(uid)

    watcher = threading.Thread(target=watch)
    writers = [threading.Thread(target=write, args=(part,)) for part in range(4)]
    watcher.start()
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join(60)
    finished.set()
    watcher.join(60)
    assert broken == []
    assert checked
    assert list(tmp_path.iterdir()) == []
