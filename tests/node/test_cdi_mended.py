"""CDI specs that are lost while their claims are prepared."""

from __future__ import annotations

import shutil

from tests.cluster.api import wait_until
from tests.harness.claims import create_claim, result
from tests.harness.plugin import PluginNode


def test_b127_a_wiped_cdi_folder_is_written_again_without_a_prepare(node: PluginNode) -> None:
    name = sorted(node.wait_published(8))[0]
    claim = create_claim(node.api, [result(name, node.name)])
    assert node.kubelet.prepare_one(claim).error == ""
    before = node.cdi_spec(claim.uid)

    node.stop()
    shutil.rmtree(node.cdi_root)
    node.start()

    wait_until(lambda: node.cdi_files() != [], "the claim's spec, written again", 25)
    assert node.cdi_spec(claim.uid) == before
    assert "the CDI spec of claim default/" in node.log()

    assert node.kubelet.unprepare_one(claim).error == ""
    assert node.cdi_files() == []
