"""Are signed answers signed rightly, for long enough, and from the trust anchor down? (RFC 4033 to 4035.) Pure.

Dates and signatures are judged apart: a validator only says "bogus", an operator must know whether to sign again or to mend keys.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import dns.dnssec
import dns.exception
import dns.name
import dns.rdataset
import dns.rdatatype
import dns.rrset

from isochrone.verification.dns_anchor import ancestors

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from isochrone.model import Finding
    from isochrone.nameserver import NameServer
    from isochrone.verification.dns_answer import Answer
    from isochrone.verification.dns_promise import Promise

_EXPIRING_SECONDS = 2 * 86_400.0
_EXPIRING_SHARE = 1 / 8  # of the signature's life: those made on the fly live for two days only


class _Fault(Exception):
    """One thing that is wrong: raised where it ends a check, returned where it does not."""

    def __init__(self, kind: str, evidence: str) -> None:
        self.kind, self.evidence = kind, evidence
        super().__init__(evidence)


@dataclass(frozen=True, slots=True)
class Validator:
    """`anchors`: zone -> DS or DNSKEY records that are believed. `chain`: (zone, DNSKEY, DS or SOA) -> answer section."""

    anchors: Mapping[dns.name.Name, dns.rdataset.Rdataset]
    chain: Mapping[tuple[dns.name.Name, str], tuple[dns.rrset.RRset, ...]]
    now: float  # Unix time
    _seen: dict[tuple[object, ...], tuple[_Fault, ...]] = field(default_factory=dict)

    def findings(self, promise: Promise, answers: Iterable[Answer]) -> list[Finding]:
        """One finding for each kind and server."""
        told: dict[tuple[str, NameServer], Finding] = {}
        for answer in answers:
            for rrset, signatures in _signed(answer.rrsets):
                for fault in self._faults(rrset, signatures):
                    told.setdefault(
                        (fault.kind, answer.server), promise.found(fault.kind, fault.evidence, answer.server)
                    )
        return list(told.values())

    def _faults(self, rrset: dns.rrset.RRset, signatures: dns.rrset.RRset | None) -> tuple[_Fault, ...]:
        """What is wrong with one record set; the same from several servers is judged once."""
        key = (rrset.name, *_digest(rrset), *(() if signatures is None else _digest(signatures)))
        if key not in self._seen:
            self._seen[key] = tuple(self._judge(rrset, signatures))
        return self._seen[key]

    def _judge(self, rrset: dns.rrset.RRset, signatures: dns.rrset.RRset | None) -> list[_Fault]:
        what = f"{rrset.name.to_text()} {dns.rdatatype.to_text(rrset.rdtype)}"
        if signatures is None:
            apex = self._apex(rrset.name)
            if apex is not None and self._secured(apex):
                return [
                    _Fault(
                        "dnssec_unsigned", f"{what} has no RRSIG, though {apex.to_text()} is a signed zone"
                    )
                ]
            return []
        faults = []
        signer = signatures[0].signer
        try:
            faults += self._check(rrset, signatures, what)
            faults += self._zone(signer)
        except _Fault as fault:
            faults.append(fault)
        return faults

    def _check(self, rrset: dns.rrset.RRset, signatures: dns.rrset.RRset, what: str) -> list[_Fault]:
        """Is any signature good? Raises the fault of the best one; returns what will soon be wrong."""
        best: _Fault | None = None
        for signature in signatures:
            if (signature.signer, "DNSKEY") not in self.chain:
                return []  # nobody could be asked
            keys = self._rrset(signature.signer, "DNSKEY")
            if keys is None:
                best = best or _Fault(
                    "dnssec_bogus", f"{what} is signed by {signature.signer.to_text()}, which shows no DNSKEY"
                )
                continue
            try:
                # Judged inside of its dates, so that a bad signature is told from an old one.
                dns.dnssec.validate_rrsig(rrset, signature, {signature.signer: keys}, now=signature.inception)
            except (dns.exception.ValidationFailure, dns.exception.UnsupportedAlgorithm) as error:
                best = best or _Fault(
                    "dnssec_bogus", f"the signature of {what} by key {signature.key_tag} is not good: {error}"
                )
                continue
            begin, end = signature.inception, signature.expiration
            if end < self.now:
                best = _Fault("dnssec_expired", f"the signature of {what} expired at {_time(end)}")
            elif begin > self.now:
                best = _Fault(
                    "dnssec_not_yet_valid", f"the signature of {what} is valid only from {_time(begin)}"
                )
            elif end - self.now < min(_EXPIRING_SECONDS, (end - begin) * _EXPIRING_SHARE):
                left = (end - self.now) / 3600
                return [_Fault("dnssec_expiring", f"the signature of {what} expires in {left:.1f} hours")]
            else:
                return []
        raise best or _Fault("dnssec_bogus", f"{what} has no signature that can be read")

    def _zone(self, zone: dns.name.Name) -> list[_Fault]:
        """Are the zone's keys signed by themselves, and does the anchor lead to them? Raises the first fault of the chain."""
        keys = self._rrset(zone, "DNSKEY")
        if keys is None:
            return []
        signatures = self._signatures(zone, "DNSKEY")
        what = f"{zone.to_text()} DNSKEY"
        if signatures is None:
            raise _Fault("dnssec_bogus", f"{what} has no RRSIG")
        faults = self._check(keys, signatures, what)
        anchor = self.anchors.get(zone)
        if anchor is not None:
            _match(zone, keys, anchor, "the trust anchor")
            return faults
        if not any(zone.is_subdomain(name) for name in self.anchors):
            return faults
        if (zone, "DS") not in self.chain:
            return faults  # nobody could be asked
        record = self._rrset(zone, "DS")
        if record is None:
            return [*faults, _Fault("dnssec_no_chain", f"{zone.to_text()} is signed but has no DS record")]
        _match(zone, keys, record, "the DS record")
        proof = self._signatures(zone, "DS")
        if proof is None:
            raise _Fault("dnssec_bogus", f"{zone.to_text()} DS has no RRSIG")
        faults += self._check(record, proof, f"{zone.to_text()} DS")
        parent = proof[0].signer
        if parent == zone or not zone.is_subdomain(parent):
            raise _Fault(
                "dnssec_bogus", f"{zone.to_text()} DS is signed by {parent.to_text()}, which is no parent"
            )
        return faults + self._zone(parent)

    def _apex(self, name: dns.name.Name) -> dns.name.Name | None:
        """The zone that a name is in."""
        for zone in ancestors(name):
            if self._rrset(zone, "SOA") is not None or zone in self.anchors:
                return zone
        return None

    def _secured(self, zone: dns.name.Name) -> bool:
        if zone in self.anchors:
            return True
        below = any(zone.is_subdomain(anchor) for anchor in self.anchors)
        return below and self._rrset(zone, "DS") is not None

    def _rrset(self, name: dns.name.Name, rdtype: str) -> dns.rrset.RRset | None:
        wanted = dns.rdatatype.from_text(rdtype)
        return next(
            (r for r in self.chain.get((name, rdtype), ()) if r.rdtype == wanted and r.name == name), None
        )

    def _signatures(self, name: dns.name.Name, rdtype: str) -> dns.rrset.RRset | None:
        wanted = dns.rdatatype.from_text(rdtype)
        return next(
            (
                r
                for r in self.chain.get((name, rdtype), ())
                if r.rdtype == dns.rdatatype.RRSIG and r.covers == wanted and r.name == name
            ),
            None,
        )


