"""The test cluster does what the tests on it rely on, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.api import wait_until
from tests.cluster.cluster import Cluster
from tests.cluster.components import REPOSITORY
from tests.cluster.images import BUSYBOX, SLEEP
from tests.cluster.playground import kubectl
from tests.cluster.workspace import marked_processes

POD = "plain"


@pytest.fixture
def pod(cluster: Cluster) -> Iterator[str]:
    cluster.api.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": POD},
            "spec": {
                "restartPolicy": "Never",
                "containers": [
                    {
                        "name": "main",
                        "image": BUSYBOX,
                        "imagePullPolicy": "Never",
                        "command": ["sh", "-c", f"echo started; {SLEEP[2]}"],
                        "env": [{"name": "COLOR", "value": "green"}],
                    }
                ],
            },
        }
    )
    cluster.api.wait_for(
        "v1", "Pod", POD, lambda found: found["status"].get("phase") == "Running", "to be running"
    )
    yield POD
    cluster.api.delete("v1", "Pod", POD, grace_seconds=1)
    cluster.api.wait_gone("v1", "Pod", POD)


def test_a_pod_runs_with_logs_and_exec(cluster: Cluster, pod: str) -> None:
    node = cluster.node
    assert (
        wait_until(lambda: node.container_logs("default", pod, "main"), "the first line", 5.0) == "started\n"
    )
    answer = node.ctr_exec("default", pod, "main", "sh", "-c", "echo $COLOR; exit 3")
    assert (answer.returncode, answer.stdout) == (3, "green\n")


def test_kubectl_reaches_into_the_pod(cluster: Cluster, pod: str) -> None:
    command = [kubectl(), f"--kubeconfig={cluster.control_plane.kubeconfig}"]
    for arguments, said in (
        (["logs", pod], "started\n"),
        (["exec", pod, "--", "echo", "hi"], "hi\n"),
    ):
        answer = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, timeout=30, check=False
        )
        assert (answer.stdout, answer.returncode) == (said, 0), answer.stderr


def test_a_pod_outlives_the_kubelet(cluster: Cluster, pod: str) -> None:
    before = cluster.node.container_id("default", pod, "main")
    cluster.node.restart_kubelet()
    assert cluster.node.ctr_exec("default", pod, "main", "true").returncode == 0
    assert cluster.node.container_id("default", pod, "main") == before


def test_a_deleted_pod_leaves_no_container(cluster: Cluster, pod: str) -> None:
    cluster.api.delete("v1", "Pod", pod, grace_seconds=1)
    cluster.api.wait_gone("v1", "Pod", pod)
    tasks = cluster.workspace.path / "run" / "io.containerd.runtime.v2.task" / "k8s.io"
    wait_until(lambda: not list(tasks.iterdir()), "containerd to forget the pod", 10.0)


def test_a_service_account_token_names_its_node(cluster: Cluster) -> None:
    path = cluster.control_plane.kubeconfig_for_service_account("kube-system", "plugin", cluster.node.name)
    answer = subprocess.run(
        [kubectl(), f"--kubeconfig={path}", "auth", "whoami", "-o", "yaml"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    ).stdout
    user = yaml.safe_load(answer)["status"]["userInfo"]
    assert user["username"] == "system:serviceaccount:kube-system:plugin"
    assert user["extra"]["authentication.kubernetes.io/node-name"] == [cluster.node.name]


OWNER = """
import sys, time
from tests.cluster.workspace import Workspace, record
with Workspace() as workspace:
    workspace.start("sleeper", ["sleep", "600"])
    print(workspace.path, flush=True)
    time.sleep(600)
"""


def test_nothing_is_left_when_the_owner_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        workspace = Path(owner.stdout.readline().strip())
        assert len(marked_processes(workspace)) == 1
        owner.kill()
    wait_until(lambda: not workspace.exists(), "the watchdog to remove the folder", 10.0)
    assert marked_processes(workspace) == []
