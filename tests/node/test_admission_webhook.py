"""The webhook, called by a real API server over TLS: what it refuses, and its certificates."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest

from controller.admission.certificates import Schedule
from tests.cluster.api import Object, wait_until
from tests.cluster.controlplane import ControlPlane, free_ports
from tests.cluster.fixtures import require
from tests.cluster.requirements import control_plane_missing
from tests.harness.controller import running_controller
from tests.harness.partitionrequests import defined
from tests.harness.webhook import CONFIGURATIONS, NAME, NAMESPACE, STEP_SECONDS, Clock, Installed

PARAMETERS = "resource.nvidia.com/v1beta1"
DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    require(control_plane_missing())
    versions = "resource.k8s.io/v1beta1=true,resource.k8s.io/v1beta2=true"
    with ControlPlane(api_server_arguments=[f"--runtime-config={versions}"]) as started:
        yield started


@pytest.fixture
def installed(plane: ControlPlane) -> Iterator[Installed]:
    made = Installed(plane)
    made.install()
    yield made
    made.remove()


def written(kind: str, version: str, parameters: object, name: str = "a") -> Object:
    item: Object = {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": kind,
        "metadata": {"name": name},
    }
    config = [{"opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}]
    if kind == "DeviceClass":
        return {**item, "spec": {"config": config}}
    exactly = {"deviceClassName": "gpu.nvidia.com"}
    request = {"name": "gpu", **(exactly if version == "v1beta1" else {"exactly": exactly})}
    claim = {"devices": {"requests": [request], "config": config}}
    return {**item, "spec": claim if kind == "ResourceClaim" else {"spec": claim}}


def sharing(strategy: str = "TimeSlicing", kind: str = "GpuConfig") -> dict[str, Any]:
    return {"apiVersion": PARAMETERS, "kind": kind, "sharing": {"strategy": strategy}}


BAD = written("ResourceClaim", "v1", sharing("MPS"))


def test_b153_bad_configuration_is_refused_in_every_version_of_every_kind(installed: Installed) -> None:
    with installed.replica(Clock()) as webhook:
        installed.wait_refusing(BAD)
        assert not webhook.not_ready()
        for version in ("v1", "v1beta2", "v1beta1"):
            for kind, path in (
                ("ResourceClaim", "spec.devices.config[0]"),
                ("ResourceClaimTemplate", "spec.spec.devices.config[0]"),
                ("DeviceClass", "spec.config[0]"),
            ):
                for config_kind in ("GpuConfig", "MigDeviceConfig"):
                    message = installed.verdict(written(kind, version, sharing("MPS", config_kind)))
                    assert f"field {path}.opaque.parameters.sharing.strategy: 'MPS'" in message
                    assert "allowed: TimeSlicing" in message
                    assert installed.verdict(written(kind, version, sharing(kind=config_kind))) == ""


def test_without_a_running_webhook_everybody_may_write_and_what_was_written_stays_writable(
    installed: Installed,
) -> None:
    api = installed.plane.api
    with installed.replica(Clock()):
        installed.wait_refusing(BAD)
    stored = api.create(written("DeviceClass", "v1", sharing("MPS"), "old"))
    with installed.replica(Clock()):
        installed.wait_refusing(BAD)
        api.patch("resource.k8s.io/v1", "DeviceClass", "old", {"metadata": {"labels": {"a": "b"}}})
        changed = {"spec": {"config": written("DeviceClass", "v1", sharing("Other"))["spec"]["config"]}}
        with pytest.raises(Exception, match=r"spec\.config\[0\]\.opaque\.parameters\.sharing\.strategy"):
            api.patch("resource.k8s.io/v1", "DeviceClass", "old", changed)
        api.delete("resource.k8s.io/v1", "DeviceClass", stored["metadata"]["name"])


def test_renewals_are_not_noticed_by_who_writes(installed: Installed) -> None:
    always = Schedule(renew_before=Schedule().lifetime - timedelta(seconds=1), overlap=timedelta(seconds=2))
    served, verdicts = set(), []
    with installed.replica(Clock()), installed.replica(Clock(), always, free_ports(1)[0]):
        installed.wait_refusing(BAD)

        def renewed_twice() -> bool:
            verdicts.append(installed.verdict(BAD))
            served.add(installed.stored("tls.crt"))
            return len(served) >= 3

        wait_until(renewed_twice, "two renewals", 2 * STEP_SECONDS)
    assert all("'MPS'" in verdict for verdict in verdicts), verdicts
    assert len(verdicts) > 20


def test_an_expired_certificate_is_replaced_at_once(installed: Installed) -> None:
    late = Clock()
    late.offset = -91 * DAY
    with installed.replica(late):
        wait_until(lambda: installed.stored("tls.crt"), "a certificate", STEP_SECONDS)
        wait_until(lambda: installed.trusted() == installed.stored("ca.crt"), "the bundle", STEP_SECONDS)
        assert installed.verdict(BAD) == ""
        late.offset = timedelta(0)
        assert "'MPS'" in installed.wait_refusing(BAD)


def test_replicas_that_start_together_agree_on_one_certificate(installed: Installed) -> None:
    ports = [installed.port, *free_ports(2)]
    with ExitStack() as stack:
        replicas = [stack.enter_context(installed.replica(Clock(), port=port)) for port in ports]
        wait_until(lambda: not any(replica.not_ready() for replica in replicas), "all replicas", STEP_SECONDS)
        bundle = installed.stored("ca.crt")
        wait_until(lambda: installed.trusted() == bundle, "the bundle", STEP_SECONDS)
        for port in ports:
            context = ssl.create_default_context(cadata=bundle.decode())
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(f"https://localhost:{port}/", context=context)


def test_a_secret_that_was_emptied_and_a_bundle_that_was_changed_are_mended(installed: Installed) -> None:
    api = installed.plane.api
    with installed.replica(Clock()):
        installed.wait_refusing(BAD)
        first = installed.stored("tls.crt")
        api.patch("v1", "Secret", NAME, {"data": None}, NAMESPACE)
        wait_until(lambda: installed.stored("tls.crt") not in (b"", first), "a new one", STEP_SECONDS)
        assert "'MPS'" in installed.wait_refusing(BAD)
        configuration = api.get(*CONFIGURATIONS, NAME)
        del configuration["webhooks"][0]["clientConfig"]["caBundle"]
        api.replace(configuration)
        assert "'MPS'" in installed.wait_refusing(BAD)


def test_a_replica_without_its_secret_says_what_is_missing_and_recovers(installed: Installed) -> None:
    api = installed.plane.api
    secret = next(item for item in installed.objects if item["kind"] == "Secret")
    api.delete("v1", "Secret", NAME, NAMESPACE)
    with installed.replica(Clock()) as webhook:
        wait_until(lambda: f"Secret {NAMESPACE}/{NAME}" in "".join(webhook.not_ready()), "word", STEP_SECONDS)
        api.create(secret)
        assert "'MPS'" in installed.wait_refusing(BAD)
        assert not webhook.not_ready()
        assert len(installed.announced) == 1
        assert installed.announced[0].startswith(f"WebhookCertificateNotKept: Secret {NAMESPACE}/{NAME}")


def test_controllers_answer_and_one_that_is_killed_stops_nobody(installed: Installed) -> None:
    flags = {"namespace": NAMESPACE, "webhook_name": NAME, "webhook_hosts": "localhost"}
    with running_controller(installed.plane) as controller:
        address = f":{installed.port}"
        asked = controller.start(webhook_address=address, **flags)
        other = controller.start(webhook_address=f":{free_ports(1)[0]}", **flags)
        installed.wait_refusing(BAD)
        for replica in (asked, other):
            replica.probes.wait_ready(STEP_SECONDS)
        reviews = "gpudra_admission_reviews_total"
        assert asked.probes.metric(reviews, kind="ResourceClaim", outcome="refused") >= 1
        asked.process.kill()
        assert installed.verdict(BAD) == ""
        controller.start(webhook_address=address, **flags)
        assert "'MPS'" in installed.wait_refusing(BAD)


@pytest.mark.parametrize(
    ("body", "content_type", "status", "words"),
    [
        (b"{}", "application/json", 400, "no AdmissionReview"),
        (b"{", "application/json", 400, "not JSON"),
        (b"\xff\xfe", "application/json", 400, "not JSON"),
        (b"{}", "application/yaml", 415, "allowed: application/json"),
        (b'{"a":' * 100_000, "application/json", 400, "nested too deeply"),
        (b" " * 9_000_000, "application/json", 413, ""),
    ],
    ids=["no review", "half", "no text", "type", "deep", "long"],
)
def test_b153_what_is_no_review_is_answered_with_an_error(
    installed: Installed, body: bytes, content_type: str, status: int, words: str
) -> None:
    with installed.replica(Clock()):
        installed.wait_refusing(BAD)
        context = ssl.create_default_context(cadata=installed.stored("ca.crt").decode())
        request = urllib.request.Request(
            f"https://localhost:{installed.port}/validate", body, {"Content-Type": content_type}
        )
        with pytest.raises(urllib.error.HTTPError) as raised:
            urllib.request.urlopen(request, context=context)
        assert raised.value.code == status
        assert words in raised.value.read().decode()
        assert "'MPS'" in installed.verdict(BAD)


def test_a_wrong_partition_request_is_refused_when_it_is_written(installed: Installed) -> None:
    with defined(installed.plane.api), installed.replica(Clock()):
        installed.wait_refusing(BAD)
        asked: Object = {
            "apiVersion": "gpudra.io/v1alpha1",
            "kind": "PartitionRequest",
            "metadata": {"name": "a"},
            "spec": {"layout": {"1g.10gb": "seven"}},
        }
        assert "field spec.layout" in installed.verdict(asked)
        asked["spec"]["layout"] = {"1g.10gb": 7}
        assert installed.verdict(asked) == ""
