"""The rights that docs/security.md lists, as the rules of roles."""

from __future__ import annotations

import re

from tests.cluster.api import Object
from tests.cluster.components import REPOSITORY

_GROUPS = {
    **dict.fromkeys(("nodes", "events", "pods", "pods/eviction"), ""),
    **dict.fromkeys(("partitionrequests", "partitionrequests/status"), "gpudra.io"),
    **dict.fromkeys(("nodepartitions", "nodepartitions/status"), "gpudra.io"),
    "leases": "coordination.k8s.io",
}


def documented_rules(program: str) -> list[Object]:
    """The rules of ``node plugin`` or ``controller``, without those for single objects of its own."""
    text = (REPOSITORY / "docs" / "security.md").read_text()
    section = text.split(f"## Rights of the {program}")[1].split("\n## ")[0]
    rules = []
    for line in section.splitlines():
        if not line.startswith("| `"):
            continue
        what, verbs, _ = (cell.strip() for cell in line.strip("|").split("|"))
        resource, *names = re.findall("`([^`]+)`", what)
        rule: Object = {
            "apiGroups": [_GROUPS.get(resource, "resource.k8s.io")],
            "resources": [resource],
            "verbs": re.findall("`([^`]+)`", verbs),
        }
        rules.append({**rule, "resourceNames": names} if names else rule)
    return rules
