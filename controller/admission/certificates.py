"""Serving certificates of the webhook, and when the next one takes over. Pure but for keys' randomness.

Each serving certificate has an authority of its own, whose key is thrown away once it has signed: no key that
could sign a further certificate exists anywhere. So each renewal is a change of authority too, and there is
one way to do it: the next certificate is stored beside the one in use, clients are told to trust both
authorities, and only then is the next one served.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_MOST_AUTHORITIES = 4


@dataclass(frozen=True, slots=True)
class Schedule:
    """How long certificates are good, and when what happens to them.

    ``lifetime`` counts from the making; before it, a certificate is good for ``backdated`` already, for
    clocks that are behind. The next one is made ``renew_before`` the end, and served when its authority has
    been trusted for ``overlap``.
    """

    lifetime: timedelta = timedelta(days=90)
    backdated: timedelta = timedelta(days=1)
    renew_before: timedelta = timedelta(days=30)
    overlap: timedelta = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class ServingCertificate:
    """A certificate and its key, both PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Certificates:
    """All that the replicas share: what is served, what is served next, and whom clients are to trust.

    ``authorities`` are PEM certificates, the newest first.
    """

    serving: ServingCertificate | None = None
    following: ServingCertificate | None = None
    authorities: tuple[bytes, ...] = ()

    @property
    def bundle(self) -> bytes:
        """The authorities as one PEM text."""
        return b"".join(self.authorities)


def renewed(
    current: Certificates, names: Sequence[str], now: datetime, schedule: Schedule, trusted: bytes
) -> Certificates:
    """What is to be stored instead of ``current``; equal to it when nothing is to be done.

    Args:
        current: what is stored.
        names: DNS names under which clients reach the webhook.
        now: the time, with a time zone.
        schedule: when certificates are renewed.
        trusted: the PEM bundle that clients trust now.
    """
    authorities = tuple(each for each in current.authorities if _is_good(each, now))
    serving = _usable(current.serving, names, authorities, now)
    following = _usable(current.following, names, authorities, now)
    if serving is None and following is None:
        # Nothing to overlap with: whoever asks meanwhile fails with the old one as well.
        authority, serving = issued(names, now, schedule)
        return Certificates(serving, None, (authority, *authorities)[:_MOST_AUTHORITIES])
    if serving is None:
        return Certificates(following, None, authorities)
    if following is not None:
        if _made(following, schedule) + schedule.overlap <= now and _issuer(following, split_bundle(trusted)):
            return Certificates(following, None, authorities)
    elif expiry(serving) - schedule.renew_before <= now:
        authority, following = issued(names, now, schedule)
        authorities = (authority, *authorities)[:_MOST_AUTHORITIES]
    return Certificates(serving, following, authorities)


def issued(names: Sequence[str], now: datetime, schedule: Schedule) -> tuple[bytes, ServingCertificate]:
    """A new authority, as PEM, and a certificate for ``names`` that it signed."""
    start, end = now - schedule.backdated, now + schedule.lifetime
    authority_key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # Clients look an issuer up by its name, so authorities that overlap need different ones.
    authority_name = _name(f"gpu-dra-webhook-{serial:x}"[:64])
    authority = (
        _builder(authority_name, authority_name, authority_key.public_key(), start, end)
        .serial_number(serial)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _builder(_name("gpu-dra-webhook"), authority_name, key.public_key(), start, end)
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    return authority.public_bytes(pem), ServingCertificate(
        certificate.public_bytes(pem),
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def expiry(certificate: ServingCertificate) -> datetime:
    """When a certificate ends. Raises ValueError if it is none."""
    return x509.load_pem_x509_certificate(certificate.certificate).not_valid_after_utc


def split_bundle(bundle: bytes) -> tuple[bytes, ...]:
    """The certificates of a PEM text one by one; none if one of them is damaged."""
    try:
        certificates = x509.load_pem_x509_certificates(bundle) if bundle.strip() else []
    except ValueError:
        return ()
    return tuple(each.public_bytes(serialization.Encoding.PEM) for each in certificates)


def _usable(
    pair: ServingCertificate | None, names: Sequence[str], authorities: Iterable[bytes], now: datetime
) -> ServingCertificate | None:
    """The pair, if it can be served now to clients that trust ``authorities``.

    One that is not good yet is usable: it was made under another clock, and replacing it under this one would
    let two replicas replace each other's for ever.
    """
    if pair is None:
        return None
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate)
        key = serialization.load_pem_private_key(pair.key, None)
        alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (ValueError, TypeError, x509.ExtensionNotFound):
        return None
    if certificate.not_valid_after_utc <= now or key.public_key() != certificate.public_key():
        return None
    if not set(names) <= set(alternatives.value.get_values_for_type(x509.DNSName)):
        return None
    return pair if _issuer(pair, authorities) else None


def _issuer(pair: ServingCertificate, authorities: Iterable[bytes]) -> bytes | None:
    """Which of the authorities signed the pair's certificate."""
    certificate = x509.load_pem_x509_certificate(pair.certificate)
    for authority in authorities:
        try:
            certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
        except (ValueError, TypeError, InvalidSignature):
            continue
        return authority
    return None


def _is_good(authority: bytes, now: datetime) -> bool:
    return x509.load_pem_x509_certificate(authority).not_valid_after_utc > now


def _made(pair: ServingCertificate, schedule: Schedule) -> datetime:
    return x509.load_pem_x509_certificate(pair.certificate).not_valid_before_utc + schedule.backdated


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, start: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .not_valid_before(start)
        .not_valid_after(end)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
