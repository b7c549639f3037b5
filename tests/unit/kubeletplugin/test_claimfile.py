"""Claims in files: what is wrong with one is named by its field, never by a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubeletplugin.claimfile import ClaimFileError, read_claim_file

KIND = "kind: ResourceClaim\n"
REQUEST = "spec: {devices: {requests: [{name: a, %s}]}}\n"
ALLOCATED = "spec: {devices: {}}\nstatus: {allocation: {devices: {results: [%s]}}}\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind: [ResourceClaim", "cannot be read"),
        ("\x00", "cannot be read"),
        ("kind: !!int x", "cannot be read"),
        ("[" * 3000, "cannot be read"),
        (KIND + KIND, "key 'kind' is there twice"),
        ("kind: Pod\nmetadata: {name: p}\n", "it holds Pod"),
        (KIND + "spec: {devices: {requests: [{exactly: {}}]}}\n", "spec.devices.requests.0.name"),
        (KIND + "spec: {devices: {requests: gpu}}\n", "spec.devices.requests"),
        (KIND + "spec: {devices: {config: [1]}}\n", "spec.devices.config.0"),
        (KIND + "spec: {devices: {config: [{opaque: x}]}}\n", "config.0.opaque: 'x' is wrong"),
        (KIND + "spec: {devices: {config: [{opaque: {}}]}}\n", "config.0.opaque.driver is required"),
        (KIND + "spec: {devices: {config: [{requests: gpu}]}}\n", "config.0.requests: 'gpu' is wrong"),
        (KIND + "metadata: x\nspec: {devices: {}}\n", "metadata"),
        (KIND + "metadata: {name: 7}\nspec: {devices: {}}\n", "metadata.name"),
        (KIND + "metadata: {name: Foo_Bar}\nspec: {}\n", "metadata.name: 'Foo_Bar' is wrong: it cannot be a"),
        (KIND + "metadata: {namespace: a.b}\nspec: {}\n", "metadata.namespace: 'a.b' is wrong"),
        (KIND + "apiVersion: resource.k8s.io/v1beta1\nspec: {}\n", "'resource.k8s.io/v1'"),
        (
            KIND + REQUEST % "exactly: x",
            "requests.0.exactly: 'x' is wrong: it must be an object",
        ),
        (KIND + REQUEST % "exactly: {count: two}", "requests.0.exactly.count: 'two' is wrong"),
        (KIND + REQUEST % "exactly: {count: 0}", "exactly.count: 0 is wrong"),
        (KIND + REQUEST % "exactly: {allocationMode: Some}", "'ExactCount' or 'All'"),
        (KIND + REQUEST % "exactly: {adminAccess: 'yes'}", "exactly.adminAccess: 'yes' is wrong"),
        (KIND + REQUEST % "firstAvailable: [{}]", "requests.0.firstAvailable.0.name is required"),
        (KIND + "spec: {devices: {}}\nstatus: x\n", "status"),
        (KIND + "spec: {devices: {}}\nstatus: {reservedFor: [x]}\n", "status.reservedFor.0"),
        (KIND + ALLOCATED % "{}", "status.allocation.devices.results.0.request"),
        (KIND + ALLOCATED % "{request: a, driver: b, pool: 1, device: c}", "results.0.pool"),
    ],
)
def test_a_file_of_another_shape_is_refused_with_its_field(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "claim.yaml"
    file.write_text(text)
    with pytest.raises(ClaimFileError) as caught:
        read_claim_file(file)
    assert str(file) in str(caught.value)
    assert words in str(caught.value)


def test_a_claim_is_read_with_all_that_it_has(tmp_path: Path) -> None:
    file = tmp_path / "claim.yaml"
    file.write_text(KIND + ALLOCATED % "{request: a, driver: b, pool: c, device: d, shareID: e}")
    [result] = read_claim_file(file)["status"]["allocation"]["devices"]["results"]
    assert result == {"request": "a", "driver": "b", "pool": "c", "device": "d", "shareID": "e"}
