"""An offline validator of ResourceSlices: the rules of the Kubernetes API that a schema does not hold.

Written from the API types' documentation (resource.k8s.io/v1, 1.36). ``violations`` takes the specs of one
pool, complete with generation and count, and names each broken rule.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from driver.quantity import parse_quantity

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_NUMBER = r"(0|[1-9]\d*)"
_SEMVER = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")
_NODE_FIELDS = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_EFFECTS = ("None", "NoSchedule", "NoExecute")


def violations(specs: Sequence[dict[str, Any]]) -> list[str]:
    """Every rule of the API that the specs of this pool break; none: accepted, and the pool is complete."""
    found: list[str] = []
    for number, spec in enumerate(specs):
        found += [f"slice {number}: {problem}" for problem in _spec(spec)]
    names = [device["name"] for spec in specs for device in spec.get("devices", [])]
    found += [
        f"device {name} is in the pool {names.count(name)} times"
        for name in {*names}
        if names.count(name) > 1
    ]
    pools = {(s["pool"]["name"], s["pool"].get("generation"), s["pool"]["resourceSliceCount"]) for s in specs}
    if len(pools) != 1 or next(iter(pools))[2] != len(specs):
        found.append(f"the slices do not agree on one complete pool: {sorted(map(str, pools))}")
    return found + _counters(specs)


def _spec(spec: dict[str, Any]) -> list[str]:
    found = []
    if not _SUBDOMAIN.fullmatch(spec["driver"]) or len(spec["driver"]) > 63:
        found.append(f"driver name {spec['driver']!r}")
    if not all(_SUBDOMAIN.fullmatch(part) for part in spec["pool"]["name"].split("/")):
        found.append(f"pool name {spec['pool']['name']!r}")
    if len(spec["pool"]["name"]) > 253:
        found.append("pool name longer than 253")
    if sum(key in spec for key in _NODE_FIELDS) != 1:
        found.append(f"exactly one of {', '.join(_NODE_FIELDS)} is required")
    devices = spec.get("devices")
    if devices is not None and spec.get("sharedCounters") is not None:
        found.append("only one of sharedCounters or devices is allowed")
    if len(spec.get("sharedCounters") or []) > 8:
        found.append("more than 8 counter sets")
    extras = any(d.get("taints") or d.get("consumesCounters") for d in devices or [])
    if len(devices or []) > (64 if extras else 128):
        found.append(f"{len(devices or [])} devices")
    for device in devices or []:
        found += [f"device {device['name']}: {problem}" for problem in _device(device)]
    return found


def _device(device: dict[str, Any]) -> list[str]:
    found = []
    if not _LABEL.fullmatch(device["name"]):
        found.append("the name is no DNS label")
    attributes, capacity = device.get("attributes", {}), device.get("capacity", {})
    if len(attributes) + len(capacity) > 32:
        found.append(f"{len(attributes) + len(capacity)} attributes and capacities")
    for name, value in attributes.items():
        found += [f"attribute {name}: {problem}" for problem in _name(name) + _attribute(value)]
    for name, value in capacity.items():
        problems = _name(name) + _quantity(value.get("value")) + _request_policy(device, value)
        found += [f"capacity {name}: {problem}" for problem in problems]
    taints = device.get("taints", [])
    if len(taints) > 16:
        found.append(f"{len(taints)} taints")
    found += [f"taint effect {taint['effect']!r}" for taint in taints if taint["effect"] not in _EFFECTS]
    consumed = device.get("consumesCounters", [])
    if len(consumed) > 2 or len({entry["counterSet"] for entry in consumed}) != len(consumed):
        found.append("consumesCounters has more than two entries or one set twice")
    for entry in consumed:
        if not 1 <= len(entry["counters"]) <= 32:
            found.append(f"{len(entry['counters'])} counters of {entry['counterSet']}")
    return found


def _request_policy(device: dict[str, Any], capacity: dict[str, Any]) -> list[str]:
    """Of a shared device each capacity needs a default, or a claim takes all of it; others have no policy."""
    policy = capacity.get("requestPolicy")
    if not device.get("allowMultipleAllocations"):
        return [] if policy is None else ["a request policy without allowMultipleAllocations"]
    if policy is None or "default" not in policy:
        return ["no default, so a claim takes all of it"]
    problems = _quantity(policy["default"])
    if "validRange" in policy and not problems:
        problems += _valid_range(capacity["value"], policy["default"], policy["validRange"])
    return problems


def _valid_range(value: str, default: str, valid: dict[str, str]) -> list[str]:
    total, chosen, least = parse_quantity(value), parse_quantity(default), parse_quantity(valid["min"])
    most, step = (parse_quantity(valid[key]) if key in valid else None for key in ("max", "step"))
    found = []
    if not least <= chosen <= total or least > total:
        found.append(f"default {default} of a range from {valid['min']} in {value}")
    if most is not None and not (least <= most <= total and chosen <= most):
        found.append(f"max {valid['max']} with default {default} in {value}")
    if step is not None and step <= 0:
        found.append("a step of 0, on which the API server panics")
    elif step is not None:
        if least + step > total:
            found.append(f"the first step is above {value}")
        ends = [chosen] if most is None else [chosen, most]
        if any((end - least) % step for end in ends):
            found.append(f"default or max is no number of steps of {valid['step']} above {valid['min']}")
    return found


def _name(name: str) -> list[str]:
    domain, slash, identifier = name.rpartition("/")
    if slash and (not _SUBDOMAIN.fullmatch(domain) or len(domain) > 63):
        return ["the domain is no DNS subdomain"]
    return [] if _IDENTIFIER.fullmatch(identifier) else ["the name is no C identifier of 32 characters"]


def _attribute(value: dict[str, Any]) -> list[str]:
    if len(value) != 1:
        return ["exactly one value must be specified"]
    ((kind, content),) = value.items()
    if kind in ("string", "version") and len(content.encode()) > 64:
        return [f"{kind} of {len(content.encode())} bytes"]
    if kind == "version" and not _SEMVER.fullmatch(content):
        return [f"{content!r} is no semantic version"]
    expected = {"string": str, "version": str, "int": int, "bool": bool}.get(kind)
    return [] if expected is type(content) else [f"{kind} {content!r}"]


def _quantity(text: Any) -> list[str]:
    try:
        return [] if parse_quantity(text) >= 0 else [f"negative quantity {text!r}"]
    except (TypeError, ValueError):
        return [f"{text!r} is no quantity"]


def _counters(specs: Sequence[dict[str, Any]]) -> list[str]:
    every = [entry for spec in specs for entry in spec.get("sharedCounters", [])]
    names = [entry["name"] for entry in every]
    found = [f"counter set {name} is in the pool {names.count(name)} times" for name in sorted({*names})]
    found = [problem for problem in found if not problem.endswith(" 1 times")]
    for entry in every:
        found += [f"counter set {entry['name']}: {problem}" for problem in _counter_set(entry)]
    sets = {entry["name"]: entry["counters"] for entry in every}
    for device in (device for spec in specs for device in spec.get("devices", [])):
        for entry in device.get("consumesCounters", []):
            found += [f"device {device['name']}: {problem}" for problem in _consumption(entry, sets)]
    return found


def _counter_set(entry: dict[str, Any]) -> list[str]:
    found = []
    if not _LABEL.fullmatch(entry["name"]):
        found.append("the name is no DNS label")
    if not 1 <= len(entry["counters"]) <= 32:
        found.append(f"{len(entry['counters'])} counters")
    for name, value in entry["counters"].items():
        if not _LABEL.fullmatch(name):
            found.append(f"counter {name}: the name is no DNS label")
        found += [f"counter {name}: {problem}" for problem in _quantity(value.get("value"))]
    return found


def _consumption(entry: dict[str, Any], sets: dict[str, dict[str, Any]]) -> list[str]:
    """A counter that is missing makes the pool invalid; one that never suffices makes the device useless."""
    found = []
    counters = sets.get(entry["counterSet"], {})
    for name, value in entry["counters"].items():
        where = f"{entry['counterSet']}/{name}"
        found += [f"counter {where}: {problem}" for problem in _quantity(value.get("value"))]
        if name not in counters:
            found.append(f"no counter {where} in the pool")
        elif parse_quantity(value["value"]) > parse_quantity(counters[name]["value"]):
            found.append(f"takes {value['value']} of {where}, which is {counters[name]['value']} in all")
    return found
