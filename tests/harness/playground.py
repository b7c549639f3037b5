"""What `make cluster` puts on its cluster: simulated GPUs, the plugin, and pods of the examples."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.cluster.cluster import Cluster
from tests.cluster.components import say
from tests.cluster.playground import kubectl
from tests.harness.clusternode import deploy, make_cluster_gpu_node
from tests.harness.examples import examples, load_stand_ins
from tests.harness.pods import Pods

MACHINE = "hgx-h100"
MIG = {6: ("1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"), 7: ("3g.40gb", "3g.40gb")}
SHOWN = ("gpu-by-product-name", "mig", "nvlink-pair", "two-containers")
"""Names of example manifests; together they leave some devices free to play with."""


def gpus_and_pods(cluster: Cluster) -> str:
    """Start all of it and wait until the pods run; returns what a person can do there."""
    deploy(cluster.api)
    say(f"simulating the GPUs of a {MACHINE} machine and starting the plugin")
    node = make_cluster_gpu_node(cluster, MACHINE, mig=MIG)
    process = node.start_ready(rescan_seconds="10")
    simulator = Path(sys.executable).with_name("nvmlsim")
    shown = [example for example in examples() if example.path.stem in SHOWN]
    load_stand_ins(cluster.node, shown)
    pods = Pods(cluster.api, cluster.node)
    for example in shown:
        cluster.api.apply(example.path)
    for example in shown:
        for pod in example.pods:
            pods.running(pod["metadata"]["name"])
    return f"""\
On it are the simulated GPUs of a {MACHINE} machine, two of them cut into MIG devices, the plugin, and the
pods of examples/{{{",".join(SHOWN)}}}.yaml.
Their image is a stand-in: busybox under its name.

  {kubectl()} exec mig -- nvidia-smi -L
  {kubectl()} get resourceclaims -o yaml
  {kubectl()} apply -f examples/prioritized-list.yaml
  {simulator} set {node.gpus.root} unplug 4
  {simulator} --help

The last but one pulls out a GPU: within ten seconds it is gone from the ResourceSlice, unless a pod holds it.
The plugin's log is {process.log}.
"""
