"""Where the webhook is and which objects belong to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from controller.admission.certificates import Schedule


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """What one replica needs to know to answer reviews.

    ``address`` is where it listens, host and port. ``name`` is that of its Service, of its Secret, both in
    ``namespace``, and of its ValidatingWebhookConfiguration: the chart's objects. ``hosts`` are DNS names for
    which the certificate is good besides that of the Service. ``check_seconds`` is how often Secret and
    configuration are looked at.
    """

    address: tuple[str, int]
    namespace: str
    name: str
    hosts: tuple[str, ...] = ()
    schedule: Schedule = field(default_factory=Schedule)
    check_seconds: float = 30.0
