"""Pods that use claims, on a real cluster, and what their containers see of GPUs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.cluster.api import Api, Object, wait_until
from tests.cluster.images import BUSYBOX
from tests.cluster.node import Node
from tests.harness.claims import API_VERSION, DRIVER

GPU_CLASS, MIG_CLASS, SHARED_CLASS = "gpu.nvidia.com", "mig.nvidia.com", "shared.gpu.nvidia.com"
RUN_SECONDS = 30.0

LOOK = "find /dev -name 'nvidia*' ! -type d | sort; nvidia-smi -L; echo looked"
"""Shell commands by which a container writes down what it has; for a container without devices too."""
WAIT = "trap 'exit 0' TERM; sleep 86400 & wait"
"""Shell commands that run until the container is asked to end."""


def exactly(
    name: str,
    device_class: str = GPU_CLASS,
    *,
    cel: str = "",
    count: int = 1,
    admin: bool = False,
    memory: str = "",
) -> Object:
    """A request; ``cel`` is an expression over ``device``, see :func:`attribute`.

    ``memory`` is what it asks for of the capacity of that name.
    """
    return {"name": name, "exactly": _exactly(device_class, cel, count, admin, memory)}


def first_available(name: str, *choices: Object) -> Object:
    """A request with a prioritized list; the choices come from :func:`exactly`."""
    return {
        "name": name,
        "firstAvailable": [{"name": choice["name"], **choice["exactly"]} for choice in choices],
    }


def _exactly(device_class: str, cel: str, count: int, admin: bool, memory: str) -> Object:
    body: Object = {"deviceClassName": device_class, "count": count}
    if cel:
        guarded = f'device.driver == "gpu.nvidia.com" && {cel}'
        body["selectors"] = [{"cel": {"expression": guarded}}]
    if admin:
        body["adminAccess"] = True
    if memory:
        body["capacity"] = {"requests": {"memory": memory}}
    return body


def attribute(name: str) -> str:
    """How a CEL expression reads an attribute of ours."""
    return f'device.attributes["gpu.nvidia.com"].{name}'


def claim_spec(*requests: Object, match: str = "", parameters: Object | None = None) -> Object:
    """The spec of a claim; all its devices agree in the attribute ``match``.

    ``parameters`` are opaque configuration for our driver.
    """
    devices: Object = {"requests": list(requests)}
    if parameters is not None:
        devices["config"] = [{"opaque": {"driver": DRIVER, "parameters": parameters}}]
    if match:
        devices["constraints"] = [{"requests": [], "matchAttribute": match}]
    return {"devices": devices}


def container(
    *claims: str | tuple[str, str], limits: Mapping[str, str] | None = None, script: str = WAIT
) -> Object:
    """A container with claims, by the pod's name for them or as (claim, request), and with limits.

    It writes down what it sees, then runs ``script``.
    """
    references = [
        {"name": claim} if isinstance(claim, str) else {"name": claim[0], "request": claim[1]}
        for claim in claims
    ]
    body: Object = {
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", f"{LOOK}; {script}"],
    }
    body["resources"] = {"claims": references, "limits": dict(limits or {})}
    return body


def pod(
    name: str,
    claims: Mapping[str, Object | str],
    containers: Mapping[str, Object],
    *,
    namespace: str = "default",
    grace_seconds: int = 30,
    restart: str = "Never",
) -> list[Object]:
    """A pod, and before it a template for each claim that is given as a spec and not as a claim's name."""
    templates = []
    references = []
    for claim, given in claims.items():
        if isinstance(given, str):
            references.append({"name": claim, "resourceClaimName": given})
            continue
        template = f"{name}-{claim}"
        references.append({"name": claim, "resourceClaimTemplateName": template})
        templates.append(
            {
                "apiVersion": API_VERSION,
                "kind": "ResourceClaimTemplate",
                "metadata": {"name": template, "namespace": namespace},
                "spec": {"spec": given},
            }
        )
    spec: Object = {
        "restartPolicy": restart,
        "terminationGracePeriodSeconds": grace_seconds,
        "containers": [{"name": key, **body} for key, body in containers.items()],
    }
    if references:
        spec["resourceClaims"] = references
    metadata = {"name": name, "namespace": namespace}
    return [*templates, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}]


def claim(name: str, spec: Object, namespace: str = "default") -> Object:
    """A claim that pods share by its name."""
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": API_VERSION, "kind": "ResourceClaim", "metadata": metadata, "spec": spec}


@dataclass(frozen=True)
class Seen:
    """What a container has: device nodes of the driver, and the UUIDs that ``nvidia-smi -L`` lists.

    ``gpus`` are whole GPUs; a GPU that is only the parent of a MIG device is not among them.
    """

    nodes: tuple[str, ...]
    gpus: frozenset[str]
    mig: frozenset[str]


_GPU = re.compile(r"^GPU \d+: .* \(UUID: (GPU-[0-9a-f-]+)\)$")
_MIG = re.compile(r"^  MIG .* \(UUID: (MIG-[0-9a-f-]+)\)$")


