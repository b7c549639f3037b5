"""The service: starts the parts in the order that the kubelet needs, and ends them in the reverse."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Collection
from typing import NoReturn

import grpc

from cdi.specfolder import SpecFolder, SpecFolderError
from driver.claim import DRIVER_NAME
from driver.nvml import call_of_thread
from kube import logs
from kube.asyncclient import AsyncKubeClient
from kube.client import KubeClient
from kube.errors import ApiError, ApiUnavailable
from kube.events import EventRecorder
from kube.probes import ProbeServer
from kubeletplugin.api.pluginregistration_v1_pb2_grpc import add_RegistrationServicer_to_server
from kubeletplugin.claimsource import ClaimSource
from kubeletplugin.claimstatus import StatusWriter
from kubeletplugin.cleanup import Cleanup
from kubeletplugin.draservice import DraService
from kubeletplugin.engine import ClaimEngine
from kubeletplugin.featureprobe import COUNTERS, SHARED_DEVICES, TAINTS, FeatureProbe
from kubeletplugin.gpulocks import GpuLocks
from kubeletplugin.hardware import GpuHardware
from kubeletplugin.health import Health
from kubeletplugin.lanes import Lanes
from kubeletplugin.metrics import Metrics
from kubeletplugin.nodepartition import PartitionReports, PartitionSource
from kubeletplugin.ownmodes import OwnModes
from kubeletplugin.policyfile import PolicyFile
from kubeletplugin.publisher import PublishError, SlicePublisher
from kubeletplugin.publishing import Publishing
from kubeletplugin.rebuild import open_store, rebuild
from kubeletplugin.registration import Registration
from kubeletplugin.reports import ClaimReports, NodeReports
from kubeletplugin.serverversion import ServerVersion
from kubeletplugin.settings import Settings
from kubeletplugin.sockets import SocketServer, socket_names
from kubeletplugin.store import ClaimRecord, StoreError, StoreReplaced
from kubeletplugin.storethread import StoreThread

_STOP_SECONDS = 1.2
_DRAIN_SECONDS = 0.2
_REBUILD_PAUSE_SECONDS = 10.0

log = logging.getLogger(__name__)


class Service:
    """All parts of one plugin process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._metrics = metrics = Metrics()
        self._lanes = lanes = Lanes(call_of_thread)
        self._stopping = asyncio.Event()
        store, self._set_aside = open_store(settings.data_path)
        self._store = StoreThread(store)
        self._specs = SpecFolder(settings.cdi_root)
        self._client = AsyncKubeClient(
            KubeClient.load(
                settings.kubeconfig,
                on_request=lambda verb, code, seconds: metrics.api_requests.labels(verb, code).inc(),
            )
        )
        self._events = EventRecorder(self._client, component=DRIVER_NAME, host=settings.node_name)
        self._reports = NodeReports(
            metrics,
            self._events,
            settings.node_name,
            on_dropped=lambda dropped: self._publishing.dropped(dropped),
        )
        self._hardware = hardware = GpuHardware(
            settings, lanes, metrics, self._reports.warning, self._records
        )
        self._boot_id = hardware.boot_id()
        locks = GpuLocks(settings.data_path / "locks")
        self._engine = engine = ClaimEngine(
            hardware=hardware,
            store=self._store,
            locks=locks,
            specs=self._specs,
            lanes=lanes,
            metrics=metrics,
            pool=settings.pool_name,
            boot_id=self._boot_id,
        )
        self._own_modes = OwnModes(
            hardware,
            self._store,
            locks,
            metrics,
            self._reports.warning,
            policy=lambda: hardware.policy,
            boot_id=self._boot_id,
        )
        self._policy_file = None
        if settings.config is not None:
            self._policy_file = PolicyFile(
                settings.config,
                settings.policy,
                metrics,
                self._reports.warning,
                period_seconds=settings.rescan_seconds,
            )
        self._status = StatusWriter(self._client, metrics, self._events)
        self._publisher = SlicePublisher(
            self._client, driver=DRIVER_NAME, node_name=settings.node_name, observer=self._reports
        )
        self._counter_probe = FeatureProbe(
            self._client,
            COUNTERS,
            metrics.counters_supported,
            driver=DRIVER_NAME,
            node_name=settings.node_name,
        )
        self._share_probe = FeatureProbe(
            self._client,
            SHARED_DEVICES,
            metrics.shared_devices_supported,
            driver=DRIVER_NAME,
            node_name=settings.node_name,
        )
        self._taint_probe = FeatureProbe(
            self._client,
            TAINTS,
            metrics.taints_supported,
            driver=DRIVER_NAME,
            node_name=settings.node_name,
        )
        self._server_version = ServerVersion(self._client)
        self._partitions = PartitionSource(
            self._client, hardware, self._records, self._reports.warning, node_name=settings.node_name
        )
        self._publishing = Publishing(
            hardware,
            engine,
            self._publisher,
            self._counter_probe,
            self._share_probe,
            self._taint_probe,
            self._server_version,
            metrics,
            self._reports.warning,
            node_name=settings.node_name,
            pool=settings.pool_name,
        )
        self._partition_reports = PartitionReports(
            self._client,
            self._partitions,
            self._publishing,
            self._publisher,
            metrics,
            node_name=settings.node_name,
        )
        claims = ClaimReports(self._events, self._status)
        self._cleanup = Cleanup(
            engine,
            self._client,
            metrics,
            pool=settings.pool_name,
            period_seconds=settings.cleanup_seconds,
            grace_seconds=settings.claim_grace_seconds,
            on_vanished=claims.vanished,
            announce=self._reports.warning,
        )
        self._dra = DraService(engine, ClaimSource(self._client), claims, metrics)
        registration_name, dra_name = socket_names(DRIVER_NAME, settings.pod_uid)
        self._dra_path = settings.data_path / dra_name
        self._registration_path = settings.kubelet_registry_path / registration_name
        self._registration = Registration(str(self._dra_path))

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT; a part that fails ends the process with its error."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        loop.add_signal_handler(signal.SIGUSR1, logs.write_stacks)
        await self._store.run(lambda store: store.enter_boot(self._boot_id))
        self._warn_of_cdi_folder()
        parts = {
            "hardware": self._hardware.run(),
            "store": self._restore(),
            "publisher": self._publisher.run(),
            "publishing": self._publishing.run(),
            "counter probe": self._counter_probe.run(),
            "shared devices probe": self._share_probe.run(),
            "taints probe": self._taint_probe.run(),
            "node partition": self._partitions.run(),
            "node partition status": self._partition_reports.run(),
            "server version": self._server_version.run(),
            "claim status": self._status.run(),
            "events": self._events.run(),
            "clean-up": self._cleanup.run(),
            "own MIG modes": self._look_after_own_modes(),
            "sockets": self._serve(),
        }
        if self._policy_file is not None:
            parts["node policy"] = self._policy_file.run(self._hardware.apply)
        address = self._settings.http_address
        if address is not None:
            parts["probes"] = self._probe_server(address).run()
        try:
            async with asyncio.TaskGroup() as group:
                for name, part in parts.items():
                    group.create_task(part, name=name)
        except* _Stopped:
            log.info("stopped")

    @property
    def claims_under_way(self) -> int:
        """How many claims are being worked on."""
        return self._dra.under_way

    def close(self) -> None:
        """Close the store, when nothing uses it any more."""
        self._store.close()

    async def _records(self) -> Collection[ClaimRecord]:
        return await self._store.run(lambda store: tuple(store.claims().values()))

    def _probe_server(self, address: tuple[str, int]) -> ProbeServer:
        health = Health(
            self._hardware,
            self._lanes,
            self._store,
            self._engine,
            self._registration,
            self._publisher,
            self._dra_path,
            self._registration_path,
            self._settings.liveness_seconds,
        )
        return ProbeServer(address, self._metrics.registry, health.not_alive, health.not_ready)

    def _warn_of_cdi_folder(self) -> None:
        try:
            self._specs.check_writable()
        except SpecFolderError as error:
            log.warning("no claim can be prepared: %s", error)

    async def _restore(self) -> None:
        while True:
            try:
                count = await rebuild(self._store, self._specs, self._hardware, self._client, self._boot_id)
                break
            except StoreReplaced:
                raise
            except (SpecFolderError, StoreError) as error:
                self._engine.obstacle = str(error)
                log.warning("the store cannot be rebuilt: %s", error)
                await asyncio.sleep(_REBUILD_PAUSE_SECONDS)
        if count or self._set_aside is not None:
            self._metrics.store_rebuilt.inc()
            what = f"damaged and moved to {self._set_aside}" if self._set_aside else "lost"
            text = f"the store was {what}; {count} claims were rebuilt from their CDI specs"
            log.warning("%s", text)
            self._reports.warning("StoreRebuilt", text)
        self._engine.obstacle = ""
        self._engine.restored.set()

    async def _look_after_own_modes(self) -> None:
        await self._hardware.ready.wait()
        await self._engine.restored.wait()
        await self._own_modes.run(self._engine.unprepared)

    async def _serve(self) -> None:
        """Serve the DRA socket, then the registration socket; at the end in the other order."""
        dra_server, registration_server = grpc.aio.server(), grpc.aio.server()
        self._dra.add_to(dra_server)
        add_RegistrationServicer_to_server(self._registration, registration_server)
        dra = SocketServer(dra_server, self._dra_path)
        registration = SocketServer(registration_server, self._registration_path)
        with contextlib.ExitStack() as bound:
            for socket in (dra, registration):
                if socket.was_served():
                    log.warning("%s was served by another process; this one takes over", socket.path)
                await socket.start()
                # Also when another part of the service has failed, for the kubelet to know.
                bound.callback(socket.withdraw)
            log.info("serving %s, registered at %s", self._dra_path, self._registration_path)
            await self._stopping.wait()
        log.info("stopping: no new calls, those under way get %.1f s", _STOP_SECONDS)
        async with asyncio.TaskGroup() as group:
            group.create_task(dra.stop(_STOP_SECONDS))
            if self._settings.delete_slices_on_exit:
                group.create_task(self._delete_slices())
        await registration.stop(0)
        await self._dra.drain(_DRAIN_SECONDS)
        raise _Stopped

    async def _delete_slices(self) -> None:
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await self._publisher.delete_all()
        except (PublishError, ApiError, ApiUnavailable, TimeoutError) as error:
            log.warning("the ResourceSlices of this node stay: %s", error)


class _Stopped(Exception):
    """The process was asked to end."""


def serve(settings: Settings) -> None:
    """Run the service to its end.

    A hardware change that was begun cannot be called back and may take minutes. The process does not wait for
    it: what is noted in the store lets the next process go on, as after a crash.
    """

    async def run() -> None:
        service = Service(settings)
        try:
            await service.run()
        except BaseException:
            if service.claims_under_way:
                log.critical("the service failed", exc_info=True)
                _leave(service.claims_under_way, 1)
            raise
        if service.claims_under_way:
            _leave(service.claims_under_way, 0)
        service.close()

    asyncio.run(run())


def _leave(claims: int, status: int) -> NoReturn:
    log.warning("ended with %d claims under way; the next process goes on with them", claims)
    logging.shutdown()
    os._exit(status)
