"""A private certificate authority for one run, with EC keys (a QUIC server's first flight stays small)."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

if TYPE_CHECKING:
    from pathlib import Path

LIFETIME = dt.timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM files of a leaf: `chain` (leaf first) and its private `key`."""

    names: tuple[str, ...]
    chain: Path
    key: Path

    def spki_sha256(self) -> str:
        """Base64 SHA-256 of the SubjectPublicKeyInfo, as Chromium's command line wants it."""
        leaf = x509.load_pem_x509_certificate(self.chain.read_bytes())
        info = leaf.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return base64.b64encode(hashlib.sha256(info).digest()).decode("ascii")


class Authority:
    """Issues certificates into `directory` (made when it is not there); trust them by `ca_pem`."""

    def __init__(self, directory: Path) -> None:
        self._ca = trustme.CA(
            organization_name="Isochrone lab", organization_unit_name="Authority of one run"
        )
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.ca_pem = directory / "ca.pem"
        self._ca.cert_pem.write_to_path(self.ca_pem)

    def issue(
        self,
        stem: str,
        *names: str,
        not_before: dt.datetime | None = None,
        not_after: dt.datetime | None = None,
    ) -> Certificate:
        """A certificate for host names or IP addresses, in `<stem>.pem` and `<stem>.key`.

        Valid for thirty days from an hour ago unless told otherwise: an expired one has `not_after` in the past, one
        for the wrong host has other names. Issuing a stem again replaces its files.
        """
        now = dt.datetime.now(dt.UTC)
        begin = not_before or min(now, not_after or now) - dt.timedelta(hours=1)
        leaf = self._ca.issue_cert(
            *names,
            organization_name="Isochrone lab",
            organization_unit_name=stem,
            not_before=begin,
            not_after=not_after or now + LIFETIME,
        )
        chain, key = self._directory / f"{stem}.pem", self._directory / f"{stem}.key"
        chain.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        key.touch(mode=0o600)
        key.write_bytes(leaf.private_key_pem.bytes())
        return Certificate(names=names, chain=chain, key=key)
