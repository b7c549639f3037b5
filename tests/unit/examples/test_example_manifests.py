"""The manifests in ``examples/``: valid for each supported Kubernetes, and true to what devices publish."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from controller.partitions.request import read
from driver.attributes import ATTRIBUTES, CAPACITIES
from driver.claim import DRIVER_NAME
from driver.policydocument import parse
from driver.shares import ShareMode
from kubeletplugin import settings

ROOT = Path(__file__).parents[3]
NODE_POLICY = ROOT / "examples/sharing/node-policy.yaml"
"""A file of ours; all others are for the API server."""
REQUESTS = set((ROOT / "examples/partitions").glob("*.yaml"))
"""Of a kind of ours, whose schema only a real API server checks: the node tests apply them."""
FILES = sorted(set((ROOT / "examples").rglob("*.yaml")) - {NODE_POLICY} - REQUESTS)
OLDEST, NEWEST = "1.34", "1.37"

ATTRIBUTE_NAMES = {name if "/" in name else f"{DRIVER_NAME}/{name}" for name in (a.name for a in ATTRIBUTES)}
CAPACITY_NAMES = {f"{DRIVER_NAME}/{capacity.name}" for capacity in CAPACITIES}


def documents(file: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(file.read_text()))


def values_of(node: Any, key: str) -> Iterator[Any]:
    """Every value of ``key``, at any depth."""
    if isinstance(node, dict):
        for name, value in node.items():
            if name == key:
                yield value
            yield from values_of(value, key)
    elif isinstance(node, list):
        for item in node:
            yield from values_of(item, key)


def named(kind: str) -> set[str]:
    return {
        document["metadata"]["name"]
        for file in FILES
        for document in documents(file)
        if document["kind"] == kind
    }


def plugin_object(kind: str) -> dict[str, Any]:
    found = documents(ROOT / "examples/deploy/node-plugin.yaml")
    return next(document for document in found if document["kind"] == kind)


SELECTORS = [
    pytest.param(expression, id=f"{file.stem}-{number}")
    for file in FILES
    for number, expression in enumerate(values_of(documents(file), "expression"))
]


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_manifest_is_valid(file: Path, version: str) -> None:
    for document in documents(file):
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("expression", SELECTORS)
def test_selector_asks_for_the_driver_first(expression: str) -> None:
    assert expression.startswith(f'device.driver == "{DRIVER_NAME}" && ')


@pytest.mark.parametrize("expression", SELECTORS)
def test_selector_reads_only_what_devices_have(expression: str) -> None:
    read = re.findall(r'device\.(\w+)(?:\["([^"]+)"\]\.(\w+))?', expression)
    for part, domain, name in read:
        if part == "attributes":
            assert f"{domain}/{name}" in ATTRIBUTE_NAMES
        elif part == "capacity":
            assert f"{domain}/{name}" in CAPACITY_NAMES
        else:
            assert part in ("driver", "allowMultipleAllocations")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_constraints_match_attributes_that_devices_have(file: Path) -> None:
    assert set(values_of(documents(file), "matchAttribute")) <= ATTRIBUTE_NAMES


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_names_that_are_used_are_defined(file: Path) -> None:
    found = documents(file)
    assert set(values_of(found, "deviceClassName")) <= named("DeviceClass")
    own = {(document["kind"], document["metadata"]["name"]) for document in found}
    for name in values_of(found, "resourceClaimTemplateName"):
        assert ("ResourceClaimTemplate", name) in own
    for name in values_of(found, "resourceClaimName"):
        assert ("ResourceClaim", name) in own


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_containers_use_the_claims_and_requests_of_their_pod(file: Path) -> None:
    requests = {
        request["name"] for item in values_of(documents(file), "requests") for request in _named(item)
    }
    for pod in (document for document in documents(file) if document["kind"] == "Pod"):
        claims = {claim["name"] for claim in pod["spec"].get("resourceClaims", [])}
        used = [use for box in pod["spec"]["containers"] for use in box["resources"].get("claims", [])]
        assert {use["name"] for use in used} == claims
        assert {use["request"] for use in used if "request" in use} <= requests


def _named(item: Any) -> list[dict[str, Any]]:
    return [entry for entry in item if isinstance(entry, dict)] if isinstance(item, list) else []


def test_admin_access_is_asked_for_where_it_is_allowed() -> None:
    found = documents(ROOT / "examples/admin-access.yaml")
    labels = {
        document["metadata"]["name"]: document["metadata"]["labels"]
        for document in found
        if document["kind"] == "Namespace"
    }
    asking = [document for document in found if True in values_of(document, "adminAccess")]
    assert asking
    for document in asking:
        assert labels[document["metadata"]["namespace"]]["resource.kubernetes.io/admin-access"] == "true"


@pytest.mark.parametrize(
    ("pod", "device_class"),
    [
        ("extended-resource.yaml", "deviceclass-extended-resource.yaml"),
        ("sharing/extended-resource.yaml", "deviceclass-shared.yaml"),
    ],
)
def test_extended_resource_is_the_one_of_the_class(pod: str, device_class: str) -> None:
    served = documents(ROOT / "examples" / device_class)[0]["spec"]["extendedResourceName"]
    wanted = values_of(documents(ROOT / "examples" / pod), "limits")
    assert [list(limits) for limits in wanted] == [[served]]


def test_capacity_that_is_asked_for_is_one_that_devices_have() -> None:
    asked = [item for file in FILES for item in values_of(documents(file), "capacity")]
    assert asked
    for item in asked:
        assert {f"{DRIVER_NAME}/{name}" for name in item["requests"]} <= CAPACITY_NAMES


def test_node_policy_says_each_way_of_sharing_and_what_it_shares_can_be_had() -> None:
    (document,) = documents(NODE_POLICY)
    entries = parse(document)
    modes = {shares.mode for entry in entries for shares in [entry.shares] if shares}
    assert modes == {ShareMode.PLACES, ShareMode.MEMORY}
    assert all(entry.gpus is not None for entry in entries)
    profiles = {name for entry in entries for name, _ in entry.profile_shares}
    selectors = values_of(documents(ROOT / "examples/sharing/mig-device.yaml"), "expression")
    assert [name for text in selectors for name in profiles if f'"{name}"' in text] == ["1g.10gb"]


def test_both_variants_of_the_gpu_class_select_the_same() -> None:
    plain = documents(ROOT / "examples/deviceclasses.yaml")[0]
    variant = documents(ROOT / "examples/deviceclass-extended-resource.yaml")[0]
    assert plain["metadata"] == variant["metadata"]
    assert plain["spec"]["selectors"] == variant["spec"]["selectors"]


def test_node_plugin_may_do_what_it_needs_and_no_more() -> None:
    allowed = {
        (group, resource, verb, tuple(rule.get("resourceNames", ())))
        for rule in plugin_object("ClusterRole")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    dra, own = "resource.k8s.io", (DRIVER_NAME,)
    slices = ("get", "list", "watch", "create", "update", "delete")
    assert allowed == {
        (dra, "resourceclaims", "get", ()),
        (dra, "resourceclaims", "list", ()),
        (dra, "resourceclaims/status", "patch", ()),
        (dra, "resourceclaims/driver", "associated-node:patch", own),
        (dra, "resourceclaims/driver", "associated-node:update", own),
        *((dra, "resourceslices", verb, ()) for verb in slices),
        ("gpudra.io", "nodepartitions", "list", ()),
        ("gpudra.io", "nodepartitions", "watch", ()),
        ("gpudra.io", "nodepartitions/status", "patch", ()),
        ("", "nodes", "get", ()),
        ("", "events", "create", ()),
        ("", "events", "patch", ()),
    }


def test_node_plugin_sets_only_settings_that_exist() -> None:
    container = plugin_object("DaemonSet")["spec"]["template"]["spec"]["containers"][0]
    set_here = {variable["name"] for variable in container["env"]}
    assert set_here <= set(_settings_variables())
    assert {"NODE_NAME", "POD_UID"} <= set_here


def test_node_plugin_is_replaced_before_it_ends() -> None:
    strategy = plugin_object("DaemonSet")["spec"]["updateStrategy"]["rollingUpdate"]
    assert strategy == {"maxSurge": 1, "maxUnavailable": 0}


def test_node_plugin_and_host_share_the_paths_that_both_name() -> None:
    pod = plugin_object("DaemonSet")["spec"]["template"]["spec"]
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    for name in ("plugins-registry", "plugin-data", "cdi"):
        assert mounts[name] == paths[name]


def _settings_variables() -> list[str]:
    parser = argparse.ArgumentParser()
    settings.add_arguments(parser, {})
    return [name.upper() for name in vars(parser.parse_args([]))]


@pytest.mark.parametrize("file", sorted(REQUESTS), ids=lambda file: file.stem)
def test_each_partition_request_can_be_used(file: Path) -> None:
    (document,) = documents(file)
    assert (document["apiVersion"], document["kind"]) == ("gpudra.io/v1alpha1", "PartitionRequest")
    assert read(document).node_selector
