"""Registration: how the kubelet finds this plugin, and what it says of it."""

from __future__ import annotations

import asyncio
import logging

from driver.claim import DRIVER_NAME
from kubeletplugin.api import pluginregistration_v1_pb2 as messages
from kubeletplugin.api.pluginregistration_v1_pb2_grpc import RegistrationServicer

SUPPORTED_SERVICES = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
"""In the order of preference: the kubelet takes the first that it knows."""

log = logging.getLogger(__name__)


class Registration(RegistrationServicer):
    """Answers the kubelet's questions on the registration socket.

    ``registered`` is set while the kubelet has accepted the plugin. A refusal clears it; the plugin stays on
    offer, since the kubelet tries again by itself.
    """

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self.registered = asyncio.Event()
        self.refusal = ""

    async def GetInfo(  # noqa: N802
        self, request: messages.InfoRequest, context: object
    ) -> messages.PluginInfo:
        return messages.PluginInfo(
            type="DRAPlugin",
            name=DRIVER_NAME,
            endpoint=self._endpoint,
            supported_versions=SUPPORTED_SERVICES,
        )

    async def NotifyRegistrationStatus(  # noqa: N802
        self, request: messages.RegistrationStatus, context: object
    ) -> messages.RegistrationStatusResponse:
        if request.plugin_registered:
            self.refusal = ""
            self.registered.set()
            log.info("the kubelet has registered %s at %s", DRIVER_NAME, self._endpoint)
        else:
            self.refusal = request.error or "no reason given"
            self.registered.clear()
            log.error("the kubelet refused to register %s: %s; it will ask again", DRIVER_NAME, self.refusal)
        return messages.RegistrationStatusResponse()
