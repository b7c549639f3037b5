"""The CDI spec of one claim: its kind, its device names, its qualified names.

One spec per claim, with a kind of our own: a qualified name that two files of one CDI folder define is
unresolvable for a runtime, and files of another driver may lie beside ours while its pods still run.
"""

from __future__ import annotations

from collections.abc import Mapping

from cdi.spec import CdiDevice, ContainerEdits, Spec

KIND = "gpudra.io/claim"


def claim_spec(claim_uid: str, devices: Mapping[str, ContainerEdits], common: ContainerEdits) -> Spec:
    """The spec of the claim with this UID.

    ``devices`` maps a device name within the claim (``gpu-0000-65-00-0``) to that device's edits;
    ``common`` is applied once to each container that gets any of them.

    Raises:
        SpecError: no device, a device without edits, or a name that CDI does not allow.
    """
    return Spec(
        kind=KIND,
        devices=tuple(
            CdiDevice(_device_name(claim_uid, name), edits) for name, edits in sorted(devices.items())
        ),
        edits=common,
    )


def qualified_name(claim_uid: str, device_name: str) -> str:
    """The id the kubelet hands to the runtime, ``gpudra.io/claim=<claim UID>-<device name>``."""
    return f"{KIND}={_device_name(claim_uid, device_name)}"


def _device_name(claim_uid: str, device_name: str) -> str:
    return f"{claim_uid}-{device_name}"
