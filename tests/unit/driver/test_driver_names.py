from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.inventory import PciAddress, Placement
from driver.names import device_and_share, gpu_name, gpu_of, mig_name, share_name

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_PCI = PciAddress(0, 0x65, 0, 0)


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("00000000:65:00.0", "gpu-0000-65-00-0"),
        ("00000000:CA:1F.7", "gpu-0000-ca-1f-7"),
        ("00000008:01:00.0", "gpu-0008-01-00-0"),
        ("00010000:01:00.0", "gpu-10000-01-00-0"),
    ],
)
def test_b016_a_gpu_is_named_after_its_address(address: str, name: str) -> None:
    assert gpu_name(PciAddress.parse(address)) == name


@pytest.mark.parametrize("device", ["gpu-0000-65-00-0", "gpu-0000-65-00-0-mig-1g24gb-no-me-0"])
@pytest.mark.parametrize("share_id", [None, "0b2d3a44-1c56-4f0e-9d5a-000000000001"])
def test_b104_the_name_of_a_share_tells_device_and_share(device: str, share_id: str | None) -> None:
    name = share_name(device, share_id)
    assert name.startswith(device)
    assert device_and_share(name) == (device, share_id)


@pytest.mark.parametrize(
    ("profile", "name"),
    [
        ("1g.10gb", "gpu-0000-65-00-0-mig-1g10gb-0"),
        ("1g.24gb+me", "gpu-0000-65-00-0-mig-1g24gb-me-0"),
        ("1g.24gb-me", "gpu-0000-65-00-0-mig-1g24gb-no-me-0"),
        ("1g.24gb+me.all", "gpu-0000-65-00-0-mig-1g24gb-me-all-0"),
        ("2g.48gb+gfx", "gpu-0000-65-00-0-mig-2g48gb-gfx-0"),
    ],
)
def test_b027_variants_of_a_profile_have_their_own_names(profile: str, name: str) -> None:
    assert mig_name(_PCI, profile, Placement(0, 1)) == name


def test_compute_instances_of_one_gpu_instance_add_their_own_start() -> None:
    names = [mig_name(_PCI, "1c.3g.20gb", Placement(4, 4), Placement(start, 1)) for start in range(3)]
    assert names == [
        "gpu-0000-65-00-0-mig-1c3g20gb-4-0",
        "gpu-0000-65-00-0-mig-1c3g20gb-4-1",
        "gpu-0000-65-00-0-mig-1c3g20gb-4-2",
    ]


_SIZES = st.sampled_from(["1g.10gb", "1g.24gb", "1c.3g.20gb", "2g.48gb", "1g1.0gb"])
_SUFFIXES = st.sampled_from(
    [
        "",
        "+me",
        "-me",
        "+me.all",
        "+meall",
        "+no.me",
        "+gfx",
        "+me+all",
        "-no-me",
        "+ME",
        "-x0",
        "é",
        "+" + "a" * 60,
    ]
)
_PROFILES = st.one_of(st.tuples(_SIZES, _SUFFIXES).map("".join), st.text(max_size=80))


@given(st.lists(_PROFILES, unique=True, min_size=2, max_size=2), st.integers(0, 2**32 - 1))
def test_b027_any_two_profiles_have_two_valid_names(profiles: list[str], domain: int) -> None:
    pci = PciAddress(domain, 0x65, 0, 0)
    names = {mig_name(pci, profile, Placement(11, 1), Placement(6, 1)) for profile in profiles}
    assert len(names) == 2
    assert all(_LABEL.fullmatch(name) for name in names)


@given(st.integers(0, 2**32 - 1), _PROFILES)
def test_a_name_tells_where_the_gpu_is(domain: int, profile: str) -> None:
    pci = PciAddress(domain, 0xCA, 0x1F, 7)
    assert gpu_of(gpu_name(pci)) == gpu_of(mig_name(pci, profile, Placement(3, 1))) == pci


@pytest.mark.parametrize("name", ["something-else", "gpu-0000-65-00-0x", "gpu-65-00-0"])
def test_another_name_tells_nothing(name: str) -> None:
    assert gpu_of(name) is None
