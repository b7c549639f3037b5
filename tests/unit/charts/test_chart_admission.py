"""The chart's webhook and policies: valid for each Kubernetes, for the chart's accounts, with few rights."""

from __future__ import annotations

import kubernetes_validate
import pytest
import yaml

from tests.cluster.api import Object
from tests.harness.chart import CHART, rendered

VERSIONS = ("1.34", "1.35", "1.36", "1.37")
TEMPLATES = ("webhook.yaml", "admission-policy.yaml")


def only(template: str, kind: str) -> Object:
    (found,) = (item for item in rendered(template, "gpus") if item["kind"] == kind)
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_every_kubernetes_knows_every_field(template: str, version: str) -> None:
    for item in rendered(template, "gpus"):
        kubernetes_validate.validate(item, version, strict=True)


@pytest.mark.parametrize(
    ("template", "switch"), [("webhook.yaml", "webhook"), ("admission-policy.yaml", "admissionPolicy")]
)
def test_what_is_turned_off_is_not_made(template: str, switch: str) -> None:
    assert rendered(template, "gpus", {switch: {"enabled": False}}) == []


def test_a_webhook_that_does_not_answer_stops_nobody() -> None:
    configuration = only("webhook.yaml", "ValidatingWebhookConfiguration")
    (webhook,) = configuration["webhooks"]
    assert webhook["failurePolicy"] == "Ignore"
    assert webhook["timeoutSeconds"] == 5
    service = only("webhook.yaml", "Service")["metadata"]
    called = webhook["clientConfig"]["service"]
    assert (called["name"], called["namespace"]) == (service["name"], service["namespace"])


def test_the_controller_may_read_no_other_secret_and_make_none() -> None:
    secret = only("webhook.yaml", "Secret")["metadata"]["name"]
    rules = only("webhook.yaml", "Role")["rules"]
    assert rules == [
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [secret], "verbs": ["get", "update"]}
    ]
    (rule,) = only("webhook.yaml", "ClusterRole")["rules"]
    assert rule["resourceNames"] == [
        only("webhook.yaml", "ValidatingWebhookConfiguration")["metadata"]["name"]
    ]
    assert rule["verbs"] == ["get", "patch"]


@pytest.mark.parametrize("release", ["gpu-dra-driver", "prod"])
def test_b152_the_policies_are_for_the_service_accounts_of_the_chart(release: str) -> None:
    fullname = release if release == "gpu-dra-driver" else f"{release}-gpu-dra-driver"
    for item in rendered("admission-policy.yaml", "gpus", release=release):
        if item["kind"] == "ValidatingAdmissionPolicy":
            (condition,) = item["spec"]["matchConditions"]
            program = "controller" if condition["name"] == "is-controller" else "kubelet-plugin"
            user = f"system:serviceaccount:gpus:{fullname}-{program}"
            assert condition["expression"] == f'request.userInfo.username == "{user}"'
        else:
            assert item["spec"]["validationActions"] == ["Deny"]


def test_values_say_what_the_templates_read() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values["webhook"].keys() >= {"enabled", "port", "timeoutSeconds"}
    assert values["admissionPolicy"].keys() >= {"enabled"}
