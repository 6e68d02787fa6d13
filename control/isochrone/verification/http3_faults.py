"""Each kind of http3 finding: how bad it is, what to do, and whose rule it is. The ids are stable: alerts rely on them."""

from __future__ import annotations

from dataclasses import dataclass

from isochrone.model import Severity


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of finding. `advice` may hold {site}, {path}, {header} and {member}."""

    severity: Severity
    meaning: str
    advice: str
    source: str = ""
    deep: bool = False  # only the thorough check can see it


_ERROR, _WARNING, _INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
_CHAIN = "RFC 9114 section 3.3, RFC 7838 section 2.1"
_TIMES = "RFC 5280 section 4.1.2.5"

#: kind -> what it is; the finding's id is http3.<kind>
FAULTS: dict[str, Fault] = {
    # The verifier's own trouble
    "unresolved": Fault(
        _WARNING,
        "the endpoint's name could not be resolved here",
        "check the endpoint's name and this host's resolver; `isochrone verify dns` tells them apart",
    ),
    "not_checked": Fault(
        _INFO,
        "this host could not check; nothing is said about the endpoint",
        "mend what the evidence says on the host that verifies; the endpoint itself is not in question",
    ),
    # Whether anything answers
    "unreachable": Fault(
        _ERROR,
        "nothing answers, by UDP or by TCP",
        "open UDP on this port to the endpoint and see that its HTTP/3 server runs",
        "RFC 9114 section 3.1",
    ),
    "port_closed": Fault(
        _ERROR,
        "the host says that nobody listens on the UDP port",
        "start the HTTP/3 server, or let it listen on this address and port",
        "RFC 1122 section 4.1.3.1",
    ),
    "udp_blocked": Fault(
        _ERROR,
        "the port answers by TCP, but not by UDP",
        "open UDP on this port in firewalls and security groups, and let the server listen for QUIC there",
        "RFC 9114 section 3.1",
    ),
    "ipv6_unreachable": Fault(
        _ERROR,
        "the endpoint answers over IPv4, but not over IPv6",
        "let the server listen on IPv6 and open UDP there, or remove the AAAA records",
        "RFC 8305 section 1",
    ),
    "ipv4_unreachable": Fault(
        _ERROR,
        "the endpoint answers over IPv6, but not over IPv4",
        "let the server listen on IPv4 and open UDP there, or remove the A records",
        "RFC 8305 section 1",
    ),
    "address_unreachable": Fault(
        _ERROR,
        "one address does not answer while others of its family do",
        "mend the server at this address, or take the address out of DNS",
        "RFC 9114 section 3.1",
    ),
    # The handshake
    "no_quic": Fault(
        _ERROR,
        "what comes back is no QUIC packet for the connection",
        "see what listens on this UDP port: it is no QUIC server, or it resets what it should accept",
        "RFC 9000 section 5.2",
    ),
    "retry": Fault(
        _ERROR,
        "the server asks for a token by Retry, and then takes none",
        "see that all servers behind the address share the key of their Retry tokens",
        "RFC 9000 section 8.1.2",
    ),
    "handshake_timeout": Fault(
        _ERROR,
        "the server answers, but the handshake does not complete in time",
        "see the server's load, and whether packets of 1,200 bytes and more pass in both directions",
        "RFC 9000 section 14.1",
    ),
    "handshake": Fault(
        _ERROR,
        "the handshake is refused or not valid",
        "see the HTTP/3 server's log for why it ends handshakes",
        "RFC 9001 section 4.8",
    ),
    "version": Fault(
        _ERROR,
        "the server offers only QUIC versions that clients do not speak",
        "enable QUIC version 1 on the server",
        "RFC 9000 section 6",
    ),
    "alpn": Fault(
        _ERROR,
        "the server does not speak h3",
        "enable h3 for {site} on this listener",
        "RFC 9114 section 3.1",
    ),
    # The certificate
    "certificate_untrusted": Fault(
        _ERROR,
        "no trusted authority vouches for the certificate",
        "serve a certificate of a public authority with all its intermediates, leaf first",
        _CHAIN,
    ),
    "certificate_incomplete": Fault(
        _ERROR,
        "an intermediate certificate is missing from the chain",
        "serve the whole chain: the leaf first, then each intermediate (often a file called fullchain)",
        "RFC 8446 section 4.4.2",
    ),
    "certificate_self_signed": Fault(
        _ERROR,
        "the certificate is self-signed",
        "serve a certificate of a public authority for {site}",
        _CHAIN,
    ),
    "certificate_name": Fault(
        _ERROR,
        "the certificate is not for the public host",
        "add {site} to the certificate: clients keep to the public host wherever Alt-Svc leads",
        _CHAIN,
    ),
    "certificate_usage": Fault(
        _ERROR,
        "the certificate is not meant for servers",
        "issue it with the extended key usage serverAuth",
        "RFC 5280 section 4.2.1.12",
    ),
    "certificate_expired": Fault(
        _ERROR,
        "the certificate has expired",
        "renew it and see that the server loads the new one",
        _TIMES,
    ),
    "certificate_not_yet_valid": Fault(
        _ERROR,
        "the certificate is valid only later",
        "check the clock of whoever issued it",
        _TIMES,
    ),
    "certificate_expiring": Fault(
        _WARNING,
        "the certificate expires soon",
        "renew it before clients refuse it",
        _TIMES,
    ),
    # After the handshake
    "no_streams": Fault(
        _ERROR,
        "the server allows no requests at all on a connection",
        "let it allow at least 100 request streams at a time",
        "RFC 9114 section 6.1",
    ),
    "stateless_reset": Fault(
        _ERROR,
        "the server answers with stateless resets",
        "see whether it restarts, or whether a balancer in front sends packets of one connection to several servers",
        "RFC 9000 section 10.3",
    ),
    "closed": Fault(
        _ERROR,
        "the server closes the connection instead of answering",
        "see the HTTP/3 server's log for why it closes connections",
        "RFC 9114 section 5",
    ),
    "mute": Fault(
        _ERROR,
        "nothing at all comes after the handshake",
        "see that packets with short headers reach the server that made the handshake",
        "RFC 9000 section 5.2",
    ),
    "no_answer": Fault(
        _ERROR,
        "the server takes the request and does not answer it",
        "see why the server accepts connections but doesn't answer {path} for {site}",
        "RFC 9114 section 4.1",
    ),
    "goaway": Fault(
        _ERROR,
        "the server sends GOAWAY in place of an answer",
        "see whether it is shutting down, and take it out of the name's addresses until it is not",
        "RFC 9114 section 5.2",
    ),
    "draining": Fault(
        _WARNING,
        "the server answers, but sends GOAWAY on a fresh connection",
        "see whether it is shutting down, and take it out of the name's addresses until it is not",
        "RFC 9114 section 5.2",
    ),
    "reset": Fault(
        _ERROR,
        "the server resets the request",
        "see the HTTP/3 server's log for why it refuses {path} for {site}",
        "RFC 9114 section 4.1.1",
    ),
    "version_fallback": Fault(
        _ERROR,
        "the server wants the request over HTTP/1.1",
        "let it answer {path} for {site} over HTTP/3",
        "RFC 9114 section 8.1",
    ),
    "malformed": Fault(
        _ERROR,
        "the answer breaks the protocol",
        "update or replace the HTTP/3 server",
        "RFC 9114 section 4.1.2",
    ),
    # The answer
    "misdirected": Fault(
        _ERROR,
        "the endpoint does not serve the public host",
        "let the endpoint's server accept the host {site}",
        "RFC 9110 section 15.5.20",
    ),
    "server_error": Fault(
        _ERROR,
        "the answer has a 5xx status",
        "see why the service behind the endpoint fails: {path} must answer with a 2xx status",
        "RFC 9110 section 15.6",
    ),
    "status": Fault(
        _ERROR,
        "the answer has no 2xx status",
        "make {path} answer with a 2xx status for the host {site} on this endpoint",
        "RFC 9110 section 15",
    ),
    "no_region": Fault(
        _ERROR,
        "the answer does not say which region it comes from",
        "let the origin answer {path} with its id in the header field {header}",
    ),
    "document": Fault(
        _ERROR,
        "the health document cannot be read",
        "let {path} answer with a JSON object whose member {member} is the origin's id",
        "RFC 8259 section 2",
    ),
    "wrong_region": Fault(
        _ERROR,
        "another region answers",
        "point the endpoint's name at its own region: no load balancer may stand between",
    ),
    "alt_svc_back": Fault(
        _ERROR,
        "the endpoint's own Alt-Svc leads back to the public host",
        "remove Alt-Svc from the origin's answers: it takes clients away from their region",
        "RFC 7838 section 3",
    ),
    "alt_svc_elsewhere": Fault(
        _ERROR,
        "the endpoint's own Alt-Svc leads to another endpoint",
        "remove Alt-Svc from the origin's answers: it takes clients away from their region",
        "RFC 7838 section 3",
    ),
    "alt_svc_clear": Fault(
        _WARNING,
        "the endpoint tells clients to forget all alternatives",
        "remove Alt-Svc from the origin's answers: clients lose their region by it",
        "RFC 7838 section 3",
    ),
    "alt_svc_malformed": Fault(
        _WARNING,
        "the endpoint's own Alt-Svc breaks the format",
        "remove Alt-Svc from the origin's answers",
        "RFC 7838 section 3",
    ),
    # What only several connections show
    "region_alternates": Fault(
        _ERROR,
        "connections in a row are answered by different regions",
        "point the endpoint's name at its own region: no load balancer may stand between",
        deep=True,
    ),
    "unsteady": Fault(
        _ERROR,
        "some connections in a row fail and others do not",
        "see whether one of several servers behind the address is broken",
        deep=True,
    ),
    "packet_loss": Fault(
        _WARNING,
        "packets are lost on the way to the endpoint or back",
        "see the path, and whether something limits the rate of UDP",
        "RFC 9002 section 6",
        deep=True,
    ),
    "handshake_slow": Fault(
        _WARNING,
        "half of the handshakes take longer than verification.slow_ms",
        "see the server's load and its distance",
        deep=True,
    ),
    "slower_than_tcp": Fault(
        _WARNING,
        "QUIC's handshake takes far longer than TCP's and TLS's on the same path",
        "see whether something delays UDP, and whether the QUIC server has too little processor time",
        deep=True,
    ),
    "resumption": Fault(
        _WARNING,
        "the server gives session tickets and does not take them",
        "see that all servers behind the address share the keys of their tickets",
        "RFC 8446 section 2.2",
        deep=True,
    ),
    "no_tickets": Fault(
        _INFO,
        "the server gives no session tickets: each connection needs a full handshake",
        "enable session resumption if the server can",
        "RFC 8446 section 4.6.1",
        deep=True,
    ),
    "early_data": Fault(
        _WARNING,
        "the server offers 0-RTT and rejects it",
        "see that all servers behind the address agree on 0-RTT, or stop offering it",
        "RFC 9001 section 4.6.2",
        deep=True,
    ),
    "migration": Fault(
        _WARNING,
        "the connection does not survive a change of the client's port",
        "route QUIC by connection id, not by address and port",
        "RFC 9000 section 9",
        deep=True,
    ),
    "migration_disabled": Fault(
        _INFO,
        "the server forbids migration (disable_active_migration)",
        "allow it if the server and what stands in front of it can: clients on the move keep their connections",
        "RFC 9000 section 18.2",
        deep=True,
    ),
}
