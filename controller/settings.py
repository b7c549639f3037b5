"""Settings of the controller. Every flag is an environment variable too: ``--namespace`` is ``NAMESPACE``."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from controller.admission.settings import WebhookSettings
from controller.deviceclasses import settingsfile
from controller.deviceclasses.settingsfile import ClassSettings, ClassSettingsError
from kube import flags
from kube.flags import Flag, Values
from kube.names import LABEL_RULE, SUBDOMAIN_RULE, is_label, is_subdomain


@dataclass(frozen=True, slots=True)
class Settings:
    """What one run of the controller needs to know. Times are in seconds, paths are absolute.

    ``http_address`` is host and port, ``None`` for no server; an empty host means all addresses.
    ``partitions``: whether PartitionRequests are followed; ``layouts`` is the file with layouts for them.
    ``classes`` is what the file of ``--classes`` says. ``webhook`` is ``None`` where there is none.
    """

    kubeconfig: Path | None
    namespace: str
    identity: str
    lease_name: str
    http_address: tuple[str, int] | None
    classes: ClassSettings
    class_grace_seconds: float
    partitions: bool
    layouts: Path | None
    webhook: WebhookSettings | None
    log_format: str
    log_level: str


_FLAGS = (
    Flag("kubeconfig", "", "kubeconfig file (default: the pod's service account)"),
    Flag("namespace", "", "namespace of the Lease by which replicas choose their leader; required"),
    Flag("identity", "", "name of this replica, in a pod the pod's name (default: the host name)"),
    Flag("lease-name", "gpu-dra-controller", "name of the Lease"),
    Flag("http-address", ":8080", "where /metrics, /healthz and /readyz are served; none or empty: nowhere"),
    Flag("classes", "", "YAML file that adds, changes or turns off DeviceClasses; read at the start"),
    Flag(
        "class-grace-period",
        "600",
        "seconds that a DeviceClass of a MIG profile stays when no node offers the profile any more",
    ),
    Flag("partition-requests", "true", "whether PartitionRequests are followed, true or false"),
    Flag("layouts", "", "YAML file with named MIG layouts for PartitionRequests; read again when it changes"),
    Flag(
        "webhook-address",
        "none",
        "where the admission webhook listens, over TLS; none or empty: there is none",
    ),
    Flag(
        "webhook-name",
        "gpu-dra-driver-webhook",
        "name of the webhook's Service, Secret and ValidatingWebhookConfiguration",
    ),
    Flag(
        "webhook-hosts",
        "",
        "DNS names, by comma, by which the API server calls the webhook where it does not use the Service",
    ),
    Flag("log-format", "text", "text or json"),
    Flag("log-level", "info", "debug, info, warning or error"),
)


def add_arguments(parser: argparse.ArgumentParser, environment: Mapping[str, str] = os.environ) -> None:
    """Add a flag for each setting; its default comes from the environment."""
    flags.add_flags(parser, _FLAGS, environment)


def read(arguments: argparse.Namespace) -> Settings:
    """Turn parsed flags into settings.

    Raises:
        ValueError: names the flag, its value and what is allowed.
    """
    values = flags.values(arguments, _FLAGS)
    return Settings(
        kubeconfig=flags.optional_path(values, "kubeconfig"),
        namespace=_namespace(values),
        identity=values["identity"] or socket.gethostname(),
        lease_name=_lease_name(values),
        http_address=flags.address(values, "http-address"),
        classes=_classes(values),
        class_grace_seconds=flags.seconds(values, "class-grace-period"),
        partitions=flags.one_of(values, "partition-requests", ("true", "false")) == "true",
        layouts=flags.optional_path(values, "layouts"),
        webhook=_webhook(values),
        log_format=flags.one_of(values, "log-format", flags.LOG_FORMATS),
        log_level=flags.one_of(values, "log-level", flags.LOG_LEVELS),
    )


def _classes(values: Values) -> ClassSettings:
    path = flags.optional_path(values, "classes")
    try:
        return ClassSettings() if path is None else settingsfile.read(path)
    except ClassSettingsError as error:
        raise ValueError(f"--classes: {error}") from None


def _namespace(values: Values) -> str:
    name = values["namespace"]
    if not name:
        raise ValueError("--namespace: it is empty; give the namespace that the controller runs in")
    if not is_label(name):
        raise ValueError(f"--namespace: {name!r} cannot be the name of a namespace: {LABEL_RULE}")
    return name


def _webhook(values: Values) -> WebhookSettings | None:
    address = flags.address(values, "webhook-address")
    if address is None:
        return None
    name = values["webhook-name"]
    if not is_label(name):
        raise ValueError(f"--webhook-name: {name!r} cannot be the name of a Service: {LABEL_RULE}")
    hosts = tuple(host.strip() for host in values["webhook-hosts"].split(",") if host.strip())
    for host in hosts:
        if not is_subdomain(host):
            raise ValueError(f"--webhook-hosts: {host!r} is no DNS name: {SUBDOMAIN_RULE}")
    return WebhookSettings(address, _namespace(values), name, hosts)


def _lease_name(values: Values) -> str:
    name = values["lease-name"]
    if not is_subdomain(name):
        raise ValueError(f"--lease-name: {name!r} cannot be the name of a Lease: {SUBDOMAIN_RULE}")
    return name
