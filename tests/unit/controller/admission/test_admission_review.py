"""Reviews of written objects: each kind of configuration, object and API version, and what is no review."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.admission.review import KINDS, LONGEST_MESSAGE, VERSIONS, ReviewError, answer, kind_of

PARAMETERS = "resource.nvidia.com/v1beta1"
PATHS = {
    "ResourceClaim": "spec.devices.config",
    "ResourceClaimTemplate": "spec.spec.devices.config",
    "DeviceClass": "spec.config",
}


def parameters(kind: str = "GpuConfig", **fields: Any) -> dict[str, Any]:
    return {"apiVersion": PARAMETERS, "kind": kind, **fields}


def entry(value: object, driver: str = "gpu.nvidia.com") -> dict[str, Any]:
    return {"opaque": {"driver": driver, "parameters": value}}


def written(kind: str, version: str, *entries: object) -> dict[str, Any]:
    """An object as users write it, with requests in the shape of its version."""
    item = {"apiVersion": f"resource.k8s.io/{version}", "kind": kind, "metadata": {"name": "a"}}
    if kind == "DeviceClass":
        return {**item, "spec": {"selectors": [], "config": list(entries)}}
    exactly = {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": 1}
    request = {"name": "gpu", **(exactly if version == "v1beta1" else {"exactly": exactly})}
    claim = {"devices": {"requests": [request], "config": list(entries)}}
    return {**item, "spec": claim if kind == "ResourceClaim" else {"metadata": {}, "spec": claim}}


def review(
    item: dict[str, Any], *, old: dict[str, Any] | None = None, operation: str = "", subresource: str = ""
) -> dict[str, Any]:
    group, version = item["apiVersion"].split("/")
    request = {
        "uid": "u-1",
        "kind": {"group": group, "version": version, "kind": item["kind"]},
        "operation": operation or ("UPDATE" if old else "CREATE"),
        "object": item,
        "oldObject": old,
    }
    if subresource:
        request["subResource"] = subresource
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def verdict(asked: dict[str, Any]) -> tuple[bool, str]:
    answered = answer(asked)
    assert (answered["apiVersion"], answered["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response = answered["response"]
    assert response["uid"] == asked["request"]["uid"]
    return response["allowed"], response.get("status", {}).get("message", "")


GOOD = [
    parameters(),
    parameters(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}),
    parameters("MigDeviceConfig"),
    parameters("MigDeviceConfig", sharing={"strategy": "TimeSlicing"}),
]
BAD = [
    ({"apiVersion": "v1", "kind": "GpuConfig"}, ".apiVersion", [PARAMETERS]),
    (parameters("Gpu"), ".kind", ["'Gpu'", "GpuConfig, MigDeviceConfig"]),
    (parameters(sharign={}), ".sharign", ["unknown", "sharing"]),
    (parameters(sharing={"strategy": "MPS"}), ".sharing.strategy", ["'MPS' is not supported yet"]),
    (
        parameters(sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Forever"}}),
        ".sharing.timeSlicingConfig.interval",
        ["'Forever'", "'Default', 'Short', 'Medium' or 'Long'"],
    ),
    (
        parameters("MigDeviceConfig", sharing={"timeSlicingConfig": {}}),
        ".sharing.timeSlicingConfig",
        ["unknown"],
    ),
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("good", GOOD)
def test_b153_every_kind_of_configuration_passes(kind: str, version: str, good: dict[str, Any]) -> None:
    assert verdict(review(written(kind, version, entry(good)))) == (True, "")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("bad", "field", "words"), BAD)
def test_b153_what_prepare_would_refuse_is_refused_by_its_full_path(
    kind: str, version: str, bad: dict[str, Any], field: str, words: list[str]
) -> None:
    item = written(kind, version, entry(GOOD[0]), entry(bad))
    allowed, message = verdict(review(item))
    assert not allowed
    assert f"field {PATHS[kind]}[1].opaque.parameters{field}" in message
    for word in words:
        assert word in message


@pytest.mark.parametrize("kind", KINDS)
def test_b153_configuration_of_other_drivers_is_not_looked_at(kind: str) -> None:
    item = written(kind, "v1", entry({"kind": "Nonsense"}, "other.example.com"), {"requests": ["gpu"]})
    assert verdict(review(item)) == (True, "")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [None, [], "text", 3])
def test_parameters_that_are_no_object_are_refused(kind: str, value: object) -> None:
    allowed, message = verdict(review(written(kind, "v1", entry(value))))
    assert not allowed
    assert message.startswith(f"field {PATHS[kind]}[0].opaque.parameters: it must be an object")


def test_all_wrong_entries_are_told_at_once() -> None:
    item = written("ResourceClaim", "v1", entry(parameters("A")), entry(parameters("B")))
    _, message = verdict(review(item))
    assert "config[0]" in message
    assert "config[1]" in message


def test_a_message_stays_short_whatever_was_written() -> None:
    many = {**parameters(), **{f"field{number}": 1 for number in range(1000)}}
    allowed, message = verdict(review(written("ResourceClaim", "v1", entry(many))))
    assert not allowed
    assert len(message) == LONGEST_MESSAGE


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_stored_before_stays_writable(kind: str) -> None:
    old = written(kind, "v1", entry(parameters("Old")))
    new = copy.deepcopy(old)
    new["metadata"]["labels"] = {"a": "b"}
    assert verdict(review(new, old=old)) == (True, "")


def test_an_update_is_refused_for_the_entry_that_it_brings() -> None:
    old = written("DeviceClass", "v1", entry(parameters("Old")))
    new = written("DeviceClass", "v1", entry(parameters("New")), entry(parameters("Old")))
    allowed, message = verdict(review(new, old=old))
    assert not allowed
    assert "config[0]" in message
    assert "config[1]" not in message


def test_an_update_that_changes_only_the_type_of_a_value_is_judged() -> None:
    def percentage(value: object) -> dict[str, Any]:
        return entry(parameters(sharing={"mpsConfig": {"multiUser": value}}))

    old = written("DeviceClass", "v1", percentage(True))
    assert not verdict(review(written("DeviceClass", "v1", percentage(1)), old=old))[0]


@pytest.mark.parametrize(
    ("operation", "subresource"),
    [("DELETE", ""), ("CONNECT", ""), ("UPDATE", "status"), ("UPDATE", "binding")],
)
def test_what_writes_no_configuration_passes(operation: str, subresource: str) -> None:
    item = written("ResourceClaim", "v1", entry(parameters("Bad")))
    asked = review(item, operation=operation, subresource=subresource)
    if operation == "DELETE":
        asked["request"].update(object=None, oldObject=item)
    assert verdict(asked) == (True, "")


def changed(**request: object) -> dict[str, Any]:
    asked = review(written("ResourceClaim", "v1"))
    asked["request"].update(request)
    return asked


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (None, "no AdmissionReview"),
        ([], "no AdmissionReview"),
        ({}, "no AdmissionReview"),
        ({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1beta1"}, "v1beta1"),
        ({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}, "request is missing"),
        ({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": 3}, "request is"),
        (changed(uid=None), "uid"),
        (changed(uid=7), "uid"),
        (changed(kind=None), "kind is missing"),
        (changed(kind={"group": "", "version": "v1", "kind": "Pod"}), "/v1/Pod is not judged"),
        (changed(kind={"group": "resource.k8s.io", "version": "v2", "kind": "ResourceClaim"}), "v2"),
        (changed(kind={"group": [], "version": {}, "kind": []}), "not judged"),
        (changed(object=None), "object is missing"),
        (changed(object={"spec": 3}), "request.object.spec is no object"),
        (changed(object={"spec": {"devices": []}}), "request.object.spec.devices is no object"),
        (changed(object={"spec": {"devices": {"config": {}}}}), "request.object.spec.devices.config is"),
    ],
)
def test_b153_what_is_no_review_is_an_error_of_one_kind(asked: object, words: str) -> None:
    with pytest.raises(ReviewError, match=words):
        answer(asked)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["spec", "devices", "config", "opaque", "driver", "kind"]), inner)
    ),
    max_leaves=12,
)


@given(item=JSON, old=JSON, kind=st.sampled_from([*KINDS, "Pod", 3]))
def test_whatever_comes_is_answered_or_is_a_review_error(item: object, old: object, kind: object) -> None:
    named = {"group": "resource.k8s.io", "version": "v1", "kind": kind}
    asked = changed(object=item, oldObject=old, kind=named, operation="UPDATE")
    with contextlib.suppress(ReviewError):
        assert answer(asked)["response"]["uid"] == "u-1"
    assert kind_of(asked) in ("", *KINDS)
    assert kind_of(item) == ""


def partition_request(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "gpudra.io/v1alpha1",
        "kind": "PartitionRequest",
        "metadata": {"name": "a"},
        "spec": spec,
    }


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"layout": {"1g.10gb": 7}}, ""),
        ({"layout": 7}, "field spec.layout"),
        ({"layout": "balanced", "mig": "Off"}, "field spec.layout: its partitions are made by the driver"),
        ({}, "spec wants nothing"),
    ],
)
def test_a_partition_request_is_judged_as_the_controller_reads_it(spec: dict[str, Any], words: str) -> None:
    allowed, message = verdict(review(partition_request(**spec)))
    assert allowed is not bool(words)
    assert words in message


def test_a_partition_request_that_was_stored_stays_writable() -> None:
    stored, good = partition_request(layout=7), partition_request(layout="whole")
    assert verdict(review(stored, old=stored))[0]
    assert verdict(review(good, old=stored))[0]
    assert not verdict(review(stored, old=good))[0]
    assert verdict(review(stored, old=good, subresource="status"))[0]
    assert kind_of(review(stored)) == "PartitionRequest"


def test_other_kinds_and_versions_of_ours_are_not_judged() -> None:
    for version, kind in (("v1", "PartitionRequest"), ("v1alpha1", "NodePartition")):
        item = {**partition_request(), "apiVersion": f"gpudra.io/{version}", "kind": kind}
        with pytest.raises(ReviewError, match=r"gpudra\.io/v1alpha1/PartitionRequest"):
            answer(review(item))
