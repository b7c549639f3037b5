"""Unix sockets that survive rolling updates: bound under a private name, then renamed into place.

A gRPC server silently takes the path of another one and, when it ends, removes whatever lies there. So each
server here binds a name of its own, and only the file that it put into place is taken away.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path

import grpc

_LONGEST_PATH_BYTES = 107


class SocketError(Exception):
    """A socket cannot be served; the text names the path and what to do."""


def socket_names(driver: str, pod_uid: str) -> tuple[str, str]:
    """File names of the registration and the DRA socket, unique to the pod where there is one."""
    if not pod_uid:
        return f"{driver}-reg.sock", "dra.sock"
    return f"{driver}-{pod_uid}-reg.sock", f"dra-{pod_uid}.sock"


class SocketServer:
    """A gRPC server at a path. The file appears when it answers and goes first when it stops."""

    def __init__(self, server: grpc.aio.Server, path: Path) -> None:
        self._server = server
        self.path = path
        # The kubelet ignores names that begin with a dot; a rename works only inside one mount.
        self._staged = path.with_name(f".{os.getpid()}-{path.name[-24:]}")
        self._inode = 0

    async def start(self) -> None:
        """Bind, serve, and put the socket into place.

        Raises:
            SocketError: the path is too long, something else lies there, or the folder cannot be written.
        """
        for path in (self.path, self._staged):
            if len(os.fsencode(path)) > _LONGEST_PATH_BYTES:
                raise SocketError(
                    f"socket path {path} has {len(os.fsencode(path))} bytes, the limit is "
                    f"{_LONGEST_PATH_BYTES}: use a shorter --kubelet-plugins-path or --kubelet-registry-path"
                )
        self._check_place()
        try:
            with contextlib.suppress(FileNotFoundError):
                self._staged.unlink()
            self._server.add_insecure_port(f"unix:{self._staged}")
            await self._server.start()
            self._inode = self._staged.stat().st_ino
            self._staged.rename(self.path)
        except (OSError, RuntimeError) as error:
            raise SocketError(
                f"cannot serve {self.path}: {error}; check that {self.path.parent} exists, is writable and "
                "has space"
            ) from error

    def _check_place(self) -> None:
        try:
            mode = self.path.lstat().st_mode
        except FileNotFoundError:
            return
        except OSError as error:
            raise SocketError(f"cannot look at {self.path}: {error}") from error
        if not stat.S_ISSOCK(mode):
            raise SocketError(f"{self.path} is taken by something that is no socket: remove it")

    def was_served(self) -> bool:
        """Whether another process answers at the path now."""
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
            probe.settimeout(1)
            try:
                probe.connect(str(self.path))
            except OSError:
                return False
        return True

    def withdraw(self) -> None:
        """Take the file away, unless another process has put its own there meanwhile."""
        with contextlib.suppress(OSError):
            inode, self._inode = self._inode, 0
            if inode and self.path.stat().st_ino == inode:
                self.path.unlink()

    async def stop(self, grace_seconds: float) -> None:
        """Take the file away and end; calls under way get ``grace_seconds``."""
        self.withdraw()
        await self._server.stop(grace_seconds)
