"""The document of a PartitionRequest."""

from __future__ import annotations

from typing import Any

import pytest

from controller.partitions.request import GpuChoice, RequestError, parse, read
from driver.migoffer import MigPolicy
from driver.shares import ShareMode, Shares
from tests.unit.controller.partitions.boards import h100, t4

LAYOUT = {"layout": {"1g.10gb": 7}}


def test_every_field_is_read() -> None:
    request = read(
        {
            "metadata": {"name": "mine", "creationTimestamp": "2026-01-02T03:04:05Z"},
            "spec": {
                "nodeSelector": {"pool": "a"},
                "gpus": {
                    "product": "H100",
                    "pciBusIDs": ["00000000:17:00.0"],
                    "uuids": ["GPU-1A"],
                    "indexes": [2],
                    "count": 3,
                },
                "layout": {"3g.40gb": 1, "1g.10gb": 3},
                "mig": "Dynamic",
                "shares": "memory",
                "whenBusy": "Evict",
                "gracePeriod": "1h2m3s",
                "priority": -7,
            },
        }
    )
    assert request.source == "PartitionRequest mine"
    assert request.node_selector == (("pool", "a"),)
    assert request.gpus.pci_bus_ids == {"0000:17:00.0"}
    assert request.gpus.uuids == {"gpu-1a"}
    assert (set(request.gpus.indexes), request.gpus.count) == ({2}, 3)
    assert request.layout == (("1g.10gb", 3), ("3g.40gb", 1))
    assert (request.mig, request.shares) == (MigPolicy.DYNAMIC, Shares(ShareMode.MEMORY))
    assert (request.evict, request.grace_seconds, request.priority) == (True, 3723, -7)
    assert request.rank == (7, "2026-01-02T03:04:05Z", "PartitionRequest mine")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (None, ["field spec is required"]),
        ({}, ["spec wants nothing: give layout, mig or shares"]),
        ({"layot": "whole"}, ["field spec.layot is unknown", "layout"]),
        ({"layout": {"1g.10gb": 0}}, ["spec.layout", "1g.10gb"]),
        ({"layout": {"1g.10gb": 65}}, ["spec.layout", "1g.10gb"]),
        ({"layout": {"1g.10gb": "7"}}, ["spec.layout", "1g.10gb"]),
        ({"layout": 7}, ["spec.layout"]),
        ({"layout": ["1g.10gb"]}, ["spec.layout"]),
        ({**LAYOUT, "mig": "Static"}, ["spec.layout", "spec.mig: 'Static'", "leave one of them out"]),
        ({"layout": "balanced", "mig": "Off"}, ["spec.layout", "spec.mig: 'Off'"]),
        ({"mig": "dynamic"}, ["spec.mig", "'Dynamic', 'Static' or 'Off'"]),
        ({"shares": -1}, ["spec.shares", "-1", "from 2 to 256"]),
        ({"shares": 1}, ["spec.shares", "from 2 to 256"]),
        ({"shares": "all"}, ["spec.shares", "'memory' or 'unlimited'"]),
        ({**LAYOUT, "whenBusy": "Kill"}, ["spec.whenBusy", "'Wait' or 'Evict'"]),
        ({**LAYOUT, "gracePeriod": "10s"}, ["spec.gracePeriod", "set spec.whenBusy to Evict"]),
        ({**LAYOUT, "whenBusy": "Evict", "gracePeriod": "soon"}, ["spec.gracePeriod", "90s, 10m or 1h"]),
        ({**LAYOUT, "whenBusy": "Evict", "gracePeriod": ""}, ["spec.gracePeriod", "90s, 10m or 1h"]),
        ({**LAYOUT, "whenBusy": "Evict", "gracePeriod": "200h"}, ["spec.gracePeriod", "at most a week"]),
        ({**LAYOUT, "gpus": {"count": 0}}, ["spec.gpus.count"]),
        ({**LAYOUT, "gpus": {"indexes": [-1]}}, ["spec.gpus.indexes"]),
        ({**LAYOUT, "gpus": {"product": "H100("}}, ["spec.gpus.product", "no regular expression"]),
        ({**LAYOUT, "gpus": {"pciBusIDs": ["65"]}}, ["spec.gpus.pciBusIDs.0", "0000:65:00.0"]),
        ({**LAYOUT, "gpus": {"pciBusIds": []}}, ["spec.gpus.pciBusIds is unknown", "pciBusIDs"]),
        ({**LAYOUT, "priority": 2_000_000_000}, ["spec.priority"]),
        ({**LAYOUT, "nodeSelector": {"a": 1}}, ["spec.nodeSelector"]),
    ],
)
def test_a_wrong_field_is_refused_by_its_path(spec: Any, words: list[str]) -> None:
    with pytest.raises(RequestError) as raised:
        parse(spec, "PartitionRequest mine")
    for word in words:
        assert word in str(raised.value)


@pytest.mark.parametrize(
    ("given", "numbers"),
    [
        ({}, {0, 1, 2}),
        ({"product": "H100"}, {0, 1}),
        ({"product": "T4"}, {2}),
        ({"indexes": [1, 2]}, {1, 2}),
        ({"product": "H100", "indexes": [1, 2]}, {1}),
        ({"uuids": ["gpu-2"], "pciBusIDs": ["0000:12:00.0"]}, {2}),
        ({"uuids": ["gpu-1"], "pciBusIDs": ["0000:12:00.0"]}, set()),
    ],
)
def test_a_gpu_is_meant_that_every_field_names(given: dict[str, Any], numbers: set[int]) -> None:
    choice: GpuChoice = parse({**LAYOUT, "gpus": given}, "").gpus
    assert {gpu.index for gpu in (h100(0), h100(1), t4(2)) if choice.names(gpu)} == numbers


def test_a_node_is_meant_that_has_every_label() -> None:
    request = parse({**LAYOUT, "nodeSelector": {"a": "1", "b": "2"}}, "")
    assert request.selects({"a": "1", "b": "2", "c": "3"})
    assert not request.selects({"a": "1", "b": "3"})
    assert not request.selects({"a": "1"})
