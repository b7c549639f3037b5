"""Whether two ResourceSlice specs say the same, and what a server left out of the one that it was sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from driver.quantity import parse_quantity
from kube.resources import Object


def comparable(spec: Object) -> Object:
    """A form of a ``ResourceSliceSpec`` that is equal for specs of equal meaning.

    Quantities are compared by value and empty collections count as absent, as the server leaves them out.
    Left out are the pool's generation and slice count, which belong to the pool and not to the slice, and the
    ``timeAdded`` of taints, which the server fills in.
    """
    form: Object = _without_empty(spec)
    form["pool"] = {"name": spec["pool"]["name"]}
    for counter_set in form.get("sharedCounters", ()):
        _read_quantities(counter_set.get("counters", {}))
    for device in form.get("devices", ()):
        _read_quantities(device.get("capacity", {}))
        for consumption in device.get("consumesCounters", ()):
            _read_quantities(consumption.get("counters", {}))
        for taint in device.get("taints", ()):
            taint.pop("timeAdded", None)
    return form


def dropped_fields(sent: Object, stored: Object) -> tuple[str, ...]:
    """Which fields of the spec that was ``sent`` are missing or different in the spec that was ``stored``.

    Paths look like ``devices[].taints``: without indexes, each once, sorted.
    """
    return tuple(sorted(set(_differences("", comparable(sent), comparable(stored)))))


def _differences(path: str, sent: Any, stored: Any) -> Iterator[str]:
    if isinstance(sent, dict) and isinstance(stored, dict):
        for key, value in sent.items():
            below = f"{path}.{key}" if path else key
            if key in stored:
                yield from _differences(below, value, stored[key])
            else:
                yield below
    elif isinstance(sent, list) and isinstance(stored, list) and len(sent) == len(stored):
        for one, other in zip(sent, stored, strict=True):
            yield from _differences(f"{path}[]", one, other)
    elif sent != stored:
        yield path


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_empty(item) for key, item in value.items() if item not in (None, [], {})}
    if isinstance(value, list):
        return [_without_empty(item) for item in value]
    return value


def _read_quantities(entries: dict[str, Object]) -> None:
    for entry in entries.values():
        _read_quantity(entry, "value")
        policy = entry.get("requestPolicy", {})
        _read_quantity(policy, "default")
        if "validValues" in policy:
            policy["validValues"] = [_quantity(value) for value in policy["validValues"]]
        for key in ("min", "max", "step"):
            _read_quantity(policy.get("validRange", {}), key)


def _read_quantity(entry: Object, key: str) -> None:
    if key in entry:
        entry[key] = _quantity(entry[key])


def _quantity(value: Any) -> Any:
    # A value that is no quantity is the server's to refuse; here it is compared as it stands.
    try:
        return parse_quantity(str(value))
    except ValueError:
        return value
