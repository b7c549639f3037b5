"""How to reach the API server: from inside a pod, or from a kubeconfig.

The official ``kubernetes`` package imports every part of itself (dynamic client, streams, OAuth, YAML, …)
when any part is imported, and its ``ApiClient`` brings pydantic, dateutil and multiprocessing for models.
That costs a node agent some 15 MiB for nothing. So only the client's transport is used, and the few modules
that it needs are imported past the ``__init__`` of their packages; a later ``import kubernetes`` still gets
all of it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kube.kubeconfig import PlainKubeconfig, plain_kubeconfig

CONNECTION_POOL_SIZE = 32


@contextlib.contextmanager
def _bare_packages(*names: str) -> Iterator[None]:
    added: list[str] = []
    for name in names:
        if name in sys.modules:
            continue
        spec = importlib.util.find_spec(name)
        if spec is None or spec.submodule_search_locations is None:
            raise ModuleNotFoundError(f"No package named {name!r}", name=name)
        package = ModuleType(name)
        package.__path__ = list(spec.submodule_search_locations)
        package.__spec__ = spec
        sys.modules[name] = package
        added.append(name)
    try:
        yield
    finally:
        for name in added:
            del sys.modules[name]


_PACKAGES = ("kubernetes", "kubernetes.config", "kubernetes.utils")

if TYPE_CHECKING:
    from kubernetes.client.configuration import Configuration
    from kubernetes.client.rest import RESTClientObject
    from kubernetes.config.config_exception import ConfigException

    def load_incluster_config(client_configuration: Configuration) -> None: ...
else:
    with _bare_packages(*_PACKAGES, "kubernetes.client"):
        from kubernetes.client.configuration import Configuration
        from kubernetes.client.rest import RESTClientObject
        from kubernetes.config.config_exception import ConfigException

        # The in-cluster loader takes this one name from the package.
        sys.modules["kubernetes.client"].Configuration = Configuration
        from kubernetes.config.incluster_config import load_incluster_config

__all__ = ["Configuration", "ConfigurationError", "RESTClientObject", "load_rest_client"]


class ConfigurationError(Exception):
    """There is no usable way to the API server. The message says what was tried and what to set."""


def load_rest_client(kubeconfig: Path | None = None) -> RESTClientObject:
    """The official client's transport, set up and not yet connected.

    In this order: the given kubeconfig, the files named by ``$KUBECONFIG``, the service account of the pod.

    Raises:
        ConfigurationError: none of them is there, or the one that is there cannot be used.
    """
    # The type object is called past the class's own default, which other code in the process may have set.
    configuration: Any = type.__call__(Configuration)
    configuration.connection_pool_maxsize = CONNECTION_POOL_SIZE
    configuration.keep_alive = True
    source = str(kubeconfig) if kubeconfig is not None else os.environ.get("KUBECONFIG", "")
    if source:
        _load_kubeconfig(source, configuration)
    elif "KUBERNETES_SERVICE_HOST" in os.environ:
        try:
            load_incluster_config(client_configuration=configuration)
        except (ConfigException, OSError) as error:
            raise ConfigurationError(
                f"cannot use this pod's service account: {error}; "
                "set automountServiceAccountToken: true on the pod, or give a kubeconfig"
            ) from error
    else:
        raise ConfigurationError(
            "no API server is configured: this is not a pod (KUBERNETES_SERVICE_HOST is unset) "
            "and there is no kubeconfig; give one, or set KUBECONFIG"
        )
    return RESTClientObject(configuration)


def _load_kubeconfig(source: str, configuration: Any) -> None:
    try:
        plain = None if os.pathsep in source else _read_plain(Path(source))
        if plain is None:
            with _bare_packages(*_PACKAGES):
                official: Any = importlib.import_module("kubernetes.config.kube_config")
            official.load_kube_config(
                config_file=source, client_configuration=configuration, persist_config=False
            )
            return
    except (ConfigException, OSError, ValueError) as error:
        raise ConfigurationError(f"cannot use kubeconfig {source}: {error}") from error
    configuration.host = plain.server
    configuration.ssl_ca_cert = plain.authority
    configuration.ca_cert_data = plain.authority_data
    configuration.verify_ssl = plain.verify
    configuration.tls_server_name = plain.server_name
    configuration.cert_file = plain.client_certificate
    configuration.key_file = plain.client_key
    if plain.token:
        configuration.api_key["BearerToken"] = f"Bearer {plain.token}"


def _read_plain(path: Path) -> PlainKubeconfig | None:
    # Not at the top: in a pod there is no YAML to read.
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, LookupError, AttributeError, TypeError, RecursionError) as error:
        # All but the first for a value that does not fit the tag before it, or is nested too deeply.
        raise ValueError(f"it is not YAML: {error}") from error
    if not isinstance(content, dict):
        raise ValueError("it is not a mapping")
    return plain_kubeconfig(content, path.parent.absolute())
