from __future__ import annotations

import pytest

from driver.inventory import Engines
from driver.migprofiles import Extensions, extensions, profile_in_device_name, profile_text, whole_gpu_engines
from driver.nvml import GpuInstanceProfile


@pytest.mark.parametrize(
    ("profile", "promised"),
    [
        ("1g.10gb", Extensions(media=False, all_media=False, graphics=False)),
        ("1g.24gb+me", Extensions(media=True, all_media=False, graphics=False)),
        ("1g.24gb+me.all", Extensions(media=True, all_media=True, graphics=False)),
        ("1g.24gb-me", Extensions(media=False, all_media=False, graphics=False)),
        ("2g.48gb+gfx", Extensions(media=False, all_media=False, graphics=True)),
        ("", Extensions(media=False, all_media=False, graphics=False)),
    ],
)
def test_b027_booleans_tell_the_variants(profile: str, promised: Extensions) -> None:
    assert extensions(profile) == promised


@pytest.mark.parametrize(
    ("name", "gpu_slices", "compute_slices", "text"),
    [
        ("MIG 1g.10gb", 1, 1, "1g.10gb"),
        ("1g.10gb", 1, 1, "1g.10gb"),
        ("MIG 3g.20gb", 3, 1, "1c.3g.20gb"),
        ("MIG 3g.20gb", 3, 3, "3g.20gb"),
        ("MIG 7g.80gb", 7, 4, "4c.7g.80gb"),
        ("MIG 1g.24gb+me.all", 1, 1, "1g.24gb+me.all"),
        ("MIG 2g.20gb", 2, 0, "2g.20gb"),
    ],
)
def test_the_profile_of_a_compute_instance(
    name: str, gpu_slices: int, compute_slices: int, text: str
) -> None:
    assert profile_text(name, gpu_slices, compute_slices) == text


def test_the_profile_in_a_device_name() -> None:
    assert profile_in_device_name("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb") == "1c.3g.20gb"
    assert profile_in_device_name("NVIDIA A100-SXM4-40GB") == ""


def test_the_largest_profiles_tell_the_engines_of_the_gpu() -> None:
    profiles = [
        GpuInstanceProfile(14, "MIG 1g.24gb", 1, 24192, 1, Engines(46, 1, 9, 9, 9, 9)),
        GpuInstanceProfile(0, "MIG 4g.96gb", 4, 97280, 1, Engines(188, 4, 4, 4, 4, 0)),
        GpuInstanceProfile(32, "MIG 4g.96gb+gfx", 4, 97280, 1, Engines(188, 4, 4, 4, 4, 1)),
    ]
    assert whole_gpu_engines(profiles) == Engines(188, 4, 4, 4, 4, 1)
    assert whole_gpu_engines([]) == Engines()
