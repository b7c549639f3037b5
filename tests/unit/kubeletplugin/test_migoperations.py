"""Changes of MIG one by one, on simulated GPUs, and on answers made up that no simulated GPU gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from driver.discovery import GpuReading, read_gpu
from driver.hostfiles import HostRoots
from driver.inventory import MigProfile, PciAddress, Placement
from driver.nvml import Code, ComputeInstanceProfile, Nvml, NvmlError
from kubeletplugin import migoperations
from kubeletplugin.migoperations import Card, CardGone, MigOperationError
from nvmlsim.node import SimulatedNode


class Node:
    def __init__(self, folder: Path, model: str = "h100-sxm5-80gb") -> None:
        self.simulated = SimulatedNode.create(folder / "gpu", "hgx-h100", gpus=[{"model": model}])
        self.nvml = Nvml(self.simulated.library_path)
        roots = HostRoots(self.simulated.root / "proc", self.simulated.root / "sys")
        reading = read_gpu(self.nvml, roots, 0)
        assert isinstance(reading, GpuReading)
        self.gpu = reading.gpu
        self.card = Card(self.gpu.pci, self.gpu.uuid)

    def profile(self, text: str) -> MigProfile:
        return next(profile for profile in self.gpu.profiles if profile.profile == text)

    def create(self, text: str, start: int) -> None:
        profile = self.profile(text)
        (placement,) = [one for one in profile.placements if one.start == start]
        migoperations.create_gpu_instance(
            self.nvml, self.card, profile, placement, self.gpu.profiles, describe
        )

    def found(self, text: str, start: int) -> migoperations.Instance | None:
        profile = self.profile(text)
        (placement,) = [one for one in profile.placements if one.start == start]
        return migoperations.find_instance(self.nvml, self.card, profile.id, placement)

    def mode(self, enabled: bool, patience: float = 0.0) -> None:
        migoperations.set_mode(self.nvml, self.card, enabled, describe, patience)


def describe(pid: int) -> str:
    return f"{pid} (python)"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr(migoperations, "IN_USE_SECONDS", 0.2)
    made = Node(tmp_path)
    yield made
    made.nvml.close()


def test_a_partition_is_made_found_and_destroyed(node: Node) -> None:
    assert node.found("3g.40gb", 4) is None
    node.mode(True)
    node.create("3g.40gb", 4)
    made = node.found("3g.40gb", 4)
    assert made is not None
    assert made.compute_instance is None
    one = migoperations.create_compute_instance(node.nvml, node.card, made.gpu_instance_id, "it")
    made = node.found("3g.40gb", 4)
    assert made is not None
    assert made.compute_instances == (one,)
    assert made.uuids == node.simulated.gpus()[0].mig_uuids
    ids = (made.gpu_instance_id, one.id, one.uuid)
    assert migoperations.has_mig_device(node.nvml, node.card, *ids)
    assert not migoperations.has_mig_device(node.nvml, node.card, *ids[:2], "MIG-other")
    for _ in range(2):
        migoperations.destroy(node.nvml, node.card, made.gpu_instance_id, "it", describe)
        assert node.found("3g.40gb", 4) is None
    assert not migoperations.has_mig_device(node.nvml, node.card, *ids)


def test_b090_a_mode_change_that_is_only_pending_is_an_error_and_can_be_taken_back(node: Node) -> None:
    node.simulated.add_process(0, 4711)
    with pytest.raises(
        MigOperationError, match=r"cannot be turned on: .*IN_USE \(19\).* 4711 \(python\)"
    ) as error:
        node.mode(True)
    assert error.value.cause == "MigInUse"
    assert (node.simulated.gpus()[0].mig_mode, node.simulated.gpus()[0].mig_pending) == (False, True)
    node.mode(False)
    assert not node.simulated.gpus()[0].mig_pending
    node.simulated.remove_process(4711)
    node.mode(True)
    assert node.simulated.gpus()[0].mig_mode


def test_b093_a_process_on_the_idle_gpu_is_named(node: Node) -> None:
    node.mode(True)
    node.simulated.add_process(0, 4711)
    with pytest.raises(MigOperationError, match=r"2g.20gb at 2 .*IN_USE \(19\).*4711 \(python\)") as error:
        node.create("2g.20gb", 2)
    assert error.value.cause == "MigInUse"
    assert node.simulated.gpus()[0].gpu_instances == ()


def test_b092_in_use_is_tried_again_for_a_while(node: Node) -> None:
    node.mode(True)
    instance = node.simulated.create_mig(0, "1g.10gb", 0)
    node.simulated.create_mig(0, "1g.10gb", 1)
    node.simulated.set_return("nvmlGpuInstanceDestroy", Code.IN_USE, times=2)
    migoperations.destroy(node.nvml, node.card, instance.id, "it", describe)
    assert [one.start for one in node.simulated.gpus()[0].gpu_instances] == [1]

    (other,) = node.simulated.gpus()[0].gpu_instances
    node.simulated.add_process(0, 4711, gi=other.id, ci=0)
    with pytest.raises(MigOperationError, match=r"it .*cannot be destroyed: .*IN_USE \(19\).*4711") as error:
        migoperations.destroy(node.nvml, node.card, other.id, "it", describe)
    assert error.value.cause == "MigInUse"
    assert len(node.simulated.gpus()[0].mig_uuids) == 1


@pytest.mark.parametrize(
    ("symbol", "work", "cause"),
    [
        ("nvmlDeviceSetMigMode", "mode", "MigMode"),
        ("nvmlDeviceCreateGpuInstanceWithPlacement", "create", "MigCreate"),
        ("nvmlGpuInstanceCreateComputeInstance", "compute instance", "MigCreate"),
        ("nvmlGpuInstanceDestroy", "destroy", "MigDestroy"),
    ],
)
def test_b094_an_error_has_the_name_of_its_code_and_the_gpu(
    node: Node, symbol: str, work: str, cause: str
) -> None:
    node.simulated.set_mig_mode(0)
    there = node.simulated.create_mig(0, "1g.10gb", 6)
    node.simulated.set_return(symbol, Code.NO_PERMISSION)
    works: dict[str, Callable[[], object]] = {
        "mode": lambda: node.mode(False),
        "create": lambda: node.create("1g.10gb", 0),
        "compute instance": lambda: migoperations.create_compute_instance(
            node.nvml, node.card, there.id, "it"
        ),
        "destroy": lambda: migoperations.destroy(node.nvml, node.card, there.id, "it", describe),
    }
    with pytest.raises(MigOperationError) as error:
        works[work]()
    assert error.value.cause == cause
    assert f"{symbol}: NO_PERMISSION (4)" in str(error.value)
    assert str(node.gpu.pci) in str(error.value)
    assert "SUCCESS" not in str(error.value)


def test_what_is_in_the_way_is_named_and_an_engine_that_is_used_up_too(node: Node) -> None:
    node.simulated.set_mig_mode(0)
    foreign = node.simulated.create_mig(0, "1g.10gb+me", 4)
    with pytest.raises(MigOperationError, match="not created by this driver") as error:
        node.create("3g.40gb", 4)
    assert error.value.cause == "NoRoom"
    assert f"GPU instance {foreign.id} (1g.10gb+me at 4)" in str(error.value)
    with pytest.raises(MigOperationError, match="an engine that it needs is used up"):
        node.create("1g.10gb+me", 0)


@pytest.mark.parametrize("how", ["lost", "unplugged", "swapped", "unloaded"])
def test_a_card_that_is_gone_has_no_instances(node: Node, how: str) -> None:
    node.simulated.set_mig_mode(0)
    instance = node.simulated.create_mig(0, "1g.10gb", 0)
    changes = {
        "lost": lambda: node.simulated.lose(0),
        "unplugged": lambda: node.simulated.unplug(0),
        "swapped": lambda: node.simulated.set_gpu(0, uuid="GPU-00000000-0000-0000-0000-000000000000"),
        "unloaded": lambda: node.simulated.load_driver(False),
    }
    changes[how]()
    with pytest.raises(CardGone):
        migoperations.destroy(node.nvml, node.card, instance.id, "it", describe)
    if how == "unloaded":
        node.simulated.load_driver()


class Answers:
    """NVML as some boards are: compute instance profiles that the simulator has none of."""

    def __init__(self, profiles: dict[int, ComputeInstanceProfile], refused: dict[int, Code]) -> None:
        self.profiles = profiles
        self.refused = refused
        self.made: list[int] = []

    def device_by_pci(self, pci: PciAddress) -> object:
        return "gpu"

    def uuid(self, device: object) -> str:
        return "GPU-1" if device == "gpu" else "MIG-1"

    def gpu_instance(self, device: object, gpu_instance_id: int) -> Any:
        return type("Info", (), {"handle": "instance"})

    def compute_instance_profile(self, instance: object, number: int) -> ComputeInstanceProfile:
        if number not in self.profiles:
            raise NvmlError("nvmlGpuInstanceGetComputeInstanceProfileInfoV", Code.NOT_SUPPORTED)
        return self.profiles[number]

    def create_compute_instance(self, instance: object, profile_id: int) -> tuple[object, int, object]:
        if profile_id in self.refused:
            raise NvmlError("nvmlGpuInstanceCreateComputeInstance", self.refused[profile_id])
        self.made.append(profile_id)
        return "ci", 0, "mig"


CARD = Card(PciAddress(0, 0x65, 0, 0), "GPU-1")
SMALL, NORMAL, LARGE = (
    ComputeInstanceProfile(0, 1, 18),
    ComputeInstanceProfile(1, 2, 18),
    ComputeInstanceProfile(8, 2, 30),
)


@pytest.mark.parametrize("order", [(SMALL, NORMAL, LARGE), (LARGE, NORMAL, SMALL), (NORMAL, SMALL, LARGE)])
def test_b080_of_those_that_fill_the_gpu_instance_the_largest_is_made(
    order: tuple[ComputeInstanceProfile, ...],
) -> None:
    nvml = Answers(dict(enumerate(order)), {})
    made = migoperations.create_compute_instance(cast("Nvml", nvml), CARD, 1, "it")
    assert nvml.made == [LARGE.id]
    assert made == migoperations.ComputeInstance(0, "MIG-1")


@pytest.mark.parametrize("order", [(NORMAL, LARGE), (LARGE, NORMAL)])
def test_b081_the_one_that_can_be_made_is_made_wherever_it_stands(
    order: tuple[ComputeInstanceProfile, ...],
) -> None:
    nvml = Answers(dict(enumerate(order)), {LARGE.id: Code.NOT_SUPPORTED})
    migoperations.create_compute_instance(cast("Nvml", nvml), CARD, 1, "it")
    assert nvml.made == [NORMAL.id]
    # A smaller one would waste the rest: no way out for one that is full.
    nvml = Answers(dict(enumerate((SMALL, *order))), {LARGE.id: Code.INSUFFICIENT_RESOURCES})
    with pytest.raises(MigOperationError, match=r"INSUFFICIENT_RESOURCES \(23\)"):
        migoperations.create_compute_instance(cast("Nvml", nvml), CARD, 1, "it")
    nvml = Answers({}, {})
    with pytest.raises(MigOperationError, match="no profile that fills it"):
        migoperations.create_compute_instance(cast("Nvml", nvml), CARD, 1, "it")


def test_a_placement_that_the_gpu_does_not_have_is_refused(node: Node) -> None:
    node.mode(True)
    profile = node.profile("2g.20gb")
    with pytest.raises(MigOperationError, match=r"INVALID_ARGUMENT \(2\)"):
        migoperations.create_gpu_instance(
            node.nvml, node.card, profile, Placement(1, 2), node.gpu.profiles, describe
        )
