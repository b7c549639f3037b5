"""Manifests as standalone mode reads them: one claim of a file, with devices for a scheduler's choice."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from driver.claim import read_claim
from kubeletplugin.standalone import StandaloneError, load_claim, reference_of

EXAMPLES = Path(__file__).parents[3] / "examples"
POOL = "node-1"
CLAIMS = sorted(file for file in EXAMPLES.glob("*.yaml") if "kind: ResourceClaim" in file.read_text())


def requests_of(file: Path) -> list[tuple[str, int]]:
    """What can be asked for, and how many devices; of a prioritized list its first alternative."""
    documents = list(yaml.safe_load_all(file.read_text()))
    claim = next(document for document in documents if document["kind"].startswith("ResourceClaim"))
    spec = claim["spec"].get("spec", claim["spec"])
    found = []
    for request in spec["devices"]["requests"]:
        name, asked = request["name"], request.get("exactly")
        if asked is None:
            asked = request["firstAvailable"][0]
            name = f"{name}/{asked['name']}"
        found.append((name, asked.get("count", 1)))
    return found


def write(folder: Path, *documents: Any) -> Path:
    file = folder / "claim.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    return file


def claim(**fields: Any) -> dict[str, Any]:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    return {
        "kind": "ResourceClaim",
        "metadata": {"name": "one"},
        "spec": {"devices": {"requests": [request]}},
        **fields,
    }


@pytest.mark.parametrize("file", CLAIMS, ids=lambda file: file.stem)
def test_example_can_be_prepared_by_hand(file: Path) -> None:
    names = [name for name, count in requests_of(file) for _ in range(count)]
    loaded = load_claim(file, [f"{name}=gpu-{number}" for number, name in enumerate(names)], POOL, {})
    read = read_claim(reference_of(loaded), loaded)
    assert [(result.request, result.pool, result.device) for result in read.results] == [
        (name, POOL, f"gpu-{number}") for number, name in enumerate(names)
    ]


@pytest.mark.parametrize(
    ("manifest", "chosen", "message"),
    [
        ("nvlink-pair", ["gpu-a"], r"request gpus asks for 2 devices, and --device names 1 \(gpu-a\)"),
        ("nvlink-pair", ["gpu-a", "gpu-b", "gpu-c"], "asks for 2 devices, and --device names 3"),
        ("nvlink-pair", ["gpu-a", "gpu-a"], "--device gpu-a: gpu-a is named twice"),
        ("nvlink-pair", ["gpus="], r"it names no device; give \[REQUEST=\]DEVICE"),
        ("two-containers", ["whole=gpu-a"], "request part has no device; name one with --device part=DEVICE"),
        ("prioritized-list", ["gpu-a"], "name the request too, one of gpu/large, gpu/any, gpu/half"),
        ("prioritized-list", ["gpu=gpu-a"], "the claim has no request gpu; it has gpu/large"),
        ("prioritized-list", ["gpu/huge=gpu-a"], "the claim has no request gpu/huge; it has gpu/large"),
        (
            "prioritized-list",
            ["gpu/large=gpu-a", "gpu/any=gpu-b"],
            "request gpu is met by one of its sub-requests; --device names gpu/large, gpu/any",
        ),
    ],
)
def test_devices_that_the_claim_does_not_ask_for_are_refused(
    manifest: str, chosen: list[str], message: str
) -> None:
    with pytest.raises(StandaloneError, match=message) as caught:
        load_claim(EXAMPLES / f"{manifest}.yaml", chosen, POOL, {})
    assert f"{manifest}.yaml" in str(caught.value)


def test_all_devices_are_as_many_as_are_named(tmp_path: Path) -> None:
    exactly = {"deviceClassName": "gpu.nvidia.com", "allocationMode": "All"}
    file = write(tmp_path, claim(spec={"devices": {"requests": [{"name": "every", "exactly": exactly}]}}))
    loaded = load_claim(file, ["gpu-a", "gpu-b", "gpu-c"], POOL, {})
    assert [result.device for result in read_claim(reference_of(loaded), loaded).results] == [
        "gpu-a",
        "gpu-b",
        "gpu-c",
    ]


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ({}, r"it has no spec\.devices\.requests"),
        (
            {"requests": [{"name": "gpu", "exactly": {}}], "config": [{"requests": ["cpu"]}]},
            r"spec\.devices\.config\[0\]: it has no request cpu; it has gpu",
        ),
        ({"requests": [{"name": "gpu"}]}, "request gpu must have one of exactly and firstAvailable"),
        (
            {"requests": [{"name": "gpu", "exactly": {}, "firstAvailable": [{"name": "a"}]}]},
            "request gpu must have one of exactly and firstAvailable",
        ),
    ],
)
def test_requests_that_ask_for_nothing_are_refused(
    tmp_path: Path, devices: dict[str, Any], message: str
) -> None:
    with pytest.raises(StandaloneError, match=message):
        load_claim(write(tmp_path, claim(spec={"devices": devices})), ["gpu-a"], POOL, {})


def test_a_claim_whose_pod_is_gone_can_be_prepared_by_hand(tmp_path: Path) -> None:
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": POOL, "device": "gpu-a"}
    status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": []}
    loaded = load_claim(write(tmp_path, claim(status=status)), [], POOL, {})
    assert len(read_claim(reference_of(loaded), loaded).consumers) == 1


def test_a_claim_without_a_name_needs_a_file_that_can_give_it_one(tmp_path: Path) -> None:
    file = write(tmp_path, claim(metadata={}))
    assert reference_of(load_claim(file, ["gpu-a"], POOL, {})).name == "claim"
    other = file.rename(tmp_path / "My Claim.yaml")
    with pytest.raises(StandaloneError, match=r"no metadata\.name, and the file's name cannot be one"):
        load_claim(other, ["gpu-a"], POOL, {})


def test_one_request_need_not_be_named() -> None:
    loaded = load_claim(EXAMPLES / "nvlink-pair.yaml", ["gpu-a", "gpu-b"], POOL, {})
    read = read_claim(reference_of(loaded), loaded)
    assert [(result.request, result.device) for result in read.results] == [
        ("gpus", "gpu-a"),
        ("gpus", "gpu-b"),
    ]


def test_several_requests_must_be_named() -> None:
    with pytest.raises(StandaloneError, match="name the request too, one of whole, part"):
        load_claim(EXAMPLES / "two-containers.yaml", ["gpu-a"], POOL, {})


def test_unknown_request_is_refused() -> None:
    with pytest.raises(StandaloneError, match="the claim has no request other; it has gpus"):
        load_claim(EXAMPLES / "nvlink-pair.yaml", ["other=gpu-a", "other=gpu-b"], POOL, {})


def test_admin_access_is_kept() -> None:
    loaded = load_claim(EXAMPLES / "admin-access.yaml", ["gpu-a"], POOL, {})
    read = read_claim(reference_of(loaded), loaded)
    assert [result.admin_access for result in read.results] == [True]
    assert read.reference.namespace == "gpu-monitoring"


def test_same_manifest_is_the_same_claim() -> None:
    first, second = (load_claim(EXAMPLES / "mig/by-profile.yaml", ["gpu-a"], POOL, {}) for _ in range(2))
    assert reference_of(first) == reference_of(second)


def test_allocation_of_a_cluster_is_taken(tmp_path: Path) -> None:
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": POOL, "device": "gpu-a"}
    stored = claim(
        metadata={"name": "one", "namespace": "team", "uid": "uid-1"},
        status={"allocation": {"devices": {"results": [result]}}},
    )
    loaded = load_claim(write(tmp_path, stored), [], POOL, {})
    read = read_claim(reference_of(loaded), loaded)
    assert (read.reference.uid, [entry.device for entry in read.results]) == ("uid-1", ["gpu-a"])


def test_unallocated_claim_needs_devices(tmp_path: Path) -> None:
    with pytest.raises(StandaloneError, match="name the devices with --device"):
        load_claim(write(tmp_path, claim()), [], POOL, {})


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ((), "it holds nothing"),
        (({"kind": "Pod"},), "it holds Pod"),
        (("text",), "it holds something without a kind"),
        ((claim(), claim()), "it holds ResourceClaim, ResourceClaim"),
        (({"kind": "ResourceClaimTemplate", "spec": {}},), "has no spec"),
        (({"kind": "ResourceClaim"},), "has no spec"),
    ],
)
def test_file_without_exactly_one_claim_is_refused(
    tmp_path: Path, documents: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(StandaloneError, match=message):
        load_claim(write(tmp_path, *documents), ["gpu-a"], POOL, {})


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(StandaloneError, match=r"missing\.yaml cannot be read"):
        load_claim(tmp_path / "missing.yaml", ["gpu-a"], POOL, {})
    broken = tmp_path / "broken.yaml"
    broken.write_text("{")
    with pytest.raises(StandaloneError, match=r"broken\.yaml cannot be read"):
        load_claim(broken, ["gpu-a"], POOL, {})


def test_of_a_shared_device_a_claim_gets_the_same_share_each_time(tmp_path: Path) -> None:
    exactly = {"deviceClassName": "shared.gpu.nvidia.com", "capacity": {"requests": {"memory": "20Gi"}}}
    requests = [{"name": "a", "exactly": exactly}, {"name": "b", "exactly": {**exactly, "adminAccess": True}}]
    shared = {"gpu-0": {"memory": "1Gi", "shares": "1"}}
    file = write(tmp_path, claim(spec={"devices": {"requests": requests}}))
    first, again = (load_claim(file, ["a=gpu-0", "b=gpu-0"], POOL, shared) for _ in range(2))
    mine, admins = first["status"]["allocation"]["devices"]["results"]
    assert mine["consumedCapacity"] == {"memory": "20Gi", "shares": "1"}
    assert mine["shareID"] != admins["shareID"]
    read = read_claim(reference_of(first), first)
    assert [result.memory_bytes for result in read.results] == [20 << 30, None]
    assert again == first
    other = load_claim(write(tmp_path, claim(metadata={"name": "two"})), ["gpu-0"], POOL, shared)
    (others,) = other["status"]["allocation"]["devices"]["results"]
    assert others["shareID"] not in (mine["shareID"], admins["shareID"])
    assert others["consumedCapacity"] == {"memory": "1Gi", "shares": "1"}
