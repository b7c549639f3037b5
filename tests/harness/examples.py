"""The manifests of ``examples/`` on a test cluster, which has no registry to pull their images from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.api import Object, documents
from tests.cluster.images import busybox_layer, find_busybox, image_archive
from tests.cluster.node import Node
from tests.harness.clusternode import EXAMPLES

MIG_EXAMPLES = EXAMPLES / "mig"
"""Those that need MIG; the others run on whole GPUs, all but one choice of a prioritized list."""
SHARING_EXAMPLES = EXAMPLES / "sharing"
"""Those that set how processes share a GPU."""


@dataclass(frozen=True)
class Example:
    """One manifest that has pods."""

    path: Path
    items: tuple[Object, ...]

    @property
    def pods(self) -> list[Object]:
        return [item for item in self.items if item["kind"] == "Pod"]

    @property
    def images(self) -> set[str]:
        return {container["image"] for pod in self.pods for container in pod["spec"]["containers"]}


def examples(folder: Path = EXAMPLES) -> list[Example]:
    """All examples of a folder that have pods, by name."""
    found = [Example(path, tuple(documents(path.read_text()))) for path in sorted(folder.glob("*.yaml"))]
    return [example for example in found if example.pods]


def load_stand_ins(node: Node, wanted: Sequence[Example]) -> None:
    """Put busybox on the node under the names of the examples' images."""
    busybox = find_busybox()
    assert busybox is not None, "the cluster does not start without busybox"
    layer = busybox_layer(busybox)
    for image in sorted(set().union(*(example.images for example in wanted))):
        name = image if "/" in image else f"docker.io/library/{image}"
        node.load_image(image_archive(name, layer, ["/bin/sh"]))
