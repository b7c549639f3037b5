"""Which REST resource is meant: the kinds that the agents of this project read and write."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import quote

Object = dict[str, Any]
"""A Kubernetes object as the API server's JSON has it."""


class Resource(NamedTuple):
    """A REST resource: its ``apiVersion`` (``v1``, ``resource.k8s.io/v1``) and its plural name."""

    group_version: str
    plural: str

    def path(
        self, namespace: str | None = None, name: str | None = None, subresource: str | None = None
    ) -> str:
        """The URL path of the collection, or with ``name`` of one object (and its ``subresource``)."""
        parts = ["apis" if "/" in self.group_version else "api", self.group_version]
        if namespace is not None:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name is not None:
            parts.append(quote(name, safe=""))
        if subresource is not None:
            parts.append(subresource)
        return "/" + "/".join(parts)

    def __str__(self) -> str:
        return f"{self.plural}.{self.group_version}"


DEVICE_CLASSES = Resource("resource.k8s.io/v1", "deviceclasses")
EVENTS = Resource("v1", "events")
LEASES = Resource("coordination.k8s.io/v1", "leases")
NODE_PARTITIONS = Resource("gpudra.io/v1alpha1", "nodepartitions")
NODES = Resource("v1", "nodes")
PARTITION_REQUESTS = Resource("gpudra.io/v1alpha1", "partitionrequests")
PODS = Resource("v1", "pods")
RESOURCE_CLAIMS = Resource("resource.k8s.io/v1", "resourceclaims")
RESOURCE_SLICES = Resource("resource.k8s.io/v1", "resourceslices")
SECRETS = Resource("v1", "secrets")
VALIDATING_WEBHOOKS = Resource("admissionregistration.k8s.io/v1", "validatingwebhookconfigurations")
