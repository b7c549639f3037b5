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


def requests_of(file: Path) -> list[str]:
    documents = list(yaml.safe_load_all(file.read_text()))
    claim = next(document for document in documents if document["kind"].startswith("ResourceClaim"))
    spec = claim["spec"].get("spec", claim["spec"])
    return [request["name"] for request in spec["devices"]["requests"]]


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
    names = requests_of(file)
    loaded = load_claim(file, [f"{name}=gpu-{number}" for number, name in enumerate(names)], POOL)
    read = read_claim(reference_of(loaded), loaded)
    assert [(result.request, result.pool, result.device) for result in read.results] == [
        (name, POOL, f"gpu-{number}") for number, name in enumerate(names)
    ]


def test_one_request_need_not_be_named() -> None:
    loaded = load_claim(EXAMPLES / "nvlink-pair.yaml", ["gpu-a", "gpu-b"], POOL)
    read = read_claim(reference_of(loaded), loaded)
    assert [(result.request, result.device) for result in read.results] == [
        ("gpus", "gpu-a"),
        ("gpus", "gpu-b"),
    ]


def test_several_requests_must_be_named() -> None:
    with pytest.raises(StandaloneError, match="name the request too, one of whole, part"):
        load_claim(EXAMPLES / "two-containers.yaml", ["gpu-a"], POOL)


def test_unknown_request_is_refused() -> None:
    with pytest.raises(StandaloneError, match="the claim has no request other; it has gpus"):
        load_claim(EXAMPLES / "nvlink-pair.yaml", ["other=gpu-a"], POOL)


def test_admin_access_is_kept() -> None:
    loaded = load_claim(EXAMPLES / "admin-access.yaml", ["gpu-a"], POOL)
    read = read_claim(reference_of(loaded), loaded)
    assert [result.admin_access for result in read.results] == [True]
    assert read.reference.namespace == "gpu-monitoring"


def test_same_manifest_is_the_same_claim() -> None:
    first, second = (load_claim(EXAMPLES / "mig/by-profile.yaml", ["gpu-a"], POOL) for _ in range(2))
    assert reference_of(first) == reference_of(second)


def test_allocation_of_a_cluster_is_taken(tmp_path: Path) -> None:
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": POOL, "device": "gpu-a"}
    stored = claim(
        metadata={"name": "one", "namespace": "team", "uid": "uid-1"},
        status={"allocation": {"devices": {"results": [result]}}},
    )
    loaded = load_claim(write(tmp_path, stored), [], POOL)
    read = read_claim(reference_of(loaded), loaded)
    assert (read.reference.uid, [entry.device for entry in read.results]) == ("uid-1", ["gpu-a"])


def test_unallocated_claim_needs_devices(tmp_path: Path) -> None:
    with pytest.raises(StandaloneError, match="name the devices with --device"):
        load_claim(write(tmp_path, claim()), [], POOL)


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
        load_claim(write(tmp_path, *documents), ["gpu-a"], POOL)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(StandaloneError, match=r"missing\.yaml cannot be read"):
        load_claim(tmp_path / "missing.yaml", ["gpu-a"], POOL)
    broken = tmp_path / "broken.yaml"
    broken.write_text("{")
    with pytest.raises(StandaloneError, match=r"broken\.yaml cannot be read"):
        load_claim(broken, ["gpu-a"], POOL)
