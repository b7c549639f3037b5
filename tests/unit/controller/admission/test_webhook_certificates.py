"""When certificates of the webhook are renewed, and that a client that trusts the bundle accepts them."""

from __future__ import annotations

import os
import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from controller.admission.certificates import (
    Certificates,
    Schedule,
    ServingCertificate,
    expiry,
    issued,
    renewed,
    split_bundle,
)

NAME = "webhook.gpu.svc"
NAMES = (NAME,)
SCHEDULE = Schedule()
NOW = datetime.now(UTC).replace(microsecond=0)
DAY = timedelta(days=1)


def first(now: datetime = NOW) -> Certificates:
    return renewed(Certificates(), NAMES, now, SCHEDULE, b"")


def due(current: Certificates, now: datetime, trusted: bytes | None = None) -> Certificates:
    return renewed(current, NAMES, now, SCHEDULE, current.bundle if trusted is None else trusted)


def accepts(bundle: bytes, pair: ServingCertificate, name: str = NAME) -> bool:
    """Whether a TLS client that trusts ``bundle`` connects to a server with ``pair``."""
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    file = os.memfd_create("pair")
    os.write(file, pair.certificate + pair.key)
    server_side.load_cert_chain(f"/proc/self/fd/{file}")
    os.close(file)
    client_side = ssl.create_default_context(cadata=bundle.decode())
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_side.wrap_bio(to_client, to_server, server_hostname=name)
    server = server_side.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                return False
    return True


def test_the_first_certificate_is_accepted_by_who_trusts_the_bundle() -> None:
    made = first()
    assert made.serving is not None
    assert made.following is None
    assert accepts(made.bundle, made.serving)
    assert not accepts(made.bundle, made.serving, "other.gpu.svc")
    assert not accepts(first().bundle, made.serving)


def test_it_is_good_already_for_clocks_that_are_behind() -> None:
    serving = first().serving
    assert serving is not None
    certificate = x509.load_pem_x509_certificate(serving.certificate)
    assert certificate.not_valid_before_utc == NOW - DAY
    assert certificate.not_valid_after_utc == expiry(serving) == NOW + 90 * DAY


@pytest.mark.parametrize("after", [timedelta(0), DAY, 59 * DAY])
def test_nothing_is_done_before_it_is_due(after: timedelta) -> None:
    made = first()
    assert due(made, NOW + after) == made


def test_a_renewal_overlaps_and_is_served_only_when_it_is_trusted() -> None:
    made = first(NOW - 60 * DAY)
    pending = due(made, NOW)
    assert pending.serving == made.serving
    assert pending.following is not None
    assert pending.serving is not None
    # Whoever trusts the new bundle accepts both, whichever a replica serves.
    assert accepts(pending.bundle, pending.serving)
    assert accepts(pending.bundle, pending.following)

    later = NOW + SCHEDULE.overlap
    assert due(pending, later - timedelta(seconds=1)) == pending
    assert due(pending, later, trusted=made.bundle) == pending
    assert due(pending, later, trusted=b"") == pending
    taken_over = due(pending, later)
    assert taken_over == replace(pending, serving=pending.following, following=None)
    assert due(taken_over, later) == taken_over


def test_the_authority_of_an_old_certificate_is_trusted_until_it_ends() -> None:
    pending = due(first(), NOW + 60 * DAY)
    taken_over = due(pending, NOW + 61 * DAY)
    assert len(taken_over.authorities) == 2
    assert due(taken_over, NOW + 91 * DAY).authorities == pending.authorities[:1]


def test_an_expired_certificate_is_replaced_at_once() -> None:
    made = first()
    replaced = due(made, NOW + 90 * DAY)
    assert replaced.serving not in (None, made.serving)
    assert replaced.following is None
    assert len(replaced.authorities) == 1


def test_an_expired_certificate_gives_way_to_the_following_one_at_once() -> None:
    pending = due(first(), NOW + 89 * DAY + DAY - timedelta(seconds=1))
    replaced = due(pending, NOW + 90 * DAY, trusted=b"")
    assert (replaced.serving, replaced.following) == (pending.following, None)


def test_one_that_is_not_good_yet_is_kept_so_that_replicas_do_not_fight_over_the_clock() -> None:
    made = first()
    assert due(made, NOW - 30 * DAY) == made


@pytest.mark.parametrize("part", ["certificate", "key", "authority", "other key", "other authority"])
def test_what_is_damaged_is_replaced(part: str) -> None:
    made, other = first(), first()
    assert made.serving is not None
    assert other.serving is not None
    pair, authorities = made.serving, made.authorities
    damaged = {
        "certificate": replace(made, serving=replace(pair, certificate=b"nonsense")),
        "key": replace(made, serving=replace(pair, key=b"nonsense")),
        "other key": replace(made, serving=replace(pair, key=other.serving.key)),
        "authority": replace(made, authorities=()),
        "other authority": replace(made, authorities=other.authorities),
    }[part]
    assert authorities
    mended = due(damaged, NOW)
    assert mended.serving not in (None, damaged.serving)
    assert mended.serving is not None
    assert accepts(mended.bundle, mended.serving)


def test_another_name_needs_another_certificate() -> None:
    made = first()
    mended = renewed(made, ("new.gpu.svc",), NOW, SCHEDULE, made.bundle)
    assert mended.serving is not None
    assert accepts(mended.bundle, mended.serving, "new.gpu.svc")


def test_replacements_again_and_again_leave_a_short_bundle() -> None:
    current = first()
    for number in range(10):
        current = renewed(current, (f"name{number}.gpu.svc",), NOW, SCHEDULE, b"")
    assert len(current.authorities) == 4
    assert split_bundle(current.bundle) == current.authorities


@pytest.mark.parametrize("bundle", [b"", b"\n", b"nonsense", b"-----BEGIN CERTIFICATE-----\nAA\n"])
def test_a_bundle_without_certificates_is_empty(bundle: bytes) -> None:
    assert split_bundle(bundle) == ()


def test_each_authority_signs_once_and_cannot_sign_authorities() -> None:
    authority, pair = issued(NAMES, NOW, SCHEDULE)
    limits = x509.load_pem_x509_certificate(authority).extensions.get_extension_for_class(
        x509.BasicConstraints
    )
    assert limits.value.path_length == 0
    usages = x509.load_pem_x509_certificate(pair.certificate).extensions.get_extension_for_class(
        x509.BasicConstraints
    )
    assert not usages.value.ca
