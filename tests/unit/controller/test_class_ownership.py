"""What is to be done with a DeviceClass, by what stands there and whose it is."""

from __future__ import annotations

from typing import Any

import pytest

from controller.deviceclasses.desired import DeviceClass
from controller.deviceclasses.ownership import MADE_BY, MANAGED_BY, MANAGER, classes_named, is_ours, judge

SELECTORS = [{"cel": {"expression": "true"}}]
OTHERS = [{"cel": {"expression": "false"}}]
WANTED = DeviceClass("c", tuple(SELECTORS), (), "nvidia.com/x")
SPEC = {"selectors": SELECTORS, "extendedResourceName": "nvidia.com/x"}
FIELDS = ("selectors", "extendedResourceName")


def live(
    spec: dict[str, Any], *, made_here: bool = True, labels: dict[str, str] = MANAGED_BY, **managers: Any
) -> dict[str, Any]:
    """A class; each keyword is a field manager with the fields that it owns, ``ours`` is the controller."""
    entries = [
        {
            "manager": MANAGER if name == "ours" else name,
            "fieldsV1": {"f:spec": {f"f:{field}": {} for field in fields}},
        }
        for name, fields in managers.items()
    ]
    metadata: dict[str, Any] = {"name": "c", "labels": labels, "managedFields": entries}
    if made_here:
        metadata["annotations"] = {MADE_BY: MANAGER}
    return {"metadata": metadata, "spec": spec}


def applied(item: dict[str, Any] | None, *, extended: bool = True) -> dict[str, Any] | None:
    body = judge(item, WANTED, with_extended_resource=extended).body
    return None if body is None else body["spec"]


def test_a_class_that_is_missing_is_made_and_marked() -> None:
    body = judge(None, WANTED, with_extended_resource=True).body
    assert body is not None
    assert body["spec"] == SPEC
    assert body["metadata"]["annotations"] == {MADE_BY: MANAGER}


@pytest.mark.parametrize(
    ("item", "spec"),
    [
        pytest.param(live(SPEC, ours=FIELDS), None, id="all is true"),
        pytest.param(live({"selectors": SELECTORS}, ours=["selectors"]), SPEC, id="a field was removed"),
        pytest.param(live(SPEC, ours=FIELDS, labels={}), SPEC, id="the label was removed"),
        pytest.param(
            live({**SPEC, "selectors": OTHERS}, ours=["extendedResourceName"], edit=["selectors"]),
            None,
            id="a person's selectors stay",
        ),
        pytest.param(
            live({**SPEC, "extendedResourceName": "a.com/b"}, ours=FIELDS, edit=["extendedResourceName"]),
            {"selectors": SELECTORS},
            id="our share of a person's field is given up",
        ),
        pytest.param(
            live({**SPEC, "config": []}, ours=(*FIELDS, "config")), SPEC, id="a field is wanted no more"
        ),
        pytest.param(
            live({"selectors": SELECTORS}, made_here=False, helm=["selectors"]),
            SPEC,
            id="others made it as it should be: what is missing is added",
        ),
        pytest.param(
            live({"selectors": OTHERS}, made_here=False, helm=["selectors"]),
            None,
            id="others made it in another way: hands off",
        ),
    ],
)
def test_what_is_applied(item: dict[str, Any], spec: dict[str, Any] | None) -> None:
    assert applied(item) == spec


def test_what_stays_is_told_with_whose_it_is() -> None:
    item = live({**SPEC, "selectors": OTHERS}, ours=["extendedResourceName"], edit=["selectors"])
    assert judge(item, WANTED, with_extended_resource=True).kept == {"selectors": "edit"}
    item = live({"selectors": OTHERS}, made_here=False, helm=["selectors"])
    assert judge(item, WANTED, with_extended_resource=True).foreign


def test_where_the_server_drops_extended_resources_none_is_asked_for() -> None:
    assert applied(live({"selectors": SELECTORS}, ours=["selectors"]), extended=False) is None
    assert applied(None, extended=False) == {"selectors": SELECTORS}


def test_a_class_of_others_does_not_become_ours_by_a_write() -> None:
    item = live({"selectors": SELECTORS}, made_here=False, helm=["selectors"])
    body = judge(item, WANTED, with_extended_resource=True).body
    assert body is not None
    assert "annotations" not in body["metadata"]


@pytest.mark.parametrize(
    ("item", "ours"),
    [
        (live(SPEC, ours=FIELDS), True),
        (live(SPEC, ours=FIELDS, kubectl=["selectors"]), True),
        (live(SPEC, ours=["selectors"], kubectl=["extendedResourceName"]), False),
        (live(SPEC, made_here=False, ours=FIELDS), False),
        (live(SPEC, made_here=False, helm=FIELDS), False),
    ],
)
def test_only_a_class_that_we_made_and_nobody_changed_is_deleted(item: dict[str, Any], ours: bool) -> None:
    assert is_ours(item) is ours


def test_classes_that_a_claim_names() -> None:
    requests = [
        {"name": "a", "exactly": {"deviceClassName": "x"}},
        {"name": "b", "firstAvailable": [{"deviceClassName": "y"}, {"deviceClassName": "x"}]},
    ]
    assert classes_named({"spec": {"devices": {"requests": requests}}}) == ("x", "y")
    assert classes_named({"spec": {}}) == ()