def signers(answers: Iterable[Answer]) -> set[dns.name.Name]:
    """Zones that have signed any of the answers."""
    return {
        signatures[0].signer
        for answer in answers
        for _, signatures in _signed(answer.rrsets)
        if signatures is not None
    }


def _signed(
    rrsets: Sequence[dns.rrset.RRset],
) -> list[tuple[dns.rrset.RRset, dns.rrset.RRset | None]]:
    signatures = {(r.name, r.covers): r for r in rrsets if r.rdtype == dns.rdatatype.RRSIG}
    return [(r, signatures.get((r.name, r.rdtype))) for r in rrsets if r.rdtype != dns.rdatatype.RRSIG]


def _match(zone: dns.name.Name, keys: dns.rrset.RRset, trusted: dns.rdataset.Rdataset, what: str) -> None:
    """Is any of the zone's keys among those that are trusted? Raises _Fault."""
    for record in trusted:
        for key in keys:
            if record.rdtype == dns.rdatatype.DNSKEY:
                if record == key:
                    return
                continue
            try:
                if dns.dnssec.make_ds(zone, key, record.digest_type, validating=True) == record:
                    return
            except (dns.exception.DeniedByPolicy, dns.exception.UnsupportedAlgorithm):
                continue
    tags = ", ".join(str(dns.dnssec.key_id(key)) for key in keys)
    raise _Fault("dnssec_key_mismatch", f"{what} fits none of the keys of {zone.to_text()} ({tags})")


def _digest(rrset: dns.rrset.RRset) -> tuple[object, ...]:
    return (rrset.rdtype, *sorted(rdata.to_digestable() for rdata in rrset))


def _time(moment: float) -> str:
    return f"{dt.datetime.fromtimestamp(moment, dt.UTC):%Y-%m-%d %H:%M} UTC"
