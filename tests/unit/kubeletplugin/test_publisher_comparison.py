"""When two specs say the same, and what is said to be dropped."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from kube.resources import Object
from kubeletplugin.slicecomparison import comparable, dropped_fields

SPEC: Object = {
    "driver": "gpu.nvidia.com",
    "nodeName": "n1",
    "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
    "devices": [
        {
            "name": "gpu-0",
            "attributes": {"type": {"string": "gpu"}, "profile": {"string": ""}, "numaNode": {"int": 0}},
            "capacity": {
                "memory": {
                    "value": "80Gi",
                    "requestPolicy": {
                        "default": "1Gi",
                        "validValues": ["1Gi", "2Gi"],
                        "validRange": {"min": "1Gi", "max": "80Gi", "step": "1Gi"},
                    },
                }
            },
            "allowMultipleAllocations": True,
            "consumesCounters": [{"counterSet": "gpu-0", "counters": {"memory": {"value": "80Gi"}}}],
            "taints": [{"key": "k", "effect": "NoSchedule"}],
        }
    ],
}
COUNTERS: Object = {
    "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
    "sharedCounters": [{"name": "gpu-0", "counters": {"memory": {"value": "80Gi"}}}],
}


def edited(spec: Object, edit: Callable[[Object], object]) -> Object:
    other = copy.deepcopy(spec)
    edit(other)
    return other


@pytest.mark.parametrize(
    "edit",
    [
        lambda spec: spec["pool"].update(generation=7, resourceSliceCount=3),
        lambda spec: spec["devices"][0]["capacity"]["memory"].update(value="81920Mi"),
        lambda spec: spec["devices"][0]["capacity"]["memory"]["requestPolicy"].update(default="1024Mi"),
        lambda spec: spec["devices"][0]["capacity"]["memory"]["requestPolicy"].update(
            validValues=["1024Mi", "2048Mi"]
        ),
        lambda spec: spec["devices"][0]["capacity"]["memory"]["requestPolicy"]["validRange"].update(
            step="1024Mi"
        ),
        lambda spec: spec["devices"][0]["consumesCounters"][0]["counters"]["memory"].update(
            value="85899345920"
        ),
        lambda spec: spec["devices"][0]["taints"][0].update(timeAdded="2026-01-01T00:00:00Z"),
        lambda spec: spec.update(sharedCounters=[]),
        lambda spec: spec["devices"][0].update(bindingConditions=[], nodeName=None),
    ],
)
def test_same_meaning_in_another_form(edit: Callable[[Object], object]) -> None:
    other = edited(SPEC, edit)
    assert other != SPEC
    assert comparable(other) == comparable(SPEC)
    assert dropped_fields(SPEC, other) == ()


def test_counters_are_compared_by_value() -> None:
    other = edited(
        COUNTERS, lambda spec: spec["sharedCounters"][0]["counters"]["memory"].update(value="81920Mi")
    )
    assert comparable(other) == comparable(COUNTERS)


@pytest.mark.parametrize(
    ("edit", "fields"),
    [
        (lambda spec: spec["devices"][0].pop("taints"), ("devices[].taints",)),
        (
            lambda spec: (
                spec["devices"][0].pop("allowMultipleAllocations"),
                spec["devices"][0]["capacity"]["memory"].pop("requestPolicy"),
            ),
            ("devices[].allowMultipleAllocations", "devices[].capacity.memory.requestPolicy"),
        ),
        (lambda spec: spec["devices"][0].pop("consumesCounters"), ("devices[].consumesCounters",)),
        (lambda spec: spec["devices"][0]["attributes"].pop("numaNode"), ("devices[].attributes.numaNode",)),
        (
            lambda spec: spec["devices"][0]["attributes"]["profile"].update(string="x"),
            ("devices[].attributes.profile.string",),
        ),
        (lambda spec: spec["devices"].append({"name": "gpu-1"}), ("devices",)),
        (lambda spec: spec["devices"][0].update(added=True), ()),
    ],
)
def test_b031_dropped_fields_are_named(edit: Callable[[Object], object], fields: tuple[str, ...]) -> None:
    other = edited(SPEC, edit)
    assert comparable(other) != comparable(SPEC)
    assert dropped_fields(SPEC, other) == fields


def test_a_field_dropped_from_many_devices_is_named_once() -> None:
    sent = edited(
        SPEC, lambda spec: spec.update(devices=[copy.deepcopy(spec["devices"][0]) for _ in range(99)])
    )
    stored = edited(sent, lambda spec: [device.pop("taints") for device in spec["devices"]])
    assert dropped_fields(sent, stored) == ("devices[].taints",)


def test_what_is_no_quantity_is_compared_as_it_stands() -> None:
    odd = edited(COUNTERS, lambda spec: spec["sharedCounters"][0]["counters"]["memory"].update(value="lots"))
    assert comparable(odd) == comparable(copy.deepcopy(odd))
    assert comparable(odd) != comparable(COUNTERS)
