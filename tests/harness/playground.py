"""What `make cluster` puts on its cluster: simulated GPUs, the plugin, and pods of the examples."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.cluster.cluster import Cluster
from tests.cluster.components import say
from tests.cluster.playground import kubectl
from tests.harness.clusternode import EXAMPLES, deploy, make_cluster_gpu_node
from tests.harness.examples import MIG_EXAMPLES, examples, load_stand_ins
from tests.harness.pods import Pods

MACHINE = "hgx-h100"
MIG = {7: ("3g.40gb", "1g.10gb")}
SHOWN = ("gpu-by-product-name", "mig/by-profile", "nvlink-pair", "two-containers")
"""Names of example manifests; together they leave some devices free to play with."""


def gpus_and_pods(cluster: Cluster) -> str:
    """Start all of it and wait until the pods run; returns what a person can do there."""
    deploy(cluster.api)
    say(f"simulating the GPUs of a {MACHINE} machine and starting the plugin")
    node = make_cluster_gpu_node(cluster, MACHINE, mig=MIG)
    process = node.start_ready(rescan_seconds="10", mig="dynamic")
    simulator = Path(sys.executable).with_name("nvmlsim")
    every = [*examples(), *examples(MIG_EXAMPLES)]
    shown = [one for one in every if str(one.path.relative_to(EXAMPLES).with_suffix("")) in SHOWN]
    load_stand_ins(cluster.node, shown)
    pods = Pods(cluster.api, cluster.node)
    for example in shown:
        cluster.api.apply(example.path)
    for example in shown:
        for pod in example.pods:
            pods.running(pod["metadata"]["name"])
    return f"""\
On it are the simulated GPUs of a {MACHINE} machine, one of them with MIG devices that an administrator made,
the plugin, which makes others when pods ask for them, and the pods of these examples:
  {", ".join(f"{name}.yaml" for name in SHOWN)}
Their image is a stand-in: busybox under its name.

  {kubectl()} exec mig-by-profile -- nvidia-smi -L
  {node.gpus.nvidia_smi_path} -L
  {kubectl()} get resourceclaims -o yaml
  {kubectl()} apply -f examples/prioritized-list.yaml
  {simulator} set {node.gpus.root} unplug 6
  {simulator} --help

The last but one pulls out a GPU: within ten seconds it is gone from the ResourceSlice, unless a pod holds it.
The plugin's log is {process.log}.
"""
