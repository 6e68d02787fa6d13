"""Certificate chains with one thing wrong each: root, intermediate, leaf, as public authorities issue them, with EC keys."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import AuthorityInformationAccessOID, ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LIFE = dt.timedelta(days=90)
LEFT = dt.timedelta(days=60)  # of a good leaf
ISSUER_URL = "http://ca.isochrone.test/intermediate.crt"  # in leaves, as RFC 5280 section 4.2.2.1 has it; nobody fetches it


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


class Chains:
    """Chains of one authority, written to `folder` as PEM files; trust them by `ca_pem`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._root = _issue("Isochrone fault lab root", None, authority=True)
        self._intermediate = _issue("Isochrone fault lab intermediate", self._root, authority=True)
        self.ca_pem = folder / "root.pem"
        self.ca_pem.write_bytes(_pem([self._root.certificate]))
        self._made: dict[tuple[object, ...], tuple[Path, Path]] = {}

    def leaf(
        self,
        *names: str,
        left: dt.timedelta = LEFT,
        kind: str = "good",
    ) -> tuple[Path, Path]:
        """(chain, key) files of a leaf for `names` that is valid for `left` from now on, from 90 days before its end.

        `kind`: good, incomplete (without the intermediate), self_signed, foreign (another root), client (not for servers), or
        late (valid from tomorrow).
        """
        wanted = (names, left, kind)
        if wanted not in self._made:
            self._made[wanted] = self._write(len(self._made), names, left, kind)
        return self._made[wanted]

    def _write(self, number: int, names: Sequence[str], left: dt.timedelta, kind: str) -> tuple[Path, Path]:
        issuer: Pair | None = self._intermediate
        if kind == "foreign":
            issuer = _issue("Foreign root", None, authority=True)
        elif kind == "self_signed":
            issuer = None
        end = dt.datetime.now(dt.UTC) + left
        begin = dt.datetime.now(dt.UTC) + dt.timedelta(days=1) if kind == "late" else end - LIFE
        leaf = _issue(
            names[0], issuer, names=names, begin=begin, end=end,
            usage=ExtendedKeyUsageOID.CLIENT_AUTH if kind == "client" else ExtendedKeyUsageOID.SERVER_AUTH,
            issuer_url="" if kind in {"foreign", "self_signed"} else ISSUER_URL,
        )  # fmt: skip
        shown = [leaf.certificate]
        if kind in {"good", "client", "late"}:
            shown.append(self._intermediate.certificate)
        chain, key = self._folder / f"leaf-{number}.pem", self._folder / f"leaf-{number}.key"
        chain.write_bytes(_pem(shown))
        key.touch(mode=0o600)
        key.write_bytes(leaf.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return chain, key


def _issue(
    common_name: str,
    issuer: Pair | None,
    *,
    names: Sequence[str] = (),
    authority: bool = False,
    begin: dt.datetime | None = None,
    end: dt.datetime | None = None,
    usage: x509.ObjectIdentifier | None = None,
    issuer_url: str = "",
) -> Pair:
    now = dt.datetime.now(dt.UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    signer = issuer.key if issuer else key
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin or now - dt.timedelta(days=1))
        .not_valid_after(end or now + 10 * LIFE)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    if names:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False
        )
    if usage is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    if issuer_url:
        place = x509.UniformResourceIdentifier(issuer_url)
        access = x509.AccessDescription(AuthorityInformationAccessOID.CA_ISSUERS, place)
        builder = builder.add_extension(x509.AuthorityInformationAccess([access]), critical=False)
    return Pair(builder.sign(signer, hashes.SHA256()), key)


def _pem(certificates: Sequence[x509.Certificate]) -> bytes:
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates)
