"""The chart's objects on a real API server, and the controller with no rights but those."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from tests.cluster.api import Object, wait_until
from tests.cluster.controlplane import ControlPlane
from tests.harness.chart import CHART, rendered
from tests.harness.controller import CLASS, running_controller
from tests.harness.offers import offering_slice

NAMESPACE = "gpus"
SMALL = "mig-1g.10gb.gpu.nvidia.com"


@pytest.fixture(scope="module")
def release(control_plane: ControlPlane) -> Iterator[Sequence[Object]]:
    """All that the chart makes, as it is stored."""
    api = control_plane.api
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    values = {"nodePolicy": {"entries": [{"gpus": ["Tesla T4"], "shares": 4}]}}
    files = sorted(file.name for file in (CHART / "templates").glob("*.yaml"))
    made = [item for file in files for item in rendered(file, NAMESPACE, values)]
    stored = api.apply(yaml.safe_dump_all(made))
    yield stored
    for item in made[::-1]:
        api.delete(item["apiVersion"], item["kind"], item["metadata"]["name"], NAMESPACE)


def test_the_api_server_takes_each_object_of_the_chart(release: Sequence[Object]) -> None:
    kinds = {item["kind"] for item in release}
    assert kinds >= {
        "DaemonSet",
        "Deployment",
        "PodDisruptionBudget",
        "ValidatingAdmissionPolicy",
        "ConfigMap",
    }


def test_b156_the_controller_needs_no_more_rights_than_the_chart_gives_it(
    release: Sequence[Object], control_plane: ControlPlane, tmp_path: Path
) -> None:
    (deployment,) = (item for item in release if item["kind"] == "Deployment")
    account = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    kubeconfig = control_plane.kubeconfig_for_service_account(NAMESPACE, account)
    classes = tmp_path / "classes.yaml"
    (settings,) = (item for item in release if item["kind"] == "ConfigMap" and classes.name in item["data"])
    classes.write_text(settings["data"][classes.name])
    api = control_plane.api
    api.create(offering_slice("n1", ["1g.10gb"]))
    try:
        with running_controller(control_plane, kubeconfig) as controller:
            controller.lease_name = deployment["metadata"]["name"]
            replica = controller.start(namespace=NAMESPACE, classes=str(classes), class_grace_period="0.5")
            wait_until(lambda: api.find(*CLASS, SMALL), "the class of the profile", 30.0)
            api.patch(*CLASS, "gpu.nvidia.com", {"spec": {"extendedResourceName": "example.com/mine"}})
            wait_until(
                lambda: "FieldKept" in str(api.list("v1", "Event")), "an event of the kept field", 30.0
            )
            api.delete(*CLASS, "mig.nvidia.com")
            wait_until(lambda: api.find(*CLASS, "mig.nvidia.com"), "the deleted class", 30.0)
            api.delete("resource.k8s.io/v1", "ResourceSlice", "n1")
            wait_until(lambda: api.find(*CLASS, SMALL) is None, "the class to go with the profile", 30.0)
            assert "forbidden" not in replica.log()
    finally:
        if api.find("resource.k8s.io/v1", "ResourceSlice", "n1") is not None:
            api.delete("resource.k8s.io/v1", "ResourceSlice", "n1")
