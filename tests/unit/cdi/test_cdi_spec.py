from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdi.claimspec import KIND, claim_spec, qualified_name
from cdi.spec import (
    CdiDevice,
    ContainerEdits,
    DeviceNode,
    Hook,
    Mount,
    Spec,
    SpecError,
    from_json,
    minimum_version,
    to_json,
)
from tests.unit.cdi.cdivalidator import InvalidSpecError, required_version, validate

UID = "5c3e7c5e-8f7b-4f0e-9a53-1b6a7f0f3c11"
NODE = ContainerEdits(device_nodes=(DeviceNode("/dev/nvidia0", None, "c", 195, 0, 0o666, "rw"),))

_text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)
_path = _text.map(lambda text: "/" + text)
_environment = st.builds(lambda name, value: f"{name.replace('=', '_')}={value}", _text, st.text(max_size=5))
_nodes = st.builds(
    DeviceNode,
    path=_path,
    host_path=st.none() | _path,
    type=st.sampled_from(["", "b", "c", "u", "p"]),
    major=st.none() | st.integers(0, 511),
    minor=st.none() | st.integers(0, 8191),
    file_mode=st.none() | st.integers(0, 0o777),
    permissions=st.sampled_from(["", "r", "rw", "rwm", "none"]),
)
_mounts = st.builds(
    Mount, _path, _path, st.lists(_text, max_size=3).map(tuple), st.sampled_from(["", "bind"])
)
_hooks = st.builds(
    Hook,
    st.sampled_from(["createContainer", "prestart"]),
    _path,
    st.lists(_text, max_size=3).map(tuple),
    st.lists(_environment, max_size=2).map(tuple),
)
_edits = st.builds(
    ContainerEdits,
    env=st.lists(_environment, max_size=3).map(tuple),
    device_nodes=st.lists(_nodes, max_size=3).map(tuple),
    mounts=st.lists(_mounts, max_size=3).map(tuple),
    hooks=st.lists(_hooks, max_size=2).map(tuple),
)
_names = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9_.:-]{0,8}[A-Za-z0-9])?", fullmatch=True)
_specs = st.builds(
    lambda kind, devices, edits: Spec(kind, tuple(CdiDevice(n, e) for n, e in devices.items()), edits),
    st.sampled_from(["gpudra.io/claim", "a/b.c", "vendor.example/gpu"]),
    st.dictionaries(_names, _edits.filter(bool), min_size=1, max_size=3),
    _edits,
)


@settings(max_examples=150, deadline=None)
@given(_specs)
def test_every_spec_is_valid_for_a_runtime_and_comes_back_from_json(spec: Spec) -> None:
    content = to_json(spec)
    document = validate(content)
    assert document["cdiVersion"] == minimum_version(spec) == required_version(document)
    assert from_json(content) == spec
    assert to_json(from_json(content)) == content


@settings(max_examples=150, deadline=None)
@given(_edits, _edits, _edits)
def test_merge_keeps_each_entry_once_in_order(
    a: ContainerEdits, b: ContainerEdits, c: ContainerEdits
) -> None:
    empty = ContainerEdits()
    assert (a + b) + c == a + (b + c) == ContainerEdits.merge([a, b, c])
    assert a + b + a + b == a + b
    assert empty + a == a + empty
    merged = a + b
    assert set(merged.mounts) == set(a.mounts) | set(b.mounts)
    assert len(set(merged.mounts)) == len(merged.mounts)
    assert [m for m in merged.mounts if m in a.mounts] == list(dict.fromkeys(a.mounts))


def test_b074_merging_leaves_both_sides_as_they_were() -> None:
    common = ContainerEdits(env=("A=1",))
    first = common + NODE
    second = common + ContainerEdits(device_nodes=(DeviceNode("/dev/nvidia1"),))
    assert common == ContainerEdits(env=("A=1",))
    assert [node.path for node in first.device_nodes] == ["/dev/nvidia0"]
    assert [node.path for node in second.device_nodes] == ["/dev/nvidia1"]


@pytest.mark.parametrize(
    ("spec", "version"),
    [
        (Spec("a/b", (CdiDevice("x", NODE),)), "0.3.0"),
        (Spec("a/b", (CdiDevice("x", ContainerEdits(mounts=(Mount("/a", "/b", (), "bind"),))),)), "0.4.0"),
        (Spec("a/b", (CdiDevice("0x", NODE),)), "0.5.0"),
        (Spec("a/b", (CdiDevice("x", ContainerEdits(device_nodes=(DeviceNode("/a", "/b"),))),)), "0.5.0"),
        (Spec("a.io/b.c", (CdiDevice("x", NODE),)), "0.6.0"),
    ],
)
def test_version_is_the_lowest_that_has_the_content(spec: Spec, version: str) -> None:
    assert minimum_version(spec) == version
    assert json.loads(to_json(spec))["cdiVersion"] == version


