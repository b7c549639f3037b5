"""The chart's DaemonSet and Deployment: valid for each Kubernetes, and what users of the chart rely on."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml

from controller import settings as controller_settings
from driver.nodepolicy import NodePolicy
from kubeletplugin import settings as plugin_settings
from kubeletplugin.policyfile import read_policy
from tests.cluster.api import Object, documents
from tests.cluster.components import REPOSITORY
from tests.harness.chart import CHART, rendered
from tests.harness.rights import documented_rules

VERSIONS = ("1.34", "1.35", "1.36", "1.37")
PLUGIN, CONTROLLER = "kubeletplugin.yaml", "controller.yaml"
POLICY = {"entries": [{"gpus": ["Tesla T4"], "shares": 4}]}
VALUES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "everything": {
        "image": {"repository": "registry.example/gpus", "tag": "dev", "pullSecrets": ["pull"]},
        "kubeletPlugin": {
            "kubeletRoot": "/data/kubelet",
            "cdiRoot": "/etc/cdi",
            "driverRoot": "/run/nvidia/driver",
            "mig": False,
            "exclude": ["0000:17:00.0", "Tesla.*"],
            "nodeSelector": {"pool": "gpus"},
            "affinity": None,
        },
        "nodePolicy": POLICY,
        "controller": {
            "replicas": 1,
            "nodeSelector": {"pool": "system"},
            "tolerations": [{"operator": "Exists"}],
        },
        "deviceClasses": {"classes": [{"name": "mig.nvidia.com", "enabled": False}]},
        "webhook": {"enabled": False},
    },
}


def only(template: str, kind: str, values: Mapping[str, Any] | None = None) -> Object:
    (found,) = (item for item in rendered(template, "gpus", values) if item["kind"] == kind)
    return found


def environment(workload: Object) -> dict[str, str]:
    """The variables of a workload's container that the chart gives a value."""
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    return {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("template", [PLUGIN, CONTROLLER])
def test_every_kubernetes_knows_every_field(template: str, values: dict[str, Any], version: str) -> None:
    for item in rendered(template, "gpus", values):
        kubernetes_validate.validate(item, version, strict=True)


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_the_programs_take_the_flags_that_they_are_given(values: dict[str, Any]) -> None:
    parser = argparse.ArgumentParser()
    daemon_set = only(PLUGIN, "DaemonSet", values)
    given = environment(daemon_set)
    policy = "/etc/gpu-dra-driver/node-policy.yaml" if "nodePolicy" in values else None
    assert given.pop("CONFIG", None) == policy
    plugin_settings.add_arguments(parser, given)
    chosen = plugin_settings.read(parser.parse_args([]))
    root = (values.get("kubeletPlugin") or {}).get("driverRoot", "/")
    assert (str(chosen.driver_root), chosen.host_driver_root) == ("/driver-root", root)
    mounted = {
        mount["mountPath"]
        for mount in only(PLUGIN, "DaemonSet", values)["spec"]["template"]["spec"]["containers"][0][
            "volumeMounts"
        ]
    }
    data = chosen.kubelet_plugins_path / "gpu.nvidia.com"
    assert mounted >= {str(chosen.kubelet_registry_path), str(data), str(chosen.cdi_root)}

    flags = environment(only(CONTROLLER, "Deployment", values))
    assert flags.pop("CLASSES") == "/etc/gpu-dra-driver/classes.yaml"
    parser = argparse.ArgumentParser()
    controller_settings.add_arguments(parser, {**flags, "NAMESPACE": "gpus"})
    webhook = controller_settings.read(parser.parse_args([])).webhook
    assert (webhook is not None) == values.get("webhook", {}).get("enabled", True)


def test_mig_is_off_as_it_looks() -> None:
    values = yaml.safe_load("kubeletPlugin: {mig: off}")
    assert environment(only(PLUGIN, "DaemonSet", values))["MIG"] == "off"


def test_the_plugin_reads_the_node_policy_of_the_values(tmp_path: Any) -> None:
    file = tmp_path / "node-policy.yaml"
    file.write_text(only(PLUGIN, "ConfigMap", {"nodePolicy": POLICY})["data"][file.name])
    (entry,) = read_policy(file, NodePolicy()).entries
    assert entry.shares is not None
    assert entry.shares.places == 4


def test_b137_an_update_keeps_the_plugin_of_each_node_until_the_new_one_is_ready() -> None:
    spec = only(PLUGIN, "DaemonSet")["spec"]
    assert spec["updateStrategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    labels = spec["selector"]["matchLabels"]
    assert not any("version" in name or "chart" in name for name in labels), "they cannot change later"
    assert labels.items() <= spec["template"]["metadata"]["labels"].items()


def granted(rules: Sequence[Object]) -> set[tuple[str, str, str, tuple[str, ...]]]:
    """Group, resource, verb and names of each single right."""
    return {
        (group, resource, verb, tuple(rule.get("resourceNames", ())))
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_b155_the_plugin_has_the_rights_that_are_documented_and_those_of_the_example() -> None:
    rights = granted(only(PLUGIN, "ClusterRole")["rules"])
    assert rights == granted(documented_rules("node plugin"))
    example = documents((REPOSITORY / "examples/deploy/node-plugin.yaml").read_text())
    assert rights == granted(next(item["rules"] for item in example if item["kind"] == "ClusterRole"))
    assert not {right for right in rights if "*" in right}
    assert {right[:3] for right in rights if right[1] in ("nodes", "pods")} == {("", "nodes", "get")}


def test_the_controller_has_the_rights_that_are_documented() -> None:
    role = only(CONTROLLER, "Role")["rules"]
    lease = only(CONTROLLER, "Deployment")["metadata"]["name"]
    assert granted(role) == {
        ("coordination.k8s.io", "leases", "create", ()),
        ("coordination.k8s.io", "leases", "get", (lease,)),
        ("coordination.k8s.io", "leases", "update", (lease,)),
    }
    unnamed = granted([{**rule, "resourceNames": []} for rule in role])
    assert granted(only(CONTROLLER, "ClusterRole")["rules"]) | unnamed == granted(
        documented_rules("controller")
    )


def test_b162_any_label_of_feature_discovery_brings_the_plugin_to_a_node() -> None:
    affinity = only(PLUGIN, "DaemonSet")["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [[one["key"] for one in term["matchExpressions"]] for term in terms] == [
        ["nvidia.com/gpu.present"],
        ["feature.node.kubernetes.io/pci-10de.present"],
        ["feature.node.kubernetes.io/pci-0300_10de.present"],
        ["feature.node.kubernetes.io/pci-0302_10de.present"],
    ]
    emptied = only(PLUGIN, "DaemonSet", {"kubeletPlugin": {"affinity": None}})
    assert "affinity" not in emptied["spec"]["template"]["spec"]


def test_the_controller_has_no_privilege() -> None:
    spec = only(CONTROLLER, "Deployment")["spec"]["template"]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "volumes" in spec
    assert not any("hostPath" in volume for volume in spec["volumes"])


def test_without_a_controller_there_is_no_webhook() -> None:
    values = {"controller": {"enabled": False}}
    assert rendered(CONTROLLER, "gpus", values) == rendered("webhook.yaml", "gpus", values) == []


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"kubeletPlugin": {"migg": "off"}}, "migg"),
        ({"kubeletPlugin": {"mig": "on"}}, "mig"),
        ({"kubeletPlugin": {"driverRoot": "run/nvidia"}}, "driverRoot"),
        ({"controller": {"replicas": 0}}, "replicas"),
        ({"deviceClasses": {"classes": [{"enabled": False}]}}, "name"),
        ({"nodePolicy": {"entries": {}}}, "entries"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(values: dict[str, Any], words: str) -> None:
    with pytest.raises(helm_python.HelmError, match=words):
        rendered(PLUGIN, "gpus", values)


def test_the_schema_knows_every_value() -> None:
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())["properties"]
    for name, value in yaml.safe_load((CHART / "values.yaml").read_text()).items():
        if isinstance(value, dict):
            assert value.keys() <= schema[name]["properties"].keys()