def parse_seen(log: str) -> Seen:
    """Read what :data:`LOOK` wrote."""
    lines = log.partition("looked\n")[0].splitlines()
    nodes = tuple(line for line in lines if line.startswith("/dev/"))
    gpus: set[str] = set()
    mig: set[str] = set()
    parent = ""
    for line in lines:
        if found := _GPU.match(line):
            parent = found[1]
            gpus.add(parent)
        elif found := _MIG.match(line):
            mig.add(found[1])
            gpus.discard(parent)
    return Seen(nodes, frozenset(gpus), frozenset(mig))


class Pods:
    """Makes pods on a node, waits for them, and takes them away again."""

    def __init__(self, api: Api, node: Node) -> None:
        self._api = api
        self._node = node
        self._made: list[Object] = []

    def create(self, *objects: Object) -> None:
        """Create objects in order; :meth:`clear` deletes them."""
        for item in objects:
            self._made.append(item)
            self._api.create(item)

    def running(self, name: str, namespace: str = "default", timeout: float = RUN_SECONDS) -> Object:
        """Wait until all containers of a pod run; returns the pod."""

        def runs(found: Object) -> bool:
            statuses = found["status"].get("containerStatuses") or []
            return bool(statuses) and all("running" in status["state"] for status in statuses)

        try:
            return self._api.wait_for("v1", "Pod", name, runs, "to be running", namespace, timeout)
        except TimeoutError as error:
            said = "\n".join(self._api.events(name, namespace))
            raise TimeoutError(f"{error}\nevents:\n{said}") from None

    def seen(
        self,
        name: str,
        container: str = "main",
        namespace: str = "default",
        timeout: float = RUN_SECONDS,
    ) -> Seen:
        """Wait until a container has looked; returns what it saw."""
        log = [""]
        uid = self.running(name, namespace, timeout)["metadata"]["uid"]

        def looked() -> bool:
            log[0] = self._node.container_logs(namespace, name, container, uid)
            return "looked\n" in log[0]

        wait_until(looked, f"{name}/{container} to look at its devices", 10.0)
        return parse_seen(log[0])

    def look(self, name: str, container: str = "main", namespace: str = "default") -> Seen:
        """Look into a running container now, whatever program it runs."""
        said = self._node.ctr_exec(namespace, name, container, "sh", "-c", LOOK)
        return parse_seen(said.stdout)

    def pending(self, name: str, text: str, namespace: str = "default", timeout: float = 15.0) -> None:
        """Wait until the scheduler says of a pod that it does not fit, in words with ``text``."""

        def told(found: Object) -> bool:
            conditions = found["status"].get("conditions") or []
            return any(
                each["type"] == "PodScheduled"
                and each["status"] == "False"
                and text in each.get("message", "")
                for each in conditions
            )

        self._api.wait_for("v1", "Pod", name, told, f"unscheduled: {text}", namespace, timeout)

    def event(self, name: str, text: str, namespace: str = "default", timeout: float = 20.0) -> str:
        """Wait for an event on a pod that has ``text``; returns it."""

        def find() -> str | None:
            return next((said for said in self._api.events(name, namespace) if text in said), None)

        return wait_until(find, f"an event of pod {name} with {text!r}", timeout)

    def claim_of(self, name: str, claim: str, namespace: str = "default") -> Object:
        """The claim object that stands behind a pod's name for it."""
        found = self._api.get("v1", "Pod", name, namespace)
        statuses = found["status"].get("resourceClaimStatuses") or []
        for reference in found["spec"].get("resourceClaims") or []:
            if reference["name"] == claim and "resourceClaimName" in reference:
                return self._api.get(API_VERSION, "ResourceClaim", reference["resourceClaimName"], namespace)
        generated = next(status["resourceClaimName"] for status in statuses if status["name"] == claim)
        return self._api.get(API_VERSION, "ResourceClaim", generated, namespace)

    def delete(self, *names: str, namespace: str = "default", grace_seconds: int | None = None) -> None:
        """Delete pods together and wait until they are gone."""
        for name in names:
            self._api.delete("v1", "Pod", name, namespace, grace_seconds=grace_seconds)
        for name in names:
            self._api.wait_gone("v1", "Pod", name, namespace)

    def clear(self) -> None:
        """Delete all that was made here, pods first, and wait until no claim is left."""
        pods = [item for item in self._made if item["kind"] == "Pod"]
        others = [item for item in self._made if item["kind"] != "Pod"]
        for item in [*pods, *others]:
            metadata = item["metadata"]
            self._api.delete(
                item["apiVersion"],
                item["kind"],
                metadata["name"],
                metadata.get("namespace", "default"),
                grace_seconds=1 if item["kind"] == "Pod" else None,
            )
        self._made.clear()
        wait_until(
            lambda: not self._api.list("v1", "Pod") and not self._api.list(API_VERSION, "ResourceClaim"),
            "all pods and claims to be gone",
            30.0,
        )


def devices_of(item: Object, request: str = "") -> Sequence[str]:
    """The names of the devices that a claim object has, those of one request (or all)."""
    allocation = item["status"]["allocation"]["devices"]["results"]
    return [entry["device"] for entry in allocation if entry["request"] == request or not request]
