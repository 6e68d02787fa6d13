"""Each kind of dns finding: how bad it is, what to do, and whose rule it is. The ids are stable: alerts rely on them.

`broken` says that clients are led astray whichever server they ask: then the promise is withdrawn. The trouble of a single server
is told as loudly, but others still answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from isochrone.model import Finding, Severity


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of finding."""

    severity: Severity
    meaning: str
    advice: str
    source: str = ""
    broken: bool = False


_ERROR, _WARNING, _INFO = Severity.ERROR, Severity.WARNING, Severity.INFO


def _error(meaning: str, advice: str, source: str = "", *, broken: bool = False) -> Fault:
    return Fault(_ERROR, meaning, advice, source, broken)


def _warning(meaning: str, advice: str, source: str = "") -> Fault:
    return Fault(_WARNING, meaning, advice, source)


_STEER = "RFC 7871 section 11.3"
_SVCB = "RFC 9460 section"

#: kind -> what it is; the finding's id is dns.<kind>
FAULTS: dict[str, Fault] = {
    # What a server does, or does not
    "silent": _error(
        "a server does not answer in time",
        "see that it runs and that port 53 (853, 443) reaches it; take it out of the NS records if it is gone",
        "RFC 1035 section 4.2.1",
    ),
    "unreachable": _error(
        "a server refuses or drops the connection",
        "start it, or take it out of the NS records",
        "RFC 1034 section 4.1",
    ),
    "mismatch": _error(
        "answers carry another id or question than was asked",
        "look for a broken server or middlebox, or for somebody who forges answers",
        "RFC 5452 section 9.1",
    ),
    "malformed": _error("what comes back is no DNS message", "mend or replace the server", "RFC 1035 section 4.1"),
    "servfail": _error(
        "a server answers SERVFAIL",
        "see its log; at a resolver, DNSSEC validation is the usual reason",
        "RFC 1035 section 4.1.1",
    ),
    "refused": _error(
        "a server answers REFUSED",
        "load the zone on it, or let it serve those who ask",
        "RFC 1035 section 4.1.1",
    ),
    "rcode": _error("a server answers with another error code", "see its log", "RFC 1035 section 4.1.1"),
    "lame": _error(
        "a server that should know the zone does not answer with authority",
        "load the zone on it, or take it out of the NS records",
        "RFC 9499 section 7",
    ),
    "no_recursion": _error(
        "a configured resolver does not resolve", "name a resolver that serves this host", "RFC 1035 section 4.1.1"
    ),
    "truncated": _error(
        "an answer is truncated and can't be had by TCP either",
        "let TCP port 53 through to the server, or make the answer smaller",
        "RFC 7766 section 5",
    ),
    "no_tcp": _warning(
        "an authoritative server answers by UDP only", "let TCP port 53 through to the server", "RFC 7766 section 5"
    ),
    "no_edns": _warning(
        "a server answers only without EDNS", "update the server: no client subnet, no DNSSEC without it", "RFC 6891 section 7"
    ),
    "slow": _warning(
        "half of a server's answers take longer than dns.slow_ms", "see the server's load and its distance"
    ),
    "tls": _error(
        "DNS over TLS or HTTPS: the handshake fails", "see the server's TLS configuration", "RFC 7858 section 3.1"
    ),
    "certificate": _error(
        "DNS over TLS or HTTPS: the certificate is not good for the server's name",
        "renew the certificate, or name its authority in dns.trust_store",
        "RFC 8310 section 8.1",
    ),
    "doh": _error("DNS over HTTPS: no valid HTTP answer", "see path and log of the server", "RFC 8484 section 4.2.1"),
    "no_authority": _warning(
        "no name server of the zone can be found",
        "add NS records, or name the servers in dns.authoritative",
        "RFC 1034 section 4.2.1",
    ),
    "not_checked": Fault(
        _INFO,
        "this host could not ask; nothing is said about the name",
        "mend what the evidence says on the host that verifies; the name itself is not in question",
    ),
    # Where the name leads
    "nxdomain": _error("the name does not exist", "add its records", "RFC 1035 section 4.1.1", broken=True),
    "nxdomain_mixed": _error(
        "NXDOMAIN for one type of record, though the name has others: resolvers then drop the whole name",
        "let the server answer NOERROR without records",
        "RFC 8020 section 2",
        broken=True,
    ),
    "no_address": _error("the name has no addresses", "add its A and AAAA records", "RFC 1034 section 3.6", broken=True),
    "other_region": _error(
        "the name leads to another region's address", "put this origin's own addresses in its records", broken=True
    ),
    "wrong_address": _error(
        "none of the answers is an address of the origin",
        "correct the records, or `addresses` of the origin if it has moved",
        broken=True,
    ),
    "extra_address": _error(
        "an address that is not the origin's stands among right ones",
        "remove the address, or add it to `addresses` of the origin",
        broken=True,
    ),
    "missing_address": _warning(
        "an address of the origin is missing from the answers",
        "add the record, or take the address out of `addresses` of the origin",
    ),
    "wrong_asn": _error(
        "an address lies in another network (ASN) than the origin's `asn`",
        "correct the record or `asn`; see that the ASN database is fresh",
        broken=True,
    ),
    "wrong_country": _warning(
        "an address lies in another country than the origin's `country`",
        "correct the record or `country`; see that the country database is fresh",
    ),
    "balancer": _error(
        "the name leads into a global load balancer, which chooses the region itself",
        "give the region's own addresses: the balancer is what pinning takes out of the way",
        broken=True,
    ),
    "cname_loop": _error("the CNAMEs go in a circle or are too many", "end the chain at addresses", "RFC 1034 section 3.6.2", broken=True),
    "servers_disagree": _error(
        "servers give different answers",
        "see that all servers have the zone's newest version; a resolver may be behind by the old TTL",
        "RFC 1034 section 4.3.5",
        broken=True,
    ),
    "unstable": _error(
        "the same server gives different answers to the same question",
        "give one answer to all: a regional name must not rotate between addresses",
        broken=True,
    ),
    "subnet_steered": _error(
        "the answer depends on the client's network",
        "take the regional name out of geographic or latency routing: the edge has chosen already",
        _STEER,
        broken=True,
    ),
    "ttl_low": _warning(
        "the time to live is too short for pre-resolution (dns.ttl_min_seconds)", "raise it", "RFC 2181 section 8"
    ),
    "ttl_high": _warning(
        "the time to live is so long that a change reaches nobody (dns.ttl_max_seconds)",
        "lower it",
        "RFC 2181 section 8",
    ),
    # DNSSEC
    "dnssec_bogus": _error(
        "a signature does not fit the record or the keys", "sign the zone again with its present keys", "RFC 4035 section 5.3", broken=True
    ),
    "dnssec_expired": _error(
        "the signatures have expired", "sign the zone again and see why it was not done in time", "RFC 4035 section 5.3.1", broken=True
    ),
    "dnssec_not_yet_valid": _error(
        "the signatures are valid only later", "check the clock of the signer", "RFC 4035 section 5.3.1", broken=True
    ),
    "dnssec_expiring": _warning("the signatures expire soon", "see that the zone is signed again in time", "RFC 6781 section 4.4.2"),
    "dnssec_unsigned": _error(
        "the parent or the trust anchor says that the zone is signed, but the answer is not",
        "sign the zone, or remove its DS record",
        "RFC 4035 section 5.2",
        broken=True,
    ),
    "dnssec_no_chain": _warning(
        "the zone is signed, but no DS record leads to it from the trust anchor",
        "publish the zone's DS record at its parent",
        "RFC 4035 section 5.2",
    ),
    "dnssec_key_mismatch": _error(
        "the DS record or trust anchor fits none of the zone's keys",
        "publish the DS record of the present key, or correct dns.trust_anchor",
        "RFC 4035 section 5.2",
        broken=True,
    ),
    # HTTPS records
    "https_missing": _warning(
        "the affinity endpoint's name has no HTTPS record",
        'add one, e.g. `1 . alpn="h3,h2"`: clients then use HTTP/3 at once and keep to the region without Alt-Svc',
        f"{_SVCB} 9",
    ),
    "https_malformed": _error(
        "an HTTPS record breaks the format: clients ignore it, and perhaps all of them", "write the record anew", f"{_SVCB} 2.2"
    ),
    "https_no_h3": _error("no HTTPS record offers h3", 'add h3 to alpn, e.g. alpn="h3,h2"', f"{_SVCB} 7.1"),
    "https_no_default_alpn": _error(
        "no-default-alpn without alpn offers no protocol", "add alpn, or remove no-default-alpn", f"{_SVCB} 7.1.1"
    ),
    "https_port": _error("the port differs from the one that Alt-Svc promises", "make both the same", f"{_SVCB} 7.2", broken=True),
    "https_target": _error(
        "the target is another host than Alt-Svc promises, with other addresses", "let the target be the endpoint's own name or `.`", f"{_SVCB} 2.4.3", broken=True
    ),
    "https_hints": _error(
        "an address hint is none of the target's addresses", "update or remove ipv4hint and ipv6hint", f"{_SVCB} 7.3", broken=True
    ),
    "https_mandatory": _error(
        "a parameter is mandatory that clients do not understand: they ignore the record", "take the key out of mandatory", f"{_SVCB} 8"
    ),
    "https_alias_loop": _error("AliasMode records go in a circle or are too many", "end the chain at a ServiceMode record", f"{_SVCB} 2.4.2", broken=True),
    "https_alias_dangling": _error(
        "an AliasMode record leads to a name without addresses", "correct the alias, or add records to its target", f"{_SVCB} 3", broken=True
    ),
    "https_alias_none": _error(
        "an AliasMode record with the target `.` says that the service does not exist", "name a target", f"{_SVCB} 2.5.1", broken=True
    ),
    "https_alias_mixed": _warning(
        "AliasMode and ServiceMode records stand together: clients ignore the latter", "keep one kind", f"{_SVCB} 2.4.1"
    ),
    "https_alias_params": _warning("an AliasMode record has parameters, which clients ignore", "remove them, or set a priority above 0", f"{_SVCB} 2.4.2"),
}  # fmt: skip


def found(kind: str, subject: str, evidence: str, **details: str) -> Finding:
    """The finding of a kind. `details` say where: origin, name, server."""
    fault = FAULTS[kind]
    return Finding(
        check=f"dns.{kind}",
        subject=subject,
        severity=fault.severity,
        evidence=evidence,
        advice=fault.advice,
        source=fault.source,
        details=details,
    )


def is_broken(finding: Finding) -> bool:
    """Whether the finding withdraws the promise by itself."""
    return FAULTS[finding.check.removeprefix("dns.")].broken
