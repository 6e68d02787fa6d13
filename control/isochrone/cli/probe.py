"""`isochrone probe`: how far away is this address, right now?"""

from __future__ import annotations

import asyncio
import json
import statistics
from typing import TYPE_CHECKING, Any, get_args

import click

from isochrone.checks import host_name, ip_address
from isochrone.cli import Failure, FiniteRange
from isochrone.model import Method, Outcome, Target
from isochrone.probing.methods import make
from isochrone.probing.prober import is_address

if TYPE_CHECKING:
    from collections.abc import Callable

    from isochrone.probing.prober import Prober, ProbeResult

_CURL_HTTP = {
    "http": "",
    "h1": "--http1.1 ",
    "h2": "--http2 ",
    "h3": "--http3-only ",
    "quic": "--http3-only ",
    "quic-vn": "--http3-only ",
}


@click.command("probe")
@click.argument("addresses", nargs=-1, required=True, metavar="ADDRESS...")
@click.option(
    "--method",
    type=click.Choice(get_args(Method)),
    default="quic",
    show_default=True,
    help="How to measure. quic: a handshake; quic-vn: one datagram; http: what the server picks of h2 and h1.",
)
@click.option(
    "--count", type=click.IntRange(1, 100_000), default=3, show_default=True, help="Probes to each address."
)
@click.option(
    "--interval", type=FiniteRange(0, 3600), default=0.2, show_default=True, help="Seconds between them."
)
@click.option(
    "--port", type=click.IntRange(1, 65_535), default=443, show_default=True, help="The port that answers."
)
@click.option(
    "--timeout",
    type=FiniteRange(0.01, 60),
    default=3.0,
    show_default=True,
    help="Seconds for one probe.",
)
@click.option("--source", metavar="ADDRESS", help="The address of this host to probe from.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def probe_command(
    addresses: tuple[str, ...],
    method: Method,
    count: int,
    interval: float,
    port: int,
    timeout: float,
    source: str | None,
    as_json: bool,
) -> int:
    """Measure round-trip times to addresses or host names. Exit 1 when no probe succeeded."""
    targets = [Target(_address(address), port, 0) for address in addresses]
    if source is not None:
        source = _source(source)
    prober = make(method)

    def tell(target: Target, result: ProbeResult) -> None:
        if not as_json:
            click.echo(_line(target, result))

    results = asyncio.run(_probe_all(prober, targets, count, interval, timeout, source, tell))
    summaries = [_summary(method, target, results[number], timeout) for number, target in enumerate(targets)]
    if as_json:
        probes = [
            _probe(target, result) for number, target in enumerate(targets) for result in results[number]
        ]
        click.echo(json.dumps({"method": method, "probes": probes, "summary": summaries}, indent=2))
    else:
        click.echo()
        for summary in summaries:
            click.echo(_summary_line(summary))
            click.echo(f"  compare: {summary['compare']}")
    return 0 if any(result.outcome is Outcome.OK for row in results for result in row) else 1


async def _probe_all(
    prober: Prober,
    targets: list[Target],
    count: int,
    interval: float,
    timeout: float,
    source: str | None,
    tell: Callable[[Target, ProbeResult], None],
) -> list[list[ProbeResult]]:
    """All addresses side by side, the probes of one after the other."""

    async def one(target: Target) -> list[ProbeResult]:
        results = []
        for number in range(count):
            if number:
                await asyncio.sleep(interval)
            results.append(await prober.run_once(target, source_address=source, timeout=timeout))
            tell(target, results[-1])
        return results

    return await asyncio.gather(*(one(target) for target in targets))


def _address(text: str) -> str:
    try:
        return ip_address(text) if is_address(text) else host_name(text)
    except ValueError as error:
        raise Failure(f"probe: {error}; give an IP address or a host name") from None


def _source(text: str) -> str:
    try:
        return ip_address(text)
    except ValueError as error:
        raise Failure(f"probe --source: {error}") from None


def _probe(target: Target, result: ProbeResult) -> dict[str, Any]:
    return {
        "target": target.address,
        "address": result.address,
        "port": target.port,
        "outcome": result.outcome.value,
        "rtt_ms": _rounded(result.rtt_ms),
        "phases": {name: _rounded(ms) for name, ms in result.phases.items()},
        "detail": result.detail,
    }


def _summary(method: Method, target: Target, results: list[ProbeResult], timeout: float) -> dict[str, Any]:
    times = [result.rtt_ms for result in results if result.rtt_ms is not None]
    command = _command(method, target, len(results), timeout)
    return {
        "target": target.address,
        "port": target.port,
        "sent": len(results),
        **{outcome.value: sum(result.outcome is outcome for result in results) for outcome in Outcome},
        "min_ms": _rounded(min(times)) if times else None,
        "median_ms": _rounded(statistics.median(times)) if times else None,
        "compare": command,
        **({"curl": command} if method in _CURL_HTTP else {}),
    }


def _command(method: Method, target: Target, count: int, timeout: float) -> str:
    """The same check by a tool that everybody has, or the nearest to it."""
    if method == "icmp":
        return f"ping -n -c {count} -W {timeout:g} {target.address}"
    if method == "tcp":
        return f"nc -v -z -w {max(1, round(timeout))} {target.address} {target.port}"
    host = f"[{target.address}]" if ":" in target.address else target.address
    scheme = "http" if target.port == 80 and not _CURL_HTTP[method].startswith("--http3") else "https"
    # curl counts each time from the start, where ours are from the end of the phase before.
    return (
        f"curl {_CURL_HTTP[method]}--insecure --silent --output /dev/null --connect-timeout {timeout:g} "
        "--write-out 'DNS %{time_namelookup} s, connect %{time_connect} s, TLS %{time_appconnect} s, "
        f"first byte %{{time_starttransfer}} s\\n' {scheme}://{host}:{target.port}/"
    )


def _line(target: Target, result: ProbeResult) -> str:
    name = (
        target.address if result.address in {"", target.address} else f"{target.address} ({result.address})"
    )
    phases = ", ".join(f"{phase} {ms:.2f} ms" for phase, ms in result.phases.items())
    if result.rtt_ms is not None:
        told = ", ".join(part for part in (phases, result.detail) if part)
        return f"{name}: {result.rtt_ms:.2f} ms" + (f" ({told})" if told else "")
    return f"{name}: {result.outcome.value}: {result.detail}" + (f" ({phases})" if phases else "")


def _summary_line(summary: dict[str, Any]) -> str:
    counts = f"{summary['target']}: {summary['ok']} of {summary['sent']} ok"
    if summary["prober_failed"]:
        counts += f", {summary['prober_failed']} not made (this host's trouble)"
    if summary["min_ms"] is None:
        return counts
    return f"{counts}, min {summary['min_ms']:.2f} ms, median {summary['median_ms']:.2f} ms"


def _rounded(ms: float | None) -> float | None:
    return None if ms is None else round(ms, 3)
