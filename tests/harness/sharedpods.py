"""Shares of devices on a cluster: pods with shares, and whether too much was given out."""

from __future__ import annotations

from collections import defaultdict

from driver.quantity import parse_quantity
from tests.cluster.api import Object
from tests.harness.claims import API_VERSION
from tests.harness.clusternode import ClusterGpuNode
from tests.harness.pods import SHARED_CLASS, attribute, claim_spec, container, exactly, pod


def of_profile(profile: str) -> str:
    """The CEL expression for MIG devices of a profile."""
    return f'{attribute("profile")} == "{profile}"'


def share_pod(name: str, cel: str = "", memory: str = "") -> list[Object]:
    """A pod with one share of a device."""
    spec = claim_spec(exactly("share", SHARED_CLASS, cel=cel, memory=memory))
    return pod(name, {"share": spec}, {"main": container("share")}, grace_seconds=1)


def results(item: Object) -> list[Object]:
    """The allocation results of a claim."""
    found: list[Object] = item["status"]["allocation"]["devices"]["results"]
    return found


def share_ids(item: Object) -> list[str]:
    """The ids of the shares that a claim has, by request."""
    return [result["shareID"] for result in results(item)]


def overbooked(node: ClusterGpuNode) -> list[str]:
    """What all claims together have too much of, of what the node publishes; empty when nothing.

    Devices with one claim at a time, capacities of shared devices, and counters, each device once.
    """
    published = node.published()
    claims = [
        item for item in node.api.list(API_VERSION, "ResourceClaim") if "allocation" in item.get("status", {})
    ]
    shares: dict[str, list[Object]] = defaultdict(list)
    for result in [result for item in claims for result in results(item)]:
        shares[result["device"]].append(result)
    wrong = []
    left: dict[tuple[str, str], int] = {}
    for spec in [item["spec"] for item in node.slices()]:
        for each in spec.get("sharedCounters") or []:
            for name, counter in each["counters"].items():
                left[each["name"], name] = int(counter["value"])
    for device, given in shares.items():
        entry = published[device]
        if not entry.get("allowMultipleAllocations"):
            wrong += [f"{device} has {len(given)} claims"] if len(given) > 1 else []
        else:
            for name, capacity in entry["capacity"].items():
                total = sum(int(parse_quantity(one["consumedCapacity"][name])) for one in given)
                if total > int(parse_quantity(capacity["value"])):
                    wrong.append(f"{total} of {name} of {device} are given out, it has {capacity['value']}")
        for consumption in entry.get("consumesCounters") or []:
            for name, counter in consumption["counters"].items():
                left[consumption["counterSet"], name] -= int(counter["value"])
    return wrong + [
        f"counter {name} of {group} is {value}" for (group, name), value in left.items() if value < 0
    ]
