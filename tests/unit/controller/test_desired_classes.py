"""Which DeviceClasses there should be, by profiles on offer and settings."""

from __future__ import annotations

import pytest

from controller.deviceclasses import offer
from controller.deviceclasses.desired import ClassSetting, desired, profile_label, selector

STANDARD = {
    "gpu.nvidia.com": "nvidia.com/gpu",
    "mig.nvidia.com": "",
    "shared.gpu.nvidia.com": "nvidia.com/gpu.shared",
}
OTHER = (selector("true"),)


def resources(profiles: list[str], *settings: ClassSetting) -> dict[str, str]:
    found = desired(profiles, settings).classes
    return {name: each.extended_resource for name, each in found.items()}


@pytest.mark.parametrize(
    ("profile", "label"),
    [
        ("1g.10gb", "1g.10gb"),
        ("1g.10gb+me", "1g.10gb.me"),
        ("1g.24gb+me.all", "1g.24gb.me.all"),
        ("1g.24gb-me", "1g.24gb-me"),
        ("1g.24gb+me,gfx", "1g.24gb.me.gfx"),
        ("1c.3g.40gb", "1c.3g.40gb"),
        ("7G.80GB+", "7g.80gb"),
    ],
)
def test_profiles_are_called_as_the_device_plugin_calls_them(profile: str, label: str) -> None:
    assert profile_label(profile) == label
    added = resources([profile]).items() - STANDARD.items()
    assert added == {(f"mig-{label}.gpu.nvidia.com", f"nvidia.com/mig-{label}")}


def test_without_partitions_there_are_the_standard_classes() -> None:
    assert resources([]) == STANDARD


def test_every_selector_looks_at_the_driver_first() -> None:
    for each in desired(["1g.10gb", "1g.10gb+me"], ()).classes.values():
        for entry in each.selectors:
            assert entry["cel"]["expression"].startswith('device.driver == "gpu.nvidia.com" && ')


def test_a_selector_of_a_profile() -> None:
    (entry,) = desired(["1g.10gb"], ()).classes["mig-1g.10gb.gpu.nvidia.com"].selectors
    assert entry["cel"]["expression"].endswith('.profile == "1g.10gb"')


def test_profiles_of_one_name_share_a_class() -> None:
    found = desired(["1g.10gb+me", "1g.10gb.me"], ())
    (entry,) = found.classes["mig-1g.10gb.me.gpu.nvidia.com"].selectors
    assert entry["cel"]["expression"].endswith('.profile in ["1g.10gb+me", "1g.10gb.me"]')


@pytest.mark.parametrize("profile", ["", "+", "x" * 64])
def test_a_profile_that_cannot_be_a_name_is_left_out_and_told(profile: str) -> None:
    found = desired([profile, "1g.10gb"], ())
    assert set(found.classes) == {*STANDARD, "mig-1g.10gb.gpu.nvidia.com"}
    (remark,) = found.remarks
    assert repr(profile) in remark


@pytest.mark.parametrize(
    ("setting", "changed"),
    [
        (ClassSetting("mig.nvidia.com", enabled=False), {"mig.nvidia.com": None}),
        (ClassSetting("gpu.nvidia.com", extended_resource=""), {"gpu.nvidia.com": ""}),
        (ClassSetting("gpu.nvidia.com", extended_resource="a.com/b"), {"gpu.nvidia.com": "a.com/b"}),
        (ClassSetting("mine", selectors=OTHER), {"mine": ""}),
        (
            ClassSetting("mine", selectors=OTHER, extended_resource="nvidia.com/gpu"),
            {"mine": "nvidia.com/gpu", "gpu.nvidia.com": ""},
        ),
        (ClassSetting("mig-2g.20gb.gpu.nvidia.com", extended_resource="a.com/b"), {}),
        (ClassSetting("mig-2g.20gb.gpu.nvidia.com", enabled=False), {}),
    ],
)
def test_settings(setting: ClassSetting, changed: dict[str, str | None]) -> None:
    expected = {**STANDARD, **changed}
    assert resources([], setting) == {name: text for name, text in expected.items() if text is not None}


def test_a_setting_changes_only_what_it_names() -> None:
    config = ({"opaque": {"driver": "x.com", "parameters": {}}},)
    before = desired([], ()).classes["gpu.nvidia.com"]
    after = desired([], [ClassSetting("gpu.nvidia.com", config=config)]).classes["gpu.nvidia.com"]
    assert (after.selectors, after.extended_resource) == (before.selectors, before.extended_resource)
    assert after.spec(with_extended_resource=False) == {
        "selectors": list(before.selectors),
        "config": list(config),
    }


def test_of_a_slice_only_its_profiles_are_kept() -> None:
    def device(kind: str, profile: str, prefix: str = "") -> dict[str, object]:
        return {
            "name": "d",
            "attributes": {f"{prefix}type": {"string": kind}, f"{prefix}profile": {"string": profile}},
        }

    devices = [
        device("gpu", ""),
        device("mig", "1g.10gb"),
        device("mig", "1g.10gb"),
        device("mig", "2g.20gb", "gpu.nvidia.com/"),
        device("vfio", "7g.80gb"),
        {"name": "bare"},
    ]
    metadata = {"name": "s", "resourceVersion": "7", "labels": {"a": "b"}}
    kept = offer.digest({"metadata": metadata, "spec": {"devices": devices}})
    assert kept["metadata"] == {"name": "s", "resourceVersion": "7"}
    assert offer.profiles_on_offer([kept]) == {"1g.10gb", "2g.20gb"}
    assert offer.profiles_on_offer([offer.digest({"metadata": metadata, "spec": {}})]) == set()
