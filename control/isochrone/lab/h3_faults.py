"""Every kind of fault of an HTTP/3 endpoint, as real servers that have it, and the finding that each must give. docs/FINDINGS.md lists them."""

from __future__ import annotations

import datetime as dt
import socket
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from isochrone.lab.h3_endpoint import Manner, endpoint
from isochrone.lab.h3_tcp import tcp_side
from isochrone.lab.h3_wire import (
    Delay,
    Instead,
    LoseFirst,
    Mute,
    NewRetryKey,
    OneAnswer,
    ResetAll,
    StrangersLost,
    StrangersReset,
    noise,
    old_versions,
    retry_for_ever,
)
from isochrone.model import AltSvcEndpoint, Origin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from isochrone.lab.h3_certificates import Chains

SITE = "www.isochrone.test"
HOST = "fra.origins.isochrone.test"
REGION = "fra-1"
IPV4, SECOND_IPV4, IPV6 = "127.0.0.1", "127.0.0.2", "::1"
QUICK = {"timeout_seconds": 1.0}  # where a fault is silence, nobody wants to wait long for it
TRIES = 50

Listen = Literal["quic", "hole", "nothing"]


@dataclass(frozen=True, slots=True)
class Place:
    """What is at one address: a QUIC server, a hole that takes everything and says nothing, or nothing; and TCP beside it."""

    manner: Manner = field(default_factory=Manner)
    listen: Listen = "quic"
    tcp: bool = True
    leaf: Mapping[str, Any] = field(default_factory=dict)  # arguments of Chains.leaf
    names: tuple[str, ...] = (SITE,)


@dataclass(frozen=True, slots=True)
class H3Fault:
    """One kind of fault. `finding` is the kind of http3_faults.FAULTS that it gives at `places`, and no other; "": none."""

    name: str
    finding: str
    places: Mapping[str, Place]  # by address
    settings: Mapping[str, Any] = field(default_factory=dict)  # of [verification]

    def __str__(self) -> str:
        return self.name


def _manner(name: str, finding: str, settings: Mapping[str, Any] | None = None, /, **manner: Any) -> H3Fault:
    return H3Fault(name, finding, {IPV4: Place(Manner(**manner))}, settings or {})


def _silent(name: str, finding: str, /, **place: Any) -> H3Fault:
    return H3Fault(name, finding, {IPV4: Place(**place)}, QUICK)


def _leaf(name: str, finding: str, /, *names: str, **leaf: Any) -> H3Fault:
    return H3Fault(name, finding, {IPV4: Place(leaf=leaf, names=names or (SITE,))})


def _instead(name: str, finding: str, reply: Any) -> H3Fault:
    return _manner(name, finding, QUICK, wire=partial(Instead, reply))


GOOD, NOTHING, HOLE = Place(), Place(listen="nothing", tcp=False), Place(listen="hole", tcp=False)
_DAY = dt.timedelta(days=1)
_SLOW, _LOSS = {"slow_ms": 300.0}, {"connections": 3, "slow_ms": 60_000.0}

