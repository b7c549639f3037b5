"""DeviceClasses: the real controller process keeps them true on a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.api import wait_until
from tests.cluster.controlplane import ControlPlane
from tests.harness.apiproxy import Away, api_proxy
from tests.harness.controller import CLASS, Controller, running_controller
from tests.harness.offers import offering_slice

SLICE = ("resource.k8s.io/v1", "ResourceSlice")
CLAIM = ("resource.k8s.io/v1", "ResourceClaim")
STANDARD = {"gpu.nvidia.com", "mig.nvidia.com", "shared.gpu.nvidia.com"}
SMALL = "mig-1g.10gb.gpu.nvidia.com"
SECONDS = 15.0


def remove_all(control_plane: ControlPlane) -> None:
    for kind in (SLICE, CLAIM, CLASS):
        for item in control_plane.api.list(*kind):
            control_plane.api.delete(*kind, item["metadata"]["name"])


@pytest.fixture
def controller(control_plane: ControlPlane) -> Iterator[Controller]:
    remove_all(control_plane)
    try:
        with running_controller(control_plane) as started:
            yield started
    finally:
        remove_all(control_plane)


def class_of(control_plane: ControlPlane, name: str) -> dict[str, Any]:
    return control_plane.api.wait_for(*CLASS, name, lambda item: True, "there", timeout=SECONDS)


def names(control_plane: ControlPlane) -> set[str]:
    return {str(item["metadata"]["name"]) for item in control_plane.api.list(*CLASS)}


def edit(control_plane: ControlPlane, name: str, spec: dict[str, Any]) -> None:
    """As ``kubectl edit`` would: by another field manager than the controller's."""
    control_plane.api.patch(*CLASS, name, {"spec": spec})


def test_b168_standard_classes_appear_with_their_extended_resources(
    controller: Controller, control_plane: ControlPlane
) -> None:
    controller.start()
    wait_until(lambda: names(control_plane) == STANDARD, "the standard classes", SECONDS)
    specs = {name: class_of(control_plane, name)["spec"] for name in STANDARD}
    assert specs["gpu.nvidia.com"]["extendedResourceName"] == "nvidia.com/gpu"
    assert specs["shared.gpu.nvidia.com"]["extendedResourceName"] == "nvidia.com/gpu.shared"
    assert "extendedResourceName" not in specs["mig.nvidia.com"]


def test_b169_a_profile_that_a_node_offers_gets_a_class_which_goes_with_the_profile(
    controller: Controller, control_plane: ControlPlane
) -> None:
    control_plane.api.create(offering_slice("n1", ["1g.10gb", "1g.10gb+me"]))
    controller.start(class_grace_period="0.5")
    spec = class_of(control_plane, SMALL)["spec"]
    assert spec["extendedResourceName"] == "nvidia.com/mig-1g.10gb"
    media = class_of(control_plane, "mig-1g.10gb.me.gpu.nvidia.com")["spec"]
    assert media["extendedResourceName"] == "nvidia.com/mig-1g.10gb.me"
    control_plane.api.create(offering_slice("n2", ["3g.40gb"]))
    class_of(control_plane, "mig-3g.40gb.gpu.nvidia.com")
    control_plane.api.delete(*SLICE, "n1")
    control_plane.api.wait_gone(*CLASS, SMALL, timeout=SECONDS)
    wait_until(
        lambda: names(control_plane) == STANDARD | {"mig-3g.40gb.gpu.nvidia.com"}, "what is backed", SECONDS
    )


def test_a_class_that_a_claim_names_stays_when_no_node_backs_it(
    controller: Controller, control_plane: ControlPlane
) -> None:
    control_plane.api.create(offering_slice("n1", ["1g.10gb", "2g.20gb"]))
    controller.start(class_grace_period="1")
    class_of(control_plane, SMALL)
    request = {"name": "r", "exactly": {"deviceClassName": SMALL}}
    control_plane.api.create(
        {
            "apiVersion": CLAIM[0],
            "kind": CLAIM[1],
            "metadata": {"name": "pending"},
            "spec": {"devices": {"requests": [request]}},
        }
    )
    class_of(control_plane, "mig-2g.20gb.gpu.nvidia.com")
    control_plane.api.delete(*SLICE, "n1")
    control_plane.api.wait_gone(*CLASS, "mig-2g.20gb.gpu.nvidia.com", timeout=SECONDS)
    assert SMALL in names(control_plane)
    control_plane.api.delete(*CLAIM, "pending")
    control_plane.api.wait_gone(*CLASS, SMALL, timeout=SECONDS)


