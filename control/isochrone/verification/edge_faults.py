"""Each kind of edge finding: how bad it is, what to do, and whose rule it is. The ids are stable: alerts rely on them."""

from __future__ import annotations

from dataclasses import dataclass

from isochrone.model import Severity


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of finding."""

    severity: Severity
    meaning: str
    advice: str
    source: str = ""


_ERROR, _WARNING, _INFO = Severity.ERROR, Severity.WARNING, Severity.INFO

#: kind -> what it is; the finding's id is edge.<kind>
FAULTS: dict[str, Fault] = {
    "not_checked": Fault(
        _INFO,
        "this host could not ask; nothing is said about the edge",
        "mend what the evidence says on the host that verifies; the edge itself is not in question",
    ),
    "no_secret": Fault(
        _INFO,
        "without the secret nothing can be compared with the edge's own decision",
        "put the Worker's ISOCHRONE_SECRET into the variable that edge.secret_env names",
    ),
    "unresolved": Fault(
        _ERROR, "the site's name has no address", "add its A and AAAA records", "RFC 1034 section 3.6"
    ),
    "unreachable": Fault(
        _ERROR,
        "the site does not answer",
        "see that the name leads to the edge, and that the zone is active",
        "RFC 9110 section 4.3",
    ),
    "certificate": Fault(
        _ERROR,
        "the edge's certificate is not good for the site",
        "renew it, or add the site to it",
        "RFC 9110 section 4.3.4",
    ),
    "status": Fault(
        _ERROR,
        "the site answers the health path with a status of 400 and more",
        "see the Worker's log for the reason; the path is verification.path",
        "RFC 9110 section 15",
    ),
    "no_worker": Fault(
        _ERROR,
        "the answer has not gone through the Worker: its Server-Timing is not there",
        "set the Worker's route to the site, and let nothing remove Server-Timing",
        "Server Timing section 3",
    ),
    "closed": Fault(
        _ERROR,
        "the edge's own endpoints stay closed to the secret",
        "make ISOCHRONE_SECRET of the Worker and the variable that edge.secret_env names the same",
    ),
    "no_map": Fault(
        _ERROR,
        "the edge has no map and steers by its built-in order",
        "publish a map, and see that the Worker's binding LATENCY_MAP is the namespace of the configuration",
    ),
    "kv_trouble": Fault(
        _ERROR,
        "the edge can't use what KV holds and keeps an older map",
        "see what the evidence says of the manifest or the map, and publish again",
    ),
    "old_map": Fault(
        _ERROR,
        "the edge still uses another map than the one published, longer than edge.lag_seconds",
        "see that the binding LATENCY_MAP is the namespace of the configuration, and MAP_REFRESH_SECONDS of the Worker",
    ),
    "stale_map": Fault(
        _WARNING,
        "the live map is older than twice publishing.refresh_seconds",
        "see whether the daemon runs, and why it publishes nothing: `isochrone status`",
    ),
    "variables": Fault(
        _WARNING,
        "variables of the Worker can't be used; their defaults are",
        "correct them in wrangler.toml (docs/EDGE.md)",
    ),
    "wrong_origin": Fault(
        _ERROR,
        "the edge forwards elsewhere than its decision endpoint says",
        "see that one version of the Worker is deployed, and what stands between it and the client",
    ),
    "wrong_region": Fault(
        _ERROR,
        "another region answers than the one that the edge asked",
        "point the regional name at its own region: no load balancer may stand between",
    ),
    "alt_svc_removed": Fault(
        _ERROR,
        "the Alt-Svc that the Worker sent does not arrive",
        "look for a rule that removes response fields (Cloudflare: Transform Rules), or a proxy before the edge",
        "RFC 7838 section 3",
    ),
    "alt_svc_replaced": Fault(
        _ERROR,
        "another Alt-Svc arrives in place of the Worker's",
        "turn HTTP/3 off for the zone (Cloudflare: Speed, Settings, Protocol): it puts its own in its place",
        "RFC 7838 section 3",
    ),
    "alt_svc_added": Fault(
        _WARNING,
        "an Alt-Svc arrives that the Worker did not send, alone or beside its own",
        "turn HTTP/3 off for the zone, and see that no rule adds the field",
        "RFC 7838 section 3",
    ),
    "https_protocol": Fault(
        _ERROR,
        "the site's HTTPS record offers a protocol that the edge does not speak",
        "take it out of alpn, or turn it on at the edge",
        "RFC 9460 section 7.1",
    ),
    "https_address": Fault(
        _ERROR,
        "the site's HTTPS record leads elsewhere than its addresses and its port",
        "let target, port and hints be those of the site itself",
        "RFC 9460 section 7.3",
    ),
    "clock_skew": Fault(
        _WARNING,
        "the clocks of the edge and of this host differ by more than edge.max_skew_seconds",
        "set this host's clock by NTP: ages of maps and `ma` are told by it",
        "RFC 9110 section 6.6.1",
    ),
}
