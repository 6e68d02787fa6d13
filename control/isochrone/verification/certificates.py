"""Is a server's certificate good for a host? Each thing that is wrong is found, not only the first. No network.

The handshake is made without verification and the chain judged here, because TLS libraries stop at the first fault and
tell them apart by text only.
"""

from __future__ import annotations

import datetime as dt
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import certifi
import service_identity
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509 import AuthorityInformationAccess, ExtendedKeyUsage, ExtensionNotFound
from cryptography.x509.oid import AuthorityInformationAccessOID, ExtendedKeyUsageOID, NameOID
from OpenSSL import crypto
from service_identity.cryptography import (
    extract_patterns,
    verify_certificate_hostname,
    verify_certificate_ip_address,
)

from isochrone.probing.prober import is_address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cryptography import x509

_NO_CHECK_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME: times are judged here, each certificate by itself
_SELF_SIGNED = 18  # X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT
_NO_ISSUER = {
    20,
    21,
}  # X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY, X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE
_EXPIRING_DAYS = 14.0
_EXPIRING_SHARE = 1 / 3  # of a short-lived certificate's life


class TrustStoreError(Exception):
    """The trust store can't be read; one sentence."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong.

    `kind`: untrusted, incomplete (an intermediate was not shown), self_signed, name, usage (not for servers), expired,
    not_yet_valid, or expiring (only soon).
    """

    kind: str
    evidence: str


class TrustStore:
    """The authorities that are believed: those of a PEM file, else the system's, else Mozilla's."""

    def __init__(self, path: Path | None = None) -> None:
        source = path or _system_store()
        self._store = crypto.X509Store()
        try:
            self._store.load_locations(str(source))
        except crypto.Error:
            raise TrustStoreError(f"{source}: holds no certificates in PEM form") from None
        self._store.set_flags(_NO_CHECK_TIME)

    def faults(self, chain: Sequence[x509.Certificate], host: str, *, now: float) -> tuple[Fault, ...]:
        """Everything that keeps clients from accepting `chain` (leaf first) for `host` at `now` (Unix seconds)."""
        leaf, others = chain[0], chain[1:]
        faults: list[Fault] = []
        context = crypto.X509StoreContext(
            self._store,
            crypto.X509.from_cryptography(leaf),
            [crypto.X509.from_cryptography(certificate) for certificate in others],
        )
        judged: Sequence[x509.Certificate] = chain
        try:
            judged = [certificate.to_cryptography() for certificate in context.get_verified_chain()]
        except crypto.X509StoreContextError as error:
            faults.append(_untrusted(error, leaf, others))
        try:
            if is_address(host):
                verify_certificate_ip_address(leaf, host)
            else:
                verify_certificate_hostname(leaf, host)
        except (service_identity.VerificationError, service_identity.CertificateError, ValueError):
            faults.append(Fault("name", f"the certificate is for {_names(leaf)}, not for {host}"))
        if not _for_servers(leaf):
            faults.append(Fault("usage", "its extended key usage does not hold serverAuth"))
        moment = dt.datetime.fromtimestamp(now, dt.UTC)
        return (
            *faults,
            *(fault for certificate in judged if (fault := _time_fault(certificate, moment)) is not None),
        )


def told_of(certificate: x509.Certificate) -> dict[str, str]:
    """What tells it from others: names, issuer, serial number, validity and fingerprint."""
    return {
        "certificate_names": _names(certificate),
        "certificate_issuer": certificate.issuer.rfc4514_string(),
        "certificate_serial": f"{certificate.serial_number:x}",
        "certificate_valid": f"{certificate.not_valid_before_utc.isoformat()} to {certificate.not_valid_after_utc.isoformat()}",
        "certificate_sha256": certificate.fingerprint(SHA256()).hex(),
    }


def _system_store() -> Path:
    found = ssl.get_default_verify_paths().cafile
    return Path(found or certifi.where())


def _untrusted(
    error: crypto.X509StoreContextError, leaf: x509.Certificate, others: Sequence[x509.Certificate]
) -> Fault:
    number, _depth, words = error.errors[0], error.errors[1], error.errors[2]
    if number == _SELF_SIGNED:
        return Fault("self_signed", "the server shows a self-signed certificate")
    last = others[-1] if others else leaf
    issuer = last.issuer.rfc4514_string()
    url = _issuer_url(last)
    # Whoever issued the last certificate shown was not shown, and says where it can be had: an intermediate, as a rule.
    if number in _NO_ISSUER and last.issuer != last.subject and url:
        return Fault(
            "incomplete",
            f"{1 + len(others)} certificate(s) shown, the last issued by {issuer}, which was not shown; it is at {url}",
        )
    return Fault(
        "untrusted",
        f"no trusted authority vouches for it: {words}; {1 + len(others)} certificate(s) shown, the last issued by {issuer}",
    )


def _issuer_url(certificate: x509.Certificate) -> str:
    """Where it says that its issuer's certificate can be had (RFC 5280 section 4.2.2.1); empty when it does not."""
    try:
        access = certificate.extensions.get_extension_for_class(AuthorityInformationAccess).value
    except (ExtensionNotFound, ValueError):
        return ""
    urls = [
        a.access_location.value for a in access if a.access_method == AuthorityInformationAccessOID.CA_ISSUERS
    ]
    return str(urls[0]) if urls else ""


def _for_servers(leaf: x509.Certificate) -> bool:
    """Whether its extended key usage, if it has one, is that of servers (RFC 5280 section 4.2.1.12)."""
    try:
        usage = leaf.extensions.get_extension_for_class(ExtendedKeyUsage).value
    except ExtensionNotFound:
        return True
    except ValueError:
        return False
    return ExtendedKeyUsageOID.SERVER_AUTH in usage or ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE in usage


def _time_fault(certificate: x509.Certificate, now: dt.datetime) -> Fault | None:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > end:
        return Fault(
            "expired", f"the certificate of {_subject(certificate)} expired at {end:%Y-%m-%d %H:%M} UTC"
        )
    if now < begin:
        return Fault(
            "not_yet_valid",
            f"the certificate of {_subject(certificate)} is valid only from {begin:%Y-%m-%d %H:%M} UTC",
        )
    left, life = (end - now) / dt.timedelta(days=1), (end - begin) / dt.timedelta(days=1)
    if left < min(_EXPIRING_DAYS, life * _EXPIRING_SHARE):
        return Fault("expiring", f"the certificate of {_subject(certificate)} expires in {left:.1f} days")
    return None


def _names(leaf: x509.Certificate) -> str:
    try:
        patterns = [getattr(pattern, "pattern", pattern) for pattern in extract_patterns(leaf)]
    except (service_identity.CertificateError, ValueError):
        patterns = []
    names = [
        pattern.decode("ascii", "replace") if isinstance(pattern, bytes) else str(pattern)
        for pattern in patterns
    ]
    return ", ".join(names[:5]) + (" and others" if len(names) > 5 else "") if names else "no name at all"


def _subject(certificate: x509.Certificate) -> str:
    common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(common[0].value) if common else _names(certificate)
