"""Prepare and unprepare over the plugin's real sockets."""

from __future__ import annotations

from tests.harness.claims import create_claim, result
from tests.harness.plugin import PluginNode


def test_a_whole_gpu_is_published_prepared_and_given_back(node: PluginNode) -> None:
    info = node.kubelet.register()
    assert (info.type, info.name) == ("DRAPlugin", "gpu.nvidia.com")
    assert list(info.supported_versions) == ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
    devices = node.wait_published(8)
    name = sorted(devices)[0]
    claim = create_claim(node.api, [result(name, node.name)])

    answer = node.kubelet.prepare_one(claim)

    assert answer.error == ""
    assert [(list(d.request_names), d.pool_name, d.device_name) for d in answer.devices] == [
        (["gpu"], node.name, name)
    ]
    assert answer.cdi_ids == [f"gpudra.io/claim={claim.uid}-{name}"]
    assert node.device_nodes(claim.uid) == {name: ["/dev/nvidia0"]}
    assert node.claims_in_store() == {claim.uid: "prepared"}

    assert node.kubelet.unprepare_one(claim).error == ""
    assert node.cdi_files() == []
    assert node.claims_in_store() == {}
