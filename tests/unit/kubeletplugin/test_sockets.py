"""Socket files: put into place when they answer, taken away only by who put them there."""

from __future__ import annotations

import socket
from pathlib import Path

import grpc
import pytest

from kubeletplugin.sockets import SocketError, SocketServer, socket_names


@pytest.mark.parametrize(
    ("pod_uid", "names"),
    [
        ("", ("gpu.nvidia.com-reg.sock", "dra.sock")),
        ("1f4a", ("gpu.nvidia.com-1f4a-reg.sock", "dra-1f4a.sock")),
    ],
)
def test_names_are_unique_to_the_pod_where_there_is_one(pod_uid: str, names: tuple[str, str]) -> None:
    assert socket_names("gpu.nvidia.com", pod_uid) == names


async def test_the_file_is_there_while_it_answers(tmp_path: Path) -> None:
    served = SocketServer(grpc.aio.server(), tmp_path / "dra.sock")
    assert not served.was_served()
    await served.start()
    assert served.was_served()
    assert [entry.name for entry in tmp_path.iterdir()] == ["dra.sock"]
    await served.stop(0)
    assert list(tmp_path.iterdir()) == []


async def test_b132_a_file_of_a_process_that_is_gone_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "dra.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    served = SocketServer(grpc.aio.server(), path)
    assert not served.was_served()
    await served.start()
    assert served.was_served()
    await served.stop(0)


async def test_b132_a_late_end_leaves_the_file_of_the_successor(tmp_path: Path) -> None:
    path = tmp_path / "dra.sock"
    old, new = SocketServer(grpc.aio.server(), path), SocketServer(grpc.aio.server(), path)
    await old.start()
    await new.start()
    await old.stop(0)
    assert new.was_served()
    old.withdraw()
    assert new.was_served()
    await new.stop(0)
    assert not path.exists()


async def test_what_is_no_socket_is_named_and_left(tmp_path: Path) -> None:
    path = tmp_path / "dra.sock"
    path.write_text("mine")
    with pytest.raises(SocketError, match="taken by something that is no socket"):
        await SocketServer(grpc.aio.server(), path).start()
    assert path.read_text() == "mine"


async def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(SocketError, match=f"check that {tmp_path}/none exists"):
        await SocketServer(grpc.aio.server(), tmp_path / "none" / "dra.sock").start()


async def test_a_path_that_is_too_long_is_named_with_its_length(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 110)
    with pytest.raises(SocketError, match="the limit is 107"):
        await SocketServer(grpc.aio.server(), path).start()
