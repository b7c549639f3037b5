"""MIG geometry: every profile and placement, conflicts, capacities and ids, against the published tables."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pynvml
import pytest

from nvmlsim.models import boards
from tests.unit.nvmlsim.conftest import Binding, Handle, MakeNode, create_gpu_instance

GpuOf = Callable[[str], Handle]

A100_IDS = {"7g": {0: 0}, "3g": {4: 1, 0: 2}, "4g": {0: 2}, "2g": {4: 3, 0: 5, 2: 6}}
A100_IDS_1G = {4: 7, 5: 8, 6: 9, 0: 11, 1: 12, 2: 13, 3: 14}


def capacity(handle: Handle, profile_id: int) -> int:
    return int(pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, profile_id))


def placements(handle: Handle, profile_id: int) -> list[tuple[int, int]]:
    count = ctypes.c_uint()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, None, pynvml.byref(count))
    array = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, array, pynvml.byref(count))
    return [(one.start, one.size) for one in array]


@pytest.fixture
def gpu_of(make_node: MakeNode, nvml: Binding, request: pytest.FixtureRequest) -> GpuOf:
    """The first GPU's handle on a machine, MIG mode on."""

    def handle(machine: str) -> Handle:
        node = make_node(machine)
        node.set_mig_mode(0)
        context = nvml(node)
        context.__enter__()
        request.addfinalizer(lambda: context.__exit__(None, None, None))
        return pynvml.nvmlDeviceGetHandleByIndex(0)

    return handle


BOARDS = {
    "hgx-h100": "h100-80gb",
    "dgx-a100-40": "a100-40gb",
    "a30x4": "a30-24gb",
    "rtx-pro-6000x8": "rtx-pro-6000-96gb",
    "hgx-b200": "b200-180gb",
}


@pytest.mark.parametrize("machine", BOARDS)
def test_every_profile_and_placement_can_be_made(machine: str, gpu_of: GpuOf) -> None:
    handle = gpu_of(machine)
    for profile in boards()[BOARDS[machine]]["profiles"]:
        info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, profile["gi_enum"], version=2)
        assert (info.id, info.sliceCount) == (profile["id"], profile["slice_count"])
        assert info.instanceCount == profile["max_instances"]
        assert info.name == f"MIG {profile['name']}"
        if profile["memory_mib"] is not None:
            assert info.memorySizeMB == profile["memory_mib"]
        if profile["sm"] is not None:
            assert info.multiprocessorCount == profile["sm"]
        size = profile["placements"]["size"]
        assert placements(handle, info.id) == [(start, size) for start in profile["placements"]["starts"]]
        for start in profile["placements"]["starts"]:
            instance = create_gpu_instance(handle, info.id, start, size)
            told = pynvml.nvmlGpuInstanceGetInfo(instance)
            assert (told.profileId, told.placement.start, told.placement.size) == (info.id, start, size)
            pynvml.nvmlGpuInstanceDestroy(instance)
    assert capacity(handle, boards()[BOARDS[machine]]["profiles"][0]["id"]) > 0


@pytest.mark.parametrize("machine", BOARDS)
def test_as_many_instances_fit_as_the_profile_says(machine: str, gpu_of: GpuOf) -> None:
    handle = gpu_of(machine)
    for profile in boards()[BOARDS[machine]]["profiles"]:
        if profile["confidence"] != "confirmed":
            continue
        assert capacity(handle, profile["id"]) == profile["max_instances"], profile["name"]
        made = [pynvml.nvmlDeviceCreateGpuInstance(handle, profile["id"])]
        for left in range(profile["max_instances"] - 1, 0, -1):
            assert capacity(handle, profile["id"]) == left
            made.append(pynvml.nvmlDeviceCreateGpuInstance(handle, profile["id"]))
        assert capacity(handle, profile["id"]) == 0
        with pytest.raises(pynvml.NVMLError_InsufficientResources):
            pynvml.nvmlDeviceCreateGpuInstance(handle, profile["id"])
        for instance in made:
            pynvml.nvmlGpuInstanceDestroy(instance)


def test_a100_instance_ids_are_swapped_halves(gpu_of: GpuOf) -> None:
    handle = gpu_of("dgx-a100-40")
    for profile in boards()["a100-40gb"]["profiles"]:
        kind = profile["name"].partition("g.")[0] + "g"
        expected = A100_IDS_1G if profile["placements"]["size"] == 1 else A100_IDS.get(kind, {})
        for start, gi_id in expected.items():
            if start not in profile["placements"]["starts"] or profile["name"] == "1g.10gb":
                continue
            instance = create_gpu_instance(handle, profile["id"], start, profile["placements"]["size"])
            assert pynvml.nvmlGpuInstanceGetInfo(instance).id == gi_id, (profile["name"], start)
            pynvml.nvmlGpuInstanceDestroy(instance)