FAULTS: tuple[H3Fault, ...] = (
    # Whether anything answers
    _silent("nothing answers, by UDP or TCP", "unreachable", listen="hole", tcp=False),
    _silent("UDP is blocked, TCP is not", "udp_blocked", listen="hole"),
    _silent("TCP listens, UDP does not", "udp_blocked", listen="nothing"),
    _silent("nobody listens", "port_closed", listen="nothing", tcp=False),
    H3Fault("an answer only on IPv4: silence on IPv6", "ipv6_unreachable", {IPV4: GOOD, IPV6: HOLE}, QUICK),
    H3Fault("an answer only on IPv4: closed on IPv6", "ipv6_unreachable", {IPV4: GOOD, IPV6: NOTHING}),
    H3Fault("an answer only on IPv6", "ipv4_unreachable", {IPV4: NOTHING, IPV6: GOOD}),
    H3Fault("one dead address among good ones", "address_unreachable", {IPV4: GOOD, SECOND_IPV4: NOTHING}),
    # The handshake
    _instead("bytes that are no QUIC; stateless resets to every packet", "no_quic", noise),
    _instead("Retry without end", "retry", retry_for_ever),
    _manner("Retry, and the token refused", "retry", retry=True, wire=NewRetryKey),
    _manner("all but the first of the server's packets are lost", "handshake_timeout", QUICK, wire=OneAnswer),
    _manner("the handshake is refused", "handshake", acts=("refuse",)),
    _instead("only old versions of QUIC", "version", old_versions),
    _manner("no ALPN h3", "alpn", alpn=("hq-interop",)),
    # The certificate
    _leaf("a certificate of an unknown authority", "certificate_untrusted", kind="foreign"),
    _leaf("a self-signed certificate", "certificate_self_signed", kind="self_signed"),
    _leaf("a chain without its intermediate", "certificate_incomplete", kind="incomplete"),
    _leaf("a certificate for the regional name only", "certificate_name", HOST),
    _leaf("a certificate for clients", "certificate_usage", kind="client"),
    _leaf("an expired certificate", "certificate_expired", left=-_DAY),
    _leaf("a certificate of tomorrow", "certificate_not_yet_valid", kind="late"),
    _leaf("a certificate that expires in three days", "certificate_expiring", left=3 * _DAY),
    # After the handshake
    _manner("no request is allowed", "no_streams", QUICK, streams=0),
    _manner("stateless resets after the handshake", "stateless_reset", wire=ResetAll),
    _manner("closed right after the handshake", "closed", acts=("close_at_once",)),
    _manner("closed by the request", "closed", acts=("close",)),
    _manner("silence after the handshake", "mute", QUICK, wire=Mute),
    _manner("no answer to the request", "no_answer", QUICK, acts=("silent",)),
    _manner("half an answer", "no_answer", QUICK, acts=("half",)),
    _manner("GOAWAY at once", "goaway", acts=("goaway",)),
    _manner("GOAWAY beside the answer", "draining", acts=("drain",)),
    _manner("the stream is reset", "reset", acts=("reset",)),
    _manner("the request is rejected", "reset", acts=("reject",)),
    _manner("HTTP/1.1 is asked for", "version_fallback", acts=("fall_back",)),
    _manner("an answer shorter than its length", "malformed", acts=("cut",)),
    # The answer
    _manner("421: another authority", "misdirected", status=421),
    _manner("status 503", "server_error", status=503),
    _manner("status 404", "status", status=404),
    _manner("no region in the answer", "no_region", regions=("",)),
    _manner("the wrong region", "wrong_region", regions=("ams-1",)),
    H3Fault(
        "the wrong region at one address among good ones", "wrong_region",
        {IPV4: GOOD, SECOND_IPV4: Place(Manner(regions=("ams-1",)))},
    ),
    _manner("a garbled health document", "document", {"region_member": "region"}, body=b'{"region": "fra'),
    _manner("a health document without the region", "document", {"region_member": "region"}, body=b'{"status": "ok"}'),
    _manner(
        "the wrong region in the health document", "wrong_region", {"region_member": "region"}, body=b'{"region": "ams-1"}'
    ),
    _manner("Alt-Svc back to the balancer", "alt_svc_back", fields=(("alt-svc", 'h3=":443"; ma=86400'),)),
    _manner(
        "Alt-Svc to another region", "alt_svc_elsewhere", fields=(("alt-svc", 'h3="ams.origins.isochrone.test:443"'),)
    ),
    _manner("Alt-Svc: clear", "alt_svc_clear", fields=(("alt-svc", "clear"),)),
    _manner("a broken Alt-Svc", "alt_svc_malformed", fields=(("alt-svc", "h3=:443"),)),
    # What only several connections show
    _manner("regions in turn", "region_alternates", regions=(REGION, "ams-1")),
    _manner("every other connection is closed", "unsteady", acts=("answer", "close")),
    _manner("the first packet of each connection is lost", "packet_loss", _LOSS, wire=LoseFirst),
    H3Fault(
        "slow handshakes", "handshake_slow", {IPV4: Place(Manner(wire=partial(Delay, 0.4)), tcp=False)}, _SLOW
    ),
    _manner("UDP is delayed, TCP is not", "slower_than_tcp", {"slow_ms": 2000.0}, wire=partial(Delay, 0.5)),
    _manner("tickets that are not taken", "resumption", tickets="forgotten"),
    _manner("no tickets", "no_tickets", tickets="none"),
    _manner("0-RTT offered and rejected", "early_data", tickets="no_early_data"),
    _manner("migration: lost", "migration", wire=StrangersLost),
    _manner("migration: reset", "migration", wire=StrangersReset),
    _manner("migration forbidden", "migration_disabled", migration=False),
)  # fmt: skip

#: What may look wrong and is not.
HARMLESS: tuple[H3Fault, ...] = (
    H3Fault("both families", "", {IPV4: GOOD, IPV6: GOOD}),
    H3Fault("no TCP at all", "", {IPV4: Place(tcp=False)}),
    _manner("Retry", "", retry=True),
    _manner("the region in the health document", "", {"region_member": "region"}, regions=("",), body=b'{"region": "fra-1"}'),
    _manner("Alt-Svc to itself", "", fields=(("alt-svc", f'h3="{HOST}:%port%"; ma=60'),)),
)  # fmt: skip


@asynccontextmanager
async def inject(
    fault: H3Fault, chains: Chains, region: str = REGION, host: str = HOST
) -> AsyncIterator[Origin]:
    """Real servers with the fault, on one port of all its addresses; the origin whose endpoint they are. Raises OSError."""
    async with AsyncExitStack() as stack:
        sockets, port = _bind(fault.places)
        for opened in sockets.values():
            stack.callback(opened.close)
        for address, place in fault.places.items():
            pem = chains.leaf(*place.names, **place.leaf)
            if place.listen == "quic":
                await stack.enter_async_context(
                    endpoint(sockets[address, "udp"], pem, _for_port(place.manner, port))
                )
            if place.tcp:
                await stack.enter_async_context(tcp_side(sockets[address, "tcp"], pem))
        yield Origin(
            id=region, host=host, latitude=50.1, longitude=8.7, addresses=tuple(fault.places),
            alt_svc=AltSvcEndpoint(f"{host}:{port}", 300),
        )  # fmt: skip


def _for_port(manner: Manner, port: int) -> Manner:
    fields = tuple((name, value.replace("%port%", str(port))) for name, value in manner.fields)
    return replace(manner, fields=fields)


def _bind(places: Mapping[str, Place]) -> tuple[dict[tuple[str, str], socket.socket], int]:
    """Sockets for all that listens, on one port that is free for all of it, and where nobody listens it stays free."""
    for _ in range(TRIES):
        opened: dict[tuple[str, str], socket.socket] = {}
        unused: list[socket.socket] = []
        port = 0
        try:
            for address, place in places.items():
                for kind in ("udp", "tcp"):
                    sock = _socket(address, kind, port)
                    port = sock.getsockname()[1]
                    if place.listen != "nothing" if kind == "udp" else place.tcp:
                        opened[address, kind] = sock
                    else:
                        unused.append(sock)
        except OSError:
            for sock in (*opened.values(), *unused):
                sock.close()
            continue
        for sock in unused:
            sock.close()
        return opened, port
    raise OSError(f"no port is free on all of {', '.join(places)}")


def _socket(address: str, kind: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        if family is socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((address, port))
    except OSError:
        sock.close()
        raise
    return sock
