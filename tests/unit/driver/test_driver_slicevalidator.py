"""The validator must see what the API server would refuse, or its silence means nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.driver.slicevalidator import violations


def _spec(*devices: dict[str, Any]) -> dict[str, Any]:
    return {
        "driver": "gpu.nvidia.com",
        "nodeName": "node-1",
        "pool": {"name": "node-1", "generation": 1, "resourceSliceCount": 1},
        "devices": list(devices),
    }


def _counters(*names: str, **values: str) -> dict[str, Any]:
    counters = {name: {"value": value} for name, value in (values or {"c": "1"}).items()}
    spec = _spec() | {"sharedCounters": [{"name": name, "counters": counters} for name in names]}
    return {key: value for key, value in spec.items() if key != "devices"}


def _shared(policy: dict[str, Any] | None, value: str = "8", **fields: Any) -> list[dict[str, Any]]:
    capacity = {"value": value} if policy is None else {"value": value, "requestPolicy": policy}
    device = _device(capacity={"shares": capacity}, **({"allowMultipleAllocations": True} | fields))
    return [_spec(device)]


def _range(default: str = "1", **fields: str) -> dict[str, Any]:
    return {"default": default, "validRange": {"min": "1", **fields}}


def _device(name: str = "gpu-0", **fields: Any) -> dict[str, Any]:
    return {"name": name, "attributes": {}, "capacity": {}, **fields}


def test_a_valid_pool_has_no_violation() -> None:
    device = _device(attributes={"driver.io/uuid": {"string": ""}}, capacity={"memory": {"value": "1Gi"}})
    assert violations([_spec(device)]) == []
    assert violations(_shared({"default": "0"})) == []
    assert violations(_shared(_range("2", max="8", step="1"))) == []


@pytest.mark.parametrize(
    ("specs", "text"),
    [
        (lambda: [_spec(_device("Gpu"))], "no DNS label"),
        (lambda: [_spec(_device("x" * 64))], "no DNS label"),
        (lambda: [_spec(_device(), _device())], "in the pool 2 times"),
        (lambda: [_spec(), _spec()], "one complete pool"),
        (lambda: [_spec(*(_device(f"gpu-{number}") for number in range(129)))], "129 devices"),
        (lambda: [_spec(_device(attributes={f"a{n}": {"int": n} for n in range(33)}))], "33 attributes"),
        (lambda: [_spec(_device(attributes={"a": {"version": "535.161.08"}}))], "no semantic version"),
        (lambda: [_spec(_device(attributes={"a": {"version": ""}}))], "no semantic version"),
        (lambda: [_spec(_device(attributes={"a": {"string": "é" * 33}}))], "66 bytes"),
        (lambda: [_spec(_device(attributes={"a": {}}))], "exactly one value"),
        (lambda: [_spec(_device(attributes={"a-b": {"int": 1}}))], "C identifier"),
        (lambda: [_spec(_device(attributes={"a": {"int": True}}))], "int True"),
        (lambda: [_spec(_device(capacity={"memory": {"value": "1 GB"}}))], "no quantity"),
        (lambda: _shared({"default": "1"}, allowMultipleAllocations=False), "without allowMultiple"),
        (lambda: _shared(None), "no default"),
        (lambda: _shared({}), "no default"),
        (lambda: _shared({"default": "one"}), "no quantity"),
        (lambda: _shared(_range("0")), "default 0"),
        (lambda: _shared(_range("9")), "default 9"),
        (lambda: _shared(_range(max="9")), "max 9"),
        (lambda: _shared(_range("3", max="2")), "max 2"),
        (lambda: _shared(_range(step="0")), "a step of 0"),
        (lambda: _shared(_range(step="8")), "the first step"),
        (lambda: _shared(_range("2", step="2")), "no number of steps"),
        (lambda: _shared(_range(max="8", step="2")), "no number of steps"),
        (lambda: [_spec(_device(taints=[{"key": "k", "effect": "Never"}]))], "taint effect"),
        (
            lambda: [
                _spec(_device(consumesCounters=[{"counterSet": "s", "counters": {"c": {"value": "1"}}}]))
            ],
            "no counter s/c",
        ),
        (lambda: [_counters("s", "s")], "in the pool 2 times"),
        (lambda: [_counters(*(f"s{number}" for number in range(9)))], "more than 8 counter sets"),
        (lambda: [_counters("S")], "no DNS label"),
        (lambda: [_counters("s", **{f"c{number}": "1" for number in range(33)})], "33 counters"),
        (lambda: [_counters("s", c="many")], "no quantity"),
        (
            lambda: [
                _counters("s", c="1"),
                _spec(_device(consumesCounters=[{"counterSet": "s", "counters": {"c": {"value": "2"}}}])),
            ],
            "takes 2 of s/c, which is 1 in all",
        ),
        (lambda: [_spec() | {"sharedCounters": []}], "only one of"),
        (lambda: [_spec() | {"allNodes": True}], "exactly one of nodeName"),
    ],
)
def test_broken_rules_are_named(specs: Callable[[], list[dict[str, Any]]], text: str) -> None:
    assert any(text in violation for violation in violations(specs()))