@pytest.mark.parametrize(
    ("machine", "profile", "ids"),
    [
        ("hgx-h100", 19, {0: 7, 1: 8, 5: 12}),
        ("rtx-pro-6000x8", 5, {0: 1, 6: 2}),
        ("rtx-pro-6000x8", 14, {0: 3, 3: 4, 6: 5, 9: 6}),
    ],
)
def test_instance_ids_follow_the_memory_span(
    machine: str, profile: int, ids: dict[int, int], gpu_of: GpuOf
) -> None:
    handle = gpu_of(machine)
    size = placements(handle, profile)[0][1]
    for start, gi_id in ids.items():
        assert pynvml.nvmlGpuInstanceGetInfo(create_gpu_instance(handle, profile, start, size)).id == gi_id


def test_a_taken_placement_is_insufficient_resources(gpu_of: GpuOf) -> None:
    handle = gpu_of("hgx-h100")
    create_gpu_instance(handle, 9, 4, 4)
    for profile, start, size in ((9, 4, 4), (19, 5, 1), (14, 4, 2), (0, 0, 8)):
        with pytest.raises(pynvml.NVMLError_InsufficientResources):
            create_gpu_instance(handle, profile, start, size)
    create_gpu_instance(handle, 5, 0, 4)


def test_a_placement_that_the_profile_has_not_is_invalid(gpu_of: GpuOf) -> None:
    handle = gpu_of("hgx-h100")
    for start in (1, 7, 8):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            create_gpu_instance(handle, 9, start, 4)


def test_only_one_instance_has_the_media_extensions(gpu_of: GpuOf) -> None:
    handle = gpu_of("hgx-h100")
    create_gpu_instance(handle, 20, 0, 1)
    assert capacity(handle, 20) == 0
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        create_gpu_instance(handle, 20, 1, 1)
    create_gpu_instance(handle, 19, 1, 1)


def test_beside_all_media_engines_only_instances_without_fit(gpu_of: GpuOf) -> None:
    handle = gpu_of("rtx-pro-6000x8")
    create_gpu_instance(handle, 65, 0, 3)
    assert capacity(handle, 14) == 0
    assert capacity(handle, 67) == 3
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        create_gpu_instance(handle, 14, 3, 3)
    create_gpu_instance(handle, 67, 3, 3)


def test_profile_numbers_that_are_not_offered(gpu_of: GpuOf) -> None:
    handle = gpu_of("hgx-h100")
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, 10, version=2)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, 18, version=2)
    old = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, 0, version=1)
    assert (old.id, old.memorySizeMB) == (19, 9984)
    by_id = pynvml.nvmlDeviceGetGpuInstanceProfileInfoById(handle, 9)
    assert by_id.name == "MIG 3g.40gb"


def test_profile_structs_of_version_three_have_another_order(gpu_of: GpuOf) -> None:
    handle = gpu_of("rtx-pro-6000x8")
    words = (ctypes.c_uint32 * 38)()
    words[0] = 0x03000098
    function = pynvml.nvmlLib.nvmlDeviceGetGpuInstanceProfileInfoV
    assert function(handle, 10, words) == 0
    assert words[1:4] == [47, 1, 4]
    assert words[36] == 2
    words[0] = 0x04000098
    assert function(handle, 10, words) == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH


def test_compute_instances_share_a_gpu_instance(gpu_of: GpuOf) -> None:
    handle = gpu_of("hgx-h100")
    gi = create_gpu_instance(handle, 9, 0, 4)
    names = {}
    for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(gi, number, 0, version=2)
            names[info.id] = (info.name, info.instanceCount)
        except pynvml.NVMLError_NotSupported:
            continue
    assert names == {0: ("MIG 1c.3g.40gb", 3), 1: ("MIG 2c.3g.40gb", 1), 2: ("MIG 3g.40gb", 1)}
    for used in range(3):
        assert pynvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(gi, 0) == 3 - used
        ci = pynvml.nvmlGpuInstanceCreateComputeInstance(gi, 0)
        info = pynvml.nvmlComputeInstanceGetInfo_v2(ci)
        assert (info.id, info.placement.start, info.placement.size) == (used, used, 1)
        name = pynvml.nvmlDeviceGetName(info.device)
        assert name == "NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb"
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        pynvml.nvmlGpuInstanceCreateComputeInstance(gi, 0)