def test_b156_a_deleted_class_and_a_removed_field_are_restored_within_seconds(
    controller: Controller, control_plane: ControlPlane
) -> None:
    controller.start()
    uid = class_of(control_plane, "gpu.nvidia.com")["metadata"]["uid"]
    control_plane.api.delete(*CLASS, "gpu.nvidia.com")
    restored = control_plane.api.wait_for(
        *CLASS, "gpu.nvidia.com", lambda item: item["metadata"]["uid"] != uid, "restored", timeout=5.0
    )
    assert restored["spec"]["extendedResourceName"] == "nvidia.com/gpu"
    edit(control_plane, "gpu.nvidia.com", {"selectors": None})
    control_plane.api.wait_for(
        *CLASS, "gpu.nvidia.com", lambda item: item["spec"].get("selectors"), "its selectors", timeout=5.0
    )


def test_a_field_that_a_person_took_over_stays_and_is_told_once(
    controller: Controller, control_plane: ControlPlane
) -> None:
    controller.start()
    class_of(control_plane, "gpu.nvidia.com")
    edit(control_plane, "gpu.nvidia.com", {"extendedResourceName": "example.com/gpu"})
    wait_until(
        lambda: [event for event in control_plane.api.events("gpu.nvidia.com") if "FieldKept" in event],
        "the event",
        SECONDS,
    )
    control_plane.api.delete(*CLASS, "mig.nvidia.com")
    class_of(control_plane, "mig.nvidia.com")
    spec = class_of(control_plane, "gpu.nvidia.com")["spec"]
    assert spec["extendedResourceName"] == "example.com/gpu"
    edit(control_plane, "gpu.nvidia.com", {"extendedResourceName": None})
    control_plane.api.wait_for(
        *CLASS,
        "gpu.nvidia.com",
        lambda item: item["spec"].get("extendedResourceName") == "nvidia.com/gpu",
        "given back",
        timeout=SECONDS,
    )


def test_a_class_that_others_made_is_neither_changed_nor_deleted(
    controller: Controller, control_plane: ControlPlane
) -> None:
    others = {"selectors": [{"cel": {"expression": 'device.driver == "example.com"'}}]}
    for name in ("mig.nvidia.com", SMALL, "unrelated"):
        control_plane.api.create(
            {"apiVersion": CLASS[0], "kind": CLASS[1], "metadata": {"name": name}, "spec": others}
        )
    control_plane.api.create(offering_slice("n1", ["1g.10gb"]))
    controller.start(class_grace_period="0.2")
    wait_until(
        lambda: [event for event in control_plane.api.events(SMALL) if "ClassOfOthers" in event],
        "the event",
        SECONDS,
    )
    control_plane.api.delete(*SLICE, "n1")
    wait_until(lambda: names(control_plane) > STANDARD, "the standard classes", SECONDS)
    for name in ("mig.nvidia.com", SMALL, "unrelated"):
        assert class_of(control_plane, name)["spec"] == others


def test_settings_add_change_and_turn_off_classes(
    controller: Controller, control_plane: ControlPlane
) -> None:
    text = """
classes:
- name: mig.nvidia.com
  enabled: false
- name: gpu.nvidia.com
  extendedResourceName: ""
- name: h100.gpu.nvidia.com
  extendedResourceName: nvidia.com/gpu
  selectors:
  - cel:
      expression: device.driver == "gpu.nvidia.com"
  config:
  - opaque:
      driver: gpu.nvidia.com
      parameters:
        apiVersion: resource.nvidia.com/v1beta1
        kind: GpuConfig
"""
    path = control_plane.workspace.write("classes.yaml", text)
    controller.start(classes=str(path))
    wait_until(
        lambda: names(control_plane) == {"gpu.nvidia.com", "shared.gpu.nvidia.com", "h100.gpu.nvidia.com"},
        "the classes",
        SECONDS,
    )
    assert "extendedResourceName" not in class_of(control_plane, "gpu.nvidia.com")["spec"]
    added = class_of(control_plane, "h100.gpu.nvidia.com")["spec"]
    assert added["extendedResourceName"] == "nvidia.com/gpu"
    assert added["config"][0]["opaque"]["parameters"]["kind"] == "GpuConfig"


