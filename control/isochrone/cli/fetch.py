"""`isochrone fetch`: the reference client, as a user's SDK should do it; and the tool to debug with."""

from __future__ import annotations

import asyncio
import hashlib
import json
import ssl
from typing import TYPE_CHECKING, Any

import click

from isochrone.cli import Failure, FiniteRange
from isochrone.cli.visible import visible
from isochrone.client.fetch import Client, Fetched, Region
from isochrone.client.routes import PROTOCOLS
from isochrone.client.url import BadUrl, Url

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from isochrone.settings import Settings

_FLAGS = {"http1": "http/1.1", "http2": "h2", "http3": "h3"}


@click.command("fetch")
@click.argument("url")
@click.option("--region", metavar="ID", help="Only this origin's regional endpoint; needs -c.")
@click.option("--http1", is_flag=True, help="Only HTTP/1.1. Several of the three may be given.")
@click.option("--http2", is_flag=True, help="Only HTTP/2.")
@click.option("--http3", is_flag=True, help="Only HTTP/3.")
@click.option(
    "--alt-svc", metavar="FILE", help="The Alt-Svc cache, in curl's format: made when it is not there."
)
@click.option(
    "--new-network",
    is_flag=True,
    help="The network has changed: forget what --alt-svc holds without persist.",
)
@click.option(
    "-c", "--config", metavar="FILE", help="The configuration: addresses, DNS servers, trust store."
)
@click.option("--cacert", metavar="FILE", help="PEM file of the authorities to trust, not the system's.")
@click.option(
    "--resolve", multiple=True, metavar="HOST:PORT:ADDRESS[,ADDRESS]", help="In place of DNS, as curl has it."
)
@click.option(
    "--timeout", type=FiniteRange(0.1, 600), default=10.0, show_default=True, help="Seconds for all of it."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def fetch_command(
    url: str,
    region: str | None,
    alt_svc: str | None,
    config: str | None,
    cacert: str | None,
    resolve: tuple[str, ...],
    timeout: float,
    *,
    new_network: bool,
    as_json: bool,
    **flags: bool,
) -> int:
    """GET a URL as a pinned client does, and tell which region answered, over what, and how long each phase took.

    The regional name is resolved ahead; the public host stays server name and authority wherever Alt-Svc leads. HTTP/3 is
    used when it is pinned or its HTTPS record offers it, with TCP to fall back on. Exit 1 without an answer, with a status
    of 400 and more, or when --region is answered by another.
    """
    from isochrone.cli.check import settings_of
    from isochrone.client.cache_file import CacheFile, CacheFileError

    try:
        wanted = Url.parse(url)
    except BadUrl as error:
        raise Failure(str(error)) from None
    settings = settings_of(config) if config is not None else None
    named = _region(region, settings, config)
    allowed = tuple(p for name, p in _FLAGS.items() if flags[name]) or PROTOCOLS
    cache = CacheFile(alt_svc) if alt_svc is not None else None
    if new_network and cache is None:
        raise Failure("--new-network needs --alt-svc FILE: without a cache there is nothing to forget")
    client = _client(settings, cacert, resolve, timeout)
    client.cache = cache
    try:
        if cache is not None:
            kept = cache.update(lambda c: c.network_changed()) if new_network else cache.read()
            for problem in kept.problems:
                click.echo(f"isochrone: {alt_svc}: {problem}", err=True)
        done = asyncio.run(client.fetch(wanted, allowed=allowed, region=named))
    except CacheFileError as error:
        raise Failure(f"--alt-svc: {error}") from None
    if as_json:
        click.echo(json.dumps(document(done), indent=2))
    else:
        _show(done, lambda line: click.echo(visible(line)))
    return _judged(done, named)


def _judged(done: Fetched, region: Region | None) -> int:
    response = done.response
    if response is None:
        problems = "; ".join(attempt.problem for attempt in done.attempts)
        raise Failure(f"{done.url} could not be fetched: {problems}", 1)
    if region is not None and done.region != region.id:
        who = f"by {done.region!r}" if done.region else "by somebody who does not say which region it is"
        raise Failure(f"{done.url} was answered {who}, not by {region.id!r}", 1)
    return 1 if response.status >= 400 else 0


def _region(region: str | None, settings: Settings | None, config: str | None) -> Region | None:
    from isochrone.verification.http3 import split_authority

    if region is None:
        return None
    if settings is None:
        raise Failure("--region needs -c FILE, which says where the region's endpoint is")
    origin = next((o for o in settings.origins if o.id == region), None)
    if origin is None:
        known = ", ".join(o.id for o in settings.origins)
        raise Failure(f"--region: {config} has no origin {region!r}; it has {known}")
    host, port = split_authority(origin.host)
    return Region(
        id=region, host=host, port=port, endpoint=split_authority(origin.alt_svc) if origin.alt_svc else None
    )


def _client(settings: Settings | None, cacert: str | None, resolve: Sequence[str], timeout: float) -> Client:
    from pathlib import Path

    from isochrone.client.names import Names, parse_resolve
    from isochrone.client.tcp import tls_context
    from isochrone.verification.certificates import TrustStore, TrustStoreError
    from isochrone.verification.dns_ask import tls_context as dns_context
    from isochrone.verification.http3 import split_authority

    try:
        given = dict(parse_resolve(text) for text in resolve)
    except ValueError as error:
        raise Failure(f"--resolve: {error}") from None
    names = Names(given=given)
    store, header = Path(cacert) if cacert is not None else None, "x-isochrone-region"
    if settings is not None:
        names.configured = {
            split_authority(authority)[0]: origin.addresses
            for origin in settings.origins
            if origin.addresses
            for authority in (origin.host, origin.alt_svc or origin.host)
        }
        names.servers, names.timeout = settings.dns.resolvers, settings.dns.timeout_seconds
        store = store or settings.verification.trust_store
        header = settings.verification.region_header.lower()
    where = "--cacert" if cacert is not None else "verification.trust_store"
    try:
        trust = TrustStore(store)
        tls_context(None if store is None else str(store), ["h2"])
        if settings is not None:
            names.tls = dns_context(settings.dns.trust_store)
    except TrustStoreError as error:
        raise Failure(f"{where}: {error}") from None
    except (OSError, ssl.SSLError):
        raise Failure(f"{where}: {store}: holds no certificates in PEM form") from None
    return Client(
        names=names,
        trust=trust,
        context=lambda alpn: tls_context(None if store is None else str(store), alpn),
        region_header=header,
        timeout=timeout,
    )


def document(done: Fetched) -> dict[str, Any]:
    """What `--json` prints."""
    response, route = done.response, done.route
    return {
        "url": str(done.url),
        "status": response.status if response else None,
        "protocol": done.protocol or None,
        "region": done.region or None,
        "route": route.kind.value if route else None,
        "endpoint": route.authority if route else None,
        "address": done.address or None,
        "resolved_by": done.resolved_by or None,
        "edge": done.edge,
        "alt_svc": {"received": done.alt_svc, "cache": done.learnt.value},
        "phases_ms": {name: round(ms, 3) for name, ms in done.phases.items()},
        "attempts": [
            {
                "route": a.route.kind.value,
                "protocols": list(a.route.protocols),
                "endpoint": a.route.authority,
                "problem": a.problem or None,
            }
            for a in done.attempts
        ],
        "headers": [list(pair) for pair in response.headers] if response else [],
        "body_bytes": len(response.body) if response else 0,
        "body_sha256": hashlib.sha256(response.body).hexdigest() if response else None,
    }


def _show(done: Fetched, say: Callable[[str], object]) -> None:
    response, route = done.response, done.route
    if response is None or route is None:
        return
    say(f"{done.url}: {response.status} from {done.region or 'an unnamed region'} over {done.protocol}")
    until = ""
    if route.entry is not None:
        from datetime import UTC, datetime

        until = f", pinned until {datetime.fromtimestamp(route.entry.expires, UTC):%Y-%m-%d %H:%M:%S} UTC"
    say(f"  route    {route.kind.value} {route.authority} ({done.address} by {done.resolved_by}){until}")
    if done.edge:
        say("  edge     " + ", ".join(f"{name} {value}" for name, value in done.edge.items()))
    if done.alt_svc is not None:
        say(f"  alt-svc  {done.alt_svc} ({done.learnt.value})")
    say(
        "  phases   " + ", ".join(f"{name.replace('_', ' ')} {ms:.1f} ms" for name, ms in done.phases.items())
    )
    say(f"  body     {len(response.body)} bytes")
    for attempt in done.attempts:
        if attempt.problem:
            say(f"  failed   {attempt.route.kind.value}: {attempt.problem}")
