"""Each kind of http3 finding: how bad it is, what to do, and whose rule it is. The ids are stable: alerts rely on them."""

from __future__ import annotations

from dataclasses import dataclass

from isochrone.model import Severity


@dataclass(frozen=True, slots=True)
class Fault:
    """`advice` may hold {site}, {path} and {header}."""

    severity: Severity
    advice: str
    source: str = ""


_ERROR, _WARNING, _INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
_CHAIN = "RFC 9114 section 3.3, RFC 7838 section 2.1"

FAULTS: dict[str, Fault] = {
    "unresolved": Fault(
        _WARNING,
        "check the endpoint's name and this host's resolver; `isochrone verify dns` tells them apart",
    ),
    "not_checked": Fault(
        _INFO, "mend what the evidence says on the host that verifies; the endpoint itself is not in question"
    ),
    "unreachable": Fault(
        _ERROR,
        "open UDP on this port to the endpoint and see that its HTTP/3 server runs",
        "RFC 9114 section 3.1",
    ),
    "handshake": Fault(
        _ERROR, "see the HTTP/3 server's log for why it ends handshakes", "RFC 9001 section 4.8"
    ),
    "version": Fault(_ERROR, "enable QUIC version 1 on the server", "RFC 9000 section 6"),
    "alpn": Fault(_ERROR, "enable h3 for {site} on this listener", "RFC 9114 section 3.1"),
    "certificate_untrusted": Fault(
        _ERROR, "serve a certificate of a public authority with all its intermediates, leaf first", _CHAIN
    ),
    "certificate_self_signed": Fault(_ERROR, "serve a certificate of a public authority for {site}", _CHAIN),
    "certificate_name": Fault(
        _ERROR,
        "add {site} to the certificate: clients keep to the public host wherever Alt-Svc leads",
        _CHAIN,
    ),
    "certificate_expired": Fault(
        _ERROR, "renew it and see that the server loads the new one", "RFC 5280 section 4.1.2.5"
    ),
    "certificate_not_yet_valid": Fault(
        _ERROR, "check the clock of whoever issued it", "RFC 5280 section 4.1.2.5"
    ),
    "certificate_expiring": Fault(_WARNING, "renew it before clients refuse it", "RFC 5280 section 4.1.2.5"),
    "no_answer": Fault(
        _ERROR,
        "see why the server accepts connections but doesn't answer {path} for {site}",
        "RFC 9114 section 4.1",
    ),
    "closed": Fault(
        _ERROR, "see the HTTP/3 server's log for why it closes connections", "RFC 9114 section 5"
    ),
    "reset": Fault(
        _ERROR, "see the HTTP/3 server's log for why it refuses {path} for {site}", "RFC 9114 section 4.1.1"
    ),
    "status": Fault(
        _ERROR,
        "make {path} answer with a 2xx status for the host {site} on this endpoint",
        "RFC 9110 section 15",
    ),
    "no_region": Fault(_ERROR, "let the origin answer {path} with its id in the header field {header}"),
    "wrong_region": Fault(
        _ERROR, "point the endpoint's name at its own region: no load balancer may stand between"
    ),
}
