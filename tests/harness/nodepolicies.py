"""The node policy of a simulated node, as a file that a plugin is given."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.harness.plugin import PluginNode


def policy_file(node: PluginNode) -> Path:
    return node.folder / "node-policy.yaml"


def write_policy(node: PluginNode, *entries: Mapping[str, Any]) -> Path:
    """Replace the node's policy, in one step, by one with these entries; returns the file."""
    document = {"apiVersion": "gpudra.io/v1alpha1", "kind": "NodePolicy", "spec": {"entries": entries}}
    return write_policy_text(node, json.dumps(document))


def write_policy_text(node: PluginNode, text: str) -> Path:
    """The same with whatever the file is to say."""
    path = policy_file(node)
    new = path.with_suffix(".new")
    new.write_text(text)
    return new.rename(path)
