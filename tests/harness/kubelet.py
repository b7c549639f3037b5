"""The kubelet's side of the plugin's sockets: the calls that a kubelet makes, over real gRPC."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from kubeletplugin.api import dra_v1_pb2, pluginregistration_v1_pb2
from kubeletplugin.api.dra_v1_pb2_grpc import DRAPluginStub
from kubeletplugin.api.pluginregistration_v1_pb2_grpc import RegistrationStub
from tests.cluster.api import wait_until
from tests.harness.claims import Claim

CALL_SECONDS = 45.0
"""What the kubelet gives a call."""


@dataclass(frozen=True)
class Answer:
    """The entry of one claim: an error, or its devices as (requests, pool, device, CDI ids, share id)."""

    error: str
    devices: tuple[dra_v1_pb2.Device, ...] = ()

    @property
    def cdi_ids(self) -> list[str]:
        return [cdi_id for device in self.devices for cdi_id in device.cdi_device_ids]

    @property
    def names(self) -> list[str]:
        return [device.device_name for device in self.devices]


class Kubelet:
    """A client of one plugin. ``call_seconds`` is the deadline of a Prepare or Unprepare."""

    def __init__(self, dra_socket: Path, registration_socket: Path) -> None:
        self._registration = grpc.insecure_channel(f"unix:{registration_socket}")
        self._dra = grpc.insecure_channel(f"unix:{dra_socket}")
        self.registration = RegistrationStub(self._registration)
        self.dra = DRAPluginStub(self._dra)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._registration.close()
        self._dra.close()

    def register(self) -> pluginregistration_v1_pb2.PluginInfo:
        """Ask who is there and say that it is registered."""
        info = self.registration.GetInfo(pluginregistration_v1_pb2.InfoRequest(), timeout=1.0)
        self.notify(registered=True)
        return info

    def notify(self, *, registered: bool, error: str = "") -> None:
        status = pluginregistration_v1_pb2.RegistrationStatus(plugin_registered=registered, error=error)
        self.registration.NotifyRegistrationStatus(status, timeout=5.0)

    def prepare(self, *claims: Claim, timeout: float = CALL_SECONDS) -> Mapping[str, Answer]:
        """NodePrepareResources; answers by claim UID. Raises grpc.RpcError for the whole call."""
        request = dra_v1_pb2.NodePrepareResourcesRequest(claims=_messages(claims))
        response = self.dra.NodePrepareResources(request, timeout=timeout)
        return {uid: Answer(entry.error, tuple(entry.devices)) for uid, entry in response.claims.items()}

    def unprepare(self, *claims: Claim, timeout: float = CALL_SECONDS) -> Mapping[str, Answer]:
        """NodeUnprepareResources; answers by claim UID. Raises grpc.RpcError for the whole call."""
        request = dra_v1_pb2.NodeUnprepareResourcesRequest(claims=_messages(claims))
        response = self.dra.NodeUnprepareResources(request, timeout=timeout)
        return {uid: Answer(entry.error) for uid, entry in response.claims.items()}

    def prepare_one(self, claim: Claim, timeout: float = CALL_SECONDS) -> Answer:
        """Prepare one claim; asserts nothing but that exactly it was answered."""
        answers = self.prepare(claim, timeout=timeout)
        assert set(answers) == {claim.uid}, answers
        return answers[claim.uid]

    def unprepare_one(self, claim: Claim, timeout: float = CALL_SECONDS) -> Answer:
        answers = self.unprepare(claim, timeout=timeout)
        assert set(answers) == {claim.uid}, answers
        return answers[claim.uid]


def _messages(claims: Iterable[Claim]) -> list[Any]:
    return [dra_v1_pb2.Claim(namespace=claim.namespace, uid=claim.uid, name=claim.name) for claim in claims]


def wait_for_socket(path: Path, timeout: float, check: Callable[[], None]) -> float:
    """Wait until somebody answers on a socket; returns the seconds that it took.

    ``check`` raises what is wrong when it is of no use to go on.
    """
    started = time.monotonic()

    def answers() -> bool:
        check()
        if not path.exists():
            return False
        with grpc.insecure_channel(f"unix:{path}") as channel:
            try:
                RegistrationStub(channel).GetInfo(pluginregistration_v1_pb2.InfoRequest(), timeout=1.0)
            except grpc.RpcError:
                return False
        return True

    wait_until(answers, f"a plugin at {path}", timeout)
    return time.monotonic() - started