@pytest.mark.parametrize(
    ("kind", "devices", "part"),
    [
        ("claim", {"x": NODE}, 'CDI kind "claim"'),
        ("1a/b", {"x": NODE}, "letter"),
        ("a/b-", {"x": NODE}, "letter or digit"),
        ("a/b", {}, "no device"),
        ("a/b", {"x/y": NODE}, '"x/y"'),
        ("a/b", {"x-": NODE}, '"x-"'),
        ("a/b", {"x": ContainerEdits()}, "at least one edit"),
        ("a/b", {"x": ContainerEdits(env=("=v",))}, '"=v"'),
        ("a/b", {"x": ContainerEdits(device_nodes=(DeviceNode("/d", type="x"),))}, 'type "x"'),
        ("a/b", {"x": ContainerEdits(device_nodes=(DeviceNode("/d", permissions="x"),))}, 'permissions "x"'),
        ("a/b", {"x": ContainerEdits(device_nodes=(DeviceNode(""),))}, "no path"),
        ("a/b", {"x": ContainerEdits(mounts=(Mount("", "/b"),))}, "both paths"),
        ("a/b", {"x": ContainerEdits(hooks=(Hook("later", "/h"),))}, '"later"'),
    ],
)
def test_what_a_runtime_would_drop_cannot_be_made(
    kind: str, devices: dict[str, ContainerEdits], part: str
) -> None:
    with pytest.raises(SpecError, match=part):
        Spec(kind, tuple(CdiDevice(name, edits) for name, edits in devices.items()))


def test_two_devices_of_one_name_are_refused() -> None:
    with pytest.raises(SpecError, match='"x" occurs twice'):
        Spec("a/b", (CdiDevice("x", NODE), CdiDevice("x", NODE)))


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"{", "not JSON"),
        (b"[]", "must be an object"),
        (b'{"cdiVersion":"0.5.0","kind":"a/b","devices":[],"later":1}', "no device"),
        (b'{"kind":"a/b","devices":[]}', "cdiVersion is missing"),
        (
            b'{"cdiVersion":"0.5.0","kind":"a/b","devices":[{"name":"x","containerEdits":{"env":[1]}}]}',
            "strings",
        ),
        (
            b'{"cdiVersion":"0.5.0","kind":"a/b","devices":[{"name":"x","containerEdits":{"gpus":[],"env":["A=1"]}}]}',
            "unknown fields: gpus",
        ),
        (
            b'{"cdiVersion":"0.3.0","kind":"a/b","devices":[{"name":"0","containerEdits":{"env":["A=1"]}}]}',
            "needs 0.5.0",
        ),
    ],
)
def test_reading_is_as_strict_as_a_runtime(content: bytes, part: str) -> None:
    with pytest.raises(SpecError, match=part):
        from_json(content)


def test_claim_spec_names_devices_by_claim_and_stays_at_version_0_5() -> None:
    spec = claim_spec(UID, {"gpu-0000-65-00-0": NODE}, ContainerEdits(env=("NVIDIA_VISIBLE_DEVICES=void",)))
    document = validate(to_json(spec))
    assert document["kind"] == KIND == "gpudra.io/claim"
    assert document["cdiVersion"] == "0.5.0"
    assert [device["name"] for device in document["devices"]] == [f"{UID}-gpu-0000-65-00-0"]
    assert document["containerEdits"] == {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}
    assert qualified_name(UID, "gpu-0000-65-00-0") == f"gpudra.io/claim={UID}-gpu-0000-65-00-0"


def test_claim_spec_bytes_do_not_depend_on_the_order_of_devices() -> None:
    one = claim_spec(UID, {"a": NODE, "b": NODE}, ContainerEdits())
    other = claim_spec(UID, {"b": NODE, "a": NODE}, ContainerEdits())
    assert to_json(one) == to_json(other)


@pytest.mark.parametrize(
    "change",
    [
        {"cdiVersion": "0.9.0"},
        {"cdiVersion": "0.3.0"},
        {"kind": "claim"},
        {"devices": []},
        {"extra": 1},
        {"devices": [{"name": "0", "containerEdits": {}}]},
        {"devices": [{"name": "0"}]},
        {"devices": [{"name": "0", "containerEdits": {"env": ["A"]}}]},
        {"devices": [{"name": "0", "containerEdits": {"hooks": [{"hookName": "later", "path": "/h"}]}}]},
        {"devices": [{"name": "0", "containerEdits": {"mounts": [{"hostPath": "/h"}]}}]},
        {"devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/d", "type": "f"}]}}]},
    ],
)
def test_the_validator_refuses_what_a_runtime_refuses(change: dict[str, object]) -> None:
    good = {
        "cdiVersion": "0.5.0",
        "kind": "a/b",
        "devices": [{"name": "0", "containerEdits": {"env": ["A=1"]}}],
    }
    assert validate(json.dumps(good).encode()) == good
    with pytest.raises(InvalidSpecError):
        validate(json.dumps(good | change).encode())
