"""Names as Kubernetes allows them."""

from __future__ import annotations

import re

LONGEST_SUBDOMAIN = 253
LONGEST_LABEL = 63
_PART = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_PART}(?:\.{_PART})*")
_LABEL = re.compile(_PART)

SUBDOMAIN_RULE = (
    f"allowed are 1 to {LONGEST_SUBDOMAIN} lower-case letters, digits, '-' and '.', with a letter or digit "
    "at both ends and on both sides of each '.'"
)
LABEL_RULE = (
    f"allowed are 1 to {LONGEST_LABEL} lower-case letters, digits and '-', with a letter or digit "
    "at both ends"
)


def is_subdomain(name: str) -> bool:
    """Whether it is a DNS subdomain (RFC 1123), as names of most objects are: of a Node, of a claim."""
    return len(name) <= LONGEST_SUBDOMAIN and _SUBDOMAIN.fullmatch(name) is not None


def is_label(name: str) -> bool:
    """Whether it is a DNS label (RFC 1123), as names of namespaces are."""
    return len(name) <= LONGEST_LABEL and _LABEL.fullmatch(name) is not None
