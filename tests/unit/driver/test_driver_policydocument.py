"""The document of a node policy: what is accepted, and what the errors say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.gpuselection import GpuSelection
from driver.migoffer import MigPolicy
from driver.nodepolicy import PolicyEntry
from driver.policydocument import PolicyDocumentError, parse
from driver.shares import ShareMode, Shares

HEAD = {"apiVersion": "gpudra.io/v1alpha1", "kind": "NodePolicy"}
SHARES = "a number of places from 2 to 256, 'memory' or 'unlimited'"
NO_SHARES: list[Any] = [0, 1, -3, 257, True, 2.0, "5", "places", [], {"places": 5}]


def document(*entries: Any, **fields: Any) -> dict[str, Any]:
    return {**HEAD, "spec": {"entries": list(entries)}, **fields}


@pytest.mark.parametrize(
    ("entry", "parsed"),
    [
        ({}, PolicyEntry()),
        ({"exclude": True}, PolicyEntry(exclude=True)),
        ({"gpus": None, "mig": None, "shares": None}, PolicyEntry()),
        *(({"mig": str(mig)}, PolicyEntry(mig=mig)) for mig in MigPolicy),
        ({"shares": 2}, PolicyEntry(shares=Shares(ShareMode.PLACES, 2))),
        ({"shares": 256}, PolicyEntry(shares=Shares(ShareMode.PLACES, 256))),
        ({"shares": "memory"}, PolicyEntry(shares=Shares(ShareMode.MEMORY))),
        ({"shares": "unlimited"}, PolicyEntry(shares=Shares(ShareMode.UNLIMITED))),
        (
            {"gpus": ["3", "0000:65:00.0", "GPU-4F0", "Tesla T4"]},
            PolicyEntry(GpuSelection.parse(["3", "0000:65:00.0", "gpu-4f0", "Tesla T4"])),
        ),
        ({"gpus": [0, 3]}, PolicyEntry(GpuSelection.parse(["0", "3"]))),
        (
            {"profiles": {"1g.10gb": {"shares": 4}, "2g.20gb": {"shares": "memory"}, "3g.40gb": {}}},
            PolicyEntry(
                profile_shares=(
                    ("1g.10gb", Shares(ShareMode.PLACES, 4)),
                    ("2g.20gb", Shares(ShareMode.MEMORY)),
                )
            ),
        ),
        (
            {"layout": {"3g.40gb": 1, "1g.10gb": 4}, "mig": "dynamic"},
            PolicyEntry(mig=MigPolicy.DYNAMIC, layout=(("3g.40gb", 1), ("1g.10gb", 4))),
        ),
    ],
)
def test_what_is_accepted(entry: dict[str, Any], parsed: PolicyEntry) -> None:
    assert parse(document(entry)) == (parsed,)


def test_a_document_may_hold_nothing_and_have_a_name() -> None:
    assert parse(HEAD) == ()
    assert parse({**HEAD, "spec": {}}) == ()
    assert parse(document(metadata={"name": "gpus", "labels": {"a": "b"}})) == ()


def test_entries_stay_in_order() -> None:
    entries = parse(document({"gpus": ["0"], "exclude": True}, {"shares": 5}))
    assert [entry.exclude for entry in entries] == [True, False]


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (None, ["must be an object with kind NodePolicy", "None"]),
        ([HEAD], ["must be an object"]),
        ("NodePolicy", ["must be an object", "'NodePolicy'"]),
        ({}, ["field apiVersion", "None", "gpudra.io/v1alpha1"]),
        (
            {**HEAD, "apiVersion": "gpudra.io/v1"},
            ["field apiVersion", "'gpudra.io/v1'", "gpudra.io/v1alpha1"],
        ),
        ({**HEAD, "kind": "Policy"}, ["field kind", "'Policy'", "NodePolicy"]),
        ({**HEAD, "specs": {}}, ["field specs is unknown", "apiVersion, kind, metadata, spec"]),
        ({**HEAD, "spec": None}, ["field spec: None", "must be an object"]),
        ({**HEAD, "spec": {"entry": []}}, ["field spec.entry is unknown", "entries"]),
        ({**HEAD, "spec": {"entries": {}}}, ["field spec.entries: {}", "list"]),
        ({**HEAD, "metadata": "gpus"}, ["field metadata: 'gpus'", "dictionary"]),
        (document({}, 4), ["field spec.entries.1: 4", "must be an object"]),
        (
            document({"exlude": True}),
            ["field spec.entries.0.exlude is unknown", "gpus, exclude, mig, shares, profiles, layout"],
        ),
        (document({}, {"exclude": "yes"}), ["field spec.entries.1.exclude: 'yes'", "boolean"]),
        (document({"exclude": 1}), ["field spec.entries.0.exclude: 1 is", "boolean"]),
        (document({"mig": "on"}), ["field spec.entries.0.mig: 'on'", "'dynamic', 'static' or 'off'"]),
        *(
            (document({"shares": wrong}), [f"field spec.entries.0.shares: {wrong!r} is wrong", SHARES])
            for wrong in NO_SHARES
        ),
        (
            document({"profiles": {"1g.10gb": {"shares": "all"}}}),
            ["field spec.entries.0.profiles.1g.10gb.shares: 'all'", SHARES],
        ),
        (
            document({"profiles": {"1g.10gb": {"share": 2}}}),
            ["field spec.entries.0.profiles.1g.10gb.share is unknown", "allowed here: shares"],
        ),
        (document({"profiles": {"1g.10gb": 4}}), ["profiles.1g.10gb: 4", "must be an object"]),
        (document({"layout": {"1g.10gb": 0}}), ["layout.1g.10gb: 0", "greater than or equal to 1"]),
        (document({"layout": {"1g.10gb": 65}}), ["layout.1g.10gb: 65", "less than or equal to 64"]),
        (document({"layout": {"1g.10gb": "2"}}), ["layout.1g.10gb: '2'", "integer"]),
        (document({"layout": {"1g.10gb": True}}), ["layout.1g.10gb: True", "integer"]),
        (document({"layout": {1: 2}}), ["field spec.entries.0.layout.1", "name of a field must be text"]),
        (document({1: 2}), ["field spec.entries.0.1", "name of a field must be text"]),
        (document({"gpus": "0"}), ["field spec.entries.0.gpus: '0'", "list"]),
        (document({"gpus": []}), ["field spec.entries.0.gpus: []", "leave it out for all"]),
        *(
            (document({"gpus": [wrong]}), [f"gpus.0: {wrong!r}", "string"])
            for wrong in (1020.0, True, -1, None)
        ),
        (document({}, {"gpus": ["0", "Tesla (T4"]}), ["field spec.entries.1.gpus: ", "'Tesla (T4'", "GPU-…"]),
        (document({"gpus": ["MIG-4f0"]}), ["'MIG-4f0'", "only its whole GPU"]),
        *(
            (
                document({"layout": {"1g.10gb": 7}, "mig": mig}),
                [
                    "field spec.entries.0.layout",
                    "field spec.entries.0.mig",
                    repr(mig),
                    "leave one of them out",
                ],
            )
            for mig in ("static", "off")
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_path_its_value_and_what_is_allowed(
    written: object, words: list[str]
) -> None:
    with pytest.raises(PolicyDocumentError) as raised:
        parse(written)
    for word in words:
        assert word in str(raised.value)


def test_everything_that_is_wrong_is_named_at_once() -> None:
    with pytest.raises(PolicyDocumentError, match=r"entries\.0\.shares: 1 .*entries\.1\.mig: 'on'"):
        parse(document({"shares": 1}, {"mig": "on"}))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(["gpus", "exclude", "mig", "shares", "profiles", "layout", "1g.10gb", "entries"])


@given(st.lists(st.dictionaries(FIELDS, VALUES, max_size=4) | VALUES, max_size=3))
def test_fuzzed_entries_give_a_policy_or_an_error_that_names_a_field(entries: list[Any]) -> None:
    try:
        parse(document(*entries))
    except PolicyDocumentError as error:
        assert str(error).startswith("field spec.entries.")
