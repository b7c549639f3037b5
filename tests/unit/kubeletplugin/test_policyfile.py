"""The file of the node policy: a change is seen, and what is wrong with it changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from driver.gpuselection import GpuSelection
from driver.migoffer import MigPolicy
from driver.nodepolicy import NodePolicy
from driver.shares import ShareMode, Shares
from kubeletplugin.metrics import Metrics
from kubeletplugin.policyfile import LONGEST_BYTES, PolicyFile, PolicyFileError, read_policy
from tests.unit.kubeletplugin.test_publisher import until

HEAD = "apiVersion: gpudra.io/v1alpha1\nkind: NodePolicy\n"
DEFAULTS = NodePolicy(GpuSelection.parse(["0"]), MigPolicy.STATIC)


def places(number: int) -> str:
    return f"{HEAD}spec: {{entries: [{{shares: {number}}}]}}\n"


def replace(path: Path, text: str) -> None:
    """As an editor that never leaves half a file."""
    other = path.with_suffix(".new")
    other.write_text(text)
    other.rename(path)


@dataclass
class Watched:
    metrics: Metrics = field(default_factory=Metrics)
    applied: list[NodePolicy] = field(default_factory=list)
    events: list[tuple[str, str]] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)

    def announce(self, reason: str, message: str) -> None:
        self.threads.add(threading.get_ident())
        self.events.append((reason, message))

    def apply(self, policy: NodePolicy) -> None:
        self.threads.add(threading.get_ident())
        self.applied.append(policy)

    @property
    def valid(self) -> bool:
        return self.metrics.registry.get_sample_value("gpudra_node_policy_valid") == 1

    def places(self) -> list[int]:
        """The numbers of places in each policy that was applied."""
        return [entry.shares.places for policy in self.applied for entry in policy.entries if entry.shares]


@contextlib.asynccontextmanager
async def watching(path: Path) -> AsyncIterator[Watched]:
    watched = Watched()
    file = PolicyFile(
        path, read_policy(path, DEFAULTS), watched.metrics, watched.announce, period_seconds=0.01
    )
    task = asyncio.create_task(file.run(watched.apply))
    try:
        yield watched
        assert not task.done()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "policy.yaml"
    file.write_text(places(5))
    return file


def test_a_file_is_read_with_the_flags_as_defaults(path: Path) -> None:
    policy = read_policy(path, DEFAULTS)
    assert (policy.excluded, policy.mig) == (DEFAULTS.excluded, MigPolicy.STATIC)
    assert [entry.shares for entry in policy.entries] == [Shares(ShareMode.PLACES, 5)]


def test_values_are_what_they_look_like(path: Path) -> None:
    path.write_text(f"{HEAD}spec: {{entries: [{{gpus: [0000:17:00.0, 3], mig: off}}]}}")
    (entry,) = read_policy(path, DEFAULTS).entries
    assert (entry.gpus, entry.mig) == (GpuSelection.parse(["0000:17:00.0", "3"]), MigPolicy.OFF)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["must be an object with kind NodePolicy, not None"]),
        ("kind: [", ["is no YAML document"]),
        (places(1), ["field spec.entries.0.shares: 1", "from 2 to 256"]),
        (f"{HEAD}kind: NodePolicy", ["is no YAML document", "key 'kind' is there twice"]),
        (f"{HEAD}metadata: !!int x", ["is no YAML document"]),
        (HEAD + "[" * 3000, ["is no YAML document"]),
        pytest.param("#" * (LONGEST_BYTES + 1), ["is longer than 1048576 bytes"], id="long"),
    ],
)
async def test_a_bad_file_keeps_what_held_and_is_told_once(path: Path, text: str, words: list[str]) -> None:
    async with watching(path) as watched:
        await asyncio.sleep(0.05)
        assert (watched.applied, watched.events, watched.valid) == ([], [], True)
        replace(path, text)
        await until(lambda: not watched.valid)
        await asyncio.sleep(0.1)
        ((reason, message),) = watched.events
        assert reason == "NodePolicyInvalid"
        for word in ["what the node policy said before stays in force", str(path), *words]:
            assert word in message
        replace(path, places(5))
        await until(lambda: watched.valid)
        assert watched.applied == []
        # Wrong again is news again.
        replace(path, text)
        await until(lambda: len(watched.events) == 2)
        replace(path, places(7))
        await until(lambda: watched.places() == [7])
        assert watched.valid
    path.write_text(text)
    with pytest.raises(PolicyFileError) as raised:
        read_policy(path, DEFAULTS)
    for word in [str(path), *words]:
        assert word in str(raised.value)


async def test_each_other_thing_that_is_wrong_is_told(path: Path) -> None:
    async with watching(path) as watched:
        for wrong in (0, 1, 300):
            replace(path, places(wrong))
            await until(lambda: f"entries.0.shares: {wrong} " in "".join(text for _, text in watched.events))  # noqa: B023
        assert len(watched.events) == 3


async def test_a_change_is_seen_once_and_in_the_event_loop(path: Path) -> None:
    async with watching(path) as watched:
        replace(path, places(6))
        await until(lambda: watched.places() == [6])
        await asyncio.sleep(0.05)
        replace(path, f"# a comment\n{places(6)}")
        await asyncio.sleep(0.05)
        assert watched.places() == [6]
        path.write_text("")
        await until(lambda: bool(watched.events))
        assert watched.threads == {threading.get_ident()}
        policy = watched.applied[0]
        assert (policy.excluded, policy.mig) == (DEFAULTS.excluded, MigPolicy.STATIC)
        replace(path, HEAD)
        await until(lambda: watched.applied[-1] == DEFAULTS)


async def test_a_file_that_goes_and_comes_back(path: Path) -> None:
    async with watching(path) as watched:
        path.unlink()
        await until(lambda: not watched.valid)
        ((reason, message),) = watched.events
        assert reason == "NodePolicyInvalid"
        assert str(path) in message
        assert "cannot be read" in message
        assert "No such file" in message
        path.mkdir()
        await until(lambda: len(watched.events) == 2)
        assert "no regular file" in watched.events[1][1]
        path.rmdir()
        # Nobody writes into it: whoever opens it as a file waits for ever.
        os.mkfifo(path)
        await asyncio.sleep(0.05)
        path.unlink()
        path.symlink_to(path.name)
        await until(lambda: len(watched.events) == 3)
        assert "symbolic links" in watched.events[2][1]
        path.unlink()
        path.write_text(places(8))
        await until(lambda: watched.valid)
        assert watched.places() == [8]
    with pytest.raises(PolicyFileError, match="cannot be read"):
        read_policy(path.with_name("other"), DEFAULTS)


async def test_a_config_map_is_swapped_as_a_whole_folder(tmp_path: Path) -> None:
    """The kubelet mounts ``policy.yaml -> ..data/policy.yaml`` and ``..data -> ..<time>``."""
    mount = tmp_path / "config"
    mount.mkdir()

    def publish(version: str, text: str | None) -> None:
        folder = mount / f"..{version}"
        folder.mkdir()
        if text is not None:
            (folder / "policy.yaml").write_text(text)
        (mount / "..data_tmp").symlink_to(folder.name)
        (mount / "..data_tmp").rename(mount / "..data")

    publish("2026_01_01", places(5))
    file = mount / "policy.yaml"
    file.symlink_to("..data/policy.yaml")
    async with watching(file) as watched:
        publish("2026_01_02", places(6))
        await until(lambda: watched.places() == [6])
        # The same time of change and the same length, as of two versions in one second.
        stamp = file.stat()
        publish("2026_01_03", places(7))
        os.utime(file.resolve(), ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        await until(lambda: watched.places() == [6, 7])
        publish("2026_01_04", None)
        await until(lambda: not watched.valid)
        publish("2026_01_05", places(8))
        await until(lambda: watched.places() == [6, 7, 8])
        assert watched.valid
