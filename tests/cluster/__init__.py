"""A real Kubernetes on this machine for tests: etcd and API server alone, or a whole one-node cluster.

`ControlPlane` (no root needed) is enough to see what is published and prepared; `Cluster` adds the scheduler,
the controller manager, containerd and a kubelet, and runs pods. Everything of one run lives below one
`Workspace` folder and ends with it. `python -m tests.cluster up` keeps a cluster running to play with.
"""