def test_b156_with_create_false_nothing_is_made_or_touched(
    controller: Controller, control_plane: ControlPlane
) -> None:
    path = control_plane.workspace.write("no-classes.yaml", "create: false\n")
    replica = controller.start(classes=str(path))
    wait_until(lambda: replica.leads, "the leader", SECONDS)
    control_plane.api.create(offering_slice("n1", ["1g.10gb"]))
    replica.process.stop()
    assert names(control_plane) == set()


def test_when_all_is_true_nothing_is_written(controller: Controller, control_plane: ControlPlane) -> None:
    controller.start()
    wait_until(lambda: names(control_plane) == STANDARD, "the standard classes", SECONDS)
    for replica in controller.replicas:
        replica.process.stop()
    before = {item["metadata"]["name"]: item["metadata"] for item in control_plane.api.list(*CLASS)}
    second = controller.start()
    wait_until(lambda: second.leads, "the leader", SECONDS)
    wait_until(lambda: second.probes.metric("gpudra_device_classes") == 3, "a look", SECONDS)
    # What is queued after all the others is done last.
    control_plane.api.create(offering_slice("n1", ["1g.10gb"]))
    class_of(control_plane, SMALL)
    assert second.probes.metric("gpudra_device_class_writes_total", verb="apply") == 1
    after = {item["metadata"]["name"]: item["metadata"] for item in control_plane.api.list(*CLASS)}
    assert {name: after[name] for name in before} == before


def test_the_api_server_may_be_away_for_a_while(control_plane: ControlPlane) -> None:
    remove_all(control_plane)
    with (
        api_proxy(control_plane, "controller") as proxy,
        running_controller(control_plane, proxy.kubeconfig) as controller,
    ):
        replica = controller.start()
        wait_until(lambda: names(control_plane) == STANDARD, "the standard classes", SECONDS)
        proxy.intercept = lambda request: Away()
        proxy.cut_watches()
        control_plane.api.delete(*CLASS, "gpu.nvidia.com")
        wait_until(
            lambda: replica.probes.metric("gpudra_controller_leading") == 0, "the end of leading", SECONDS
        )
        assert replica.probes.ready()[0] == 200
        proxy.intercept = None
        restored = control_plane.api.wait_for(
            *CLASS, "gpu.nvidia.com", lambda item: True, "restored", timeout=20.0
        )
        assert restored["spec"]["extendedResourceName"] == "nvidia.com/gpu"
        assert replica.process.returncode is None
    remove_all(control_plane)


def test_where_extended_resources_are_not_stored_the_classes_go_without_and_it_is_told() -> None:
    # Devices that claims share are not known there either, so the class of these cannot be made.
    release = ["--emulated-version=1.35"]
    with ControlPlane(api_server_arguments=release) as old, running_controller(old) as controller:
        old.api.create(offering_slice("n1", ["1g.10gb"]))
        replica = controller.start()
        wait_until(lambda: names(old) == {"gpu.nvidia.com", "mig.nvidia.com", SMALL}, "the classes", SECONDS)
        wait_until(
            lambda: [event for event in old.api.events("gpu.nvidia.com") if "Withheld" in event],
            "the event",
            SECONDS,
        )
        assert all("extendedResourceName" not in item["spec"] for item in old.api.list(*CLASS))
        assert replica.probes.metric("gpudra_device_class_writes_total", verb="apply") == 3


def test_one_class_that_the_api_server_refuses_holds_up_no_other() -> None:
    gates = ["--feature-gates=DRAConsumableCapacity=false"]
    with ControlPlane(api_server_arguments=gates) as old, running_controller(old) as controller:
        controller.start()
        wait_until(lambda: names(old) >= {"gpu.nvidia.com", "mig.nvidia.com"}, "the classes", SECONDS)
        assert "shared.gpu.nvidia.com" not in names(old)
        wait_until(
            lambda: [event for event in old.api.events("shared.gpu.nvidia.com") if "Refused" in event],
            "the event",
            SECONDS,
        )
