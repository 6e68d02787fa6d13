"""`isochrone demo`: the whole system on this machine, shown and judged."""

from __future__ import annotations

import asyncio
import contextlib
import time
import webbrowser
from typing import TYPE_CHECKING, Any

import aiohttp
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from isochrone.lab.drills import DrillError, Drills
from isochrone.lab.site import NAMESPACE, LabSite
from isochrone.lab.traffic import Traffic
from isochrone.lab.withdrawal import told
from isochrone.lab.world import load_world
from isochrone_edge.colour import facts_of
from isochrone_edge.latency_map import LatencyMap, MapError

if TYPE_CHECKING:
    from collections.abc import Callable

    from isochrone.lab.world import WorldClient

Report = dict[str, Any]


async def run_demo(*, seconds: float | None, browser: bool, console: Console) -> Report:
    """Run the drills, then go on until `seconds` since the start are over (None: until interrupted on a terminal).

    The report has `ok`, `problems` and the figures that README.md describes.
    """
    began = time.monotonic()
    site = LabSite(load_world())
    say = _Sayer(console)
    say("starting: 16 regions, 30 networks, the edge and the daemon, all on loopback")
    timeout = aiohttp.ClientTimeout(total=10)
    async with site, aiohttp.ClientSession(timeout=timeout) as session:
        traffic = Traffic(site, session)
        drills = Drills(site, traffic, say)
        screen = Screen(site, traffic, say)
        if browser:
            await asyncio.to_thread(webbrowser.open, site.daemon_url + "/")
        with screen.live(console):
            showing = asyncio.create_task(screen.refresh_for_ever())
            try:
                await drills.wait_for_map()
                drills.report["first_map_after_s"] = round(time.monotonic() - began, 1)
                await drills.judge()
                await drills.affinity()
                await drills.failover()
                await drills.withdrawal()
                if console.is_terminal:
                    say("all drills are done" if seconds else "all drills are done; Ctrl-C ends the demo")
                await _go_on(traffic, began, seconds, endless=console.is_terminal)
            except DrillError as error:
                drills.problems.append(str(error))
            except (KeyboardInterrupt, asyncio.CancelledError):
                if "withdrawal" not in drills.report:
                    drills.problems.append("interrupted before all drills were done")
            finally:
                showing.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await showing
        return await _report(site, traffic, drills)


async def _go_on(traffic: Traffic, began: float, seconds: float | None, *, endless: bool) -> None:
    while (seconds is None and endless) or (seconds is not None and time.monotonic() - began < seconds):
        traffic.site.check_alive()
        await traffic.round()
        await asyncio.sleep(1)


async def _report(site: LabSite, traffic: Traffic, drills: Drills) -> Report:
    live = await read_map(site, traffic.session)
    samples = 0
    with contextlib.suppress(aiohttp.ClientError, ValueError):
        async with traffic.session.get(site.daemon_url + "/status") as response:
            samples = (await response.json())["samples"]["stored"]
    if traffic.failed:
        drills.problems.append(f"{traffic.failed} requests failed; the first: {traffic.failures[0]}")
    if live is None:
        drills.problems.append("no map could be read from KV")
    return {
        "ok": not drills.problems,
        "asns": len(site.world.clients),
        "countries": len({c.country for c in site.world.clients}),
        "origins": len(site.world.origins),
        "samples": samples,
        "requests": traffic.requests,
        "failed_requests": traffic.failed,
        **{
            key: drills.report.get(key)
            for key in (
                "first_map_after_s", "mean_regret_ms", "wrong_choices", "alt_svc_offered", "alt_svc_followed_ok",
                "withdrawal", "offered_again", "edge_failover_s",
                "failover_s", "recovery_s",
            )
        },
        "map": live and {"version": live.version, "bytes": live.size, "colours": live.colours, "cells": live.cells},
        "problems": drills.problems,
    }  # fmt: skip


async def read_map(site: LabSite, session: aiohttp.ClientSession) -> LatencyMap | None:
    """The live map as KV holds it, or None."""
    base = f"{site.edge.kv_api}/storage/kv/namespaces/{NAMESPACE}/values/"
    try:
        async with session.get(base + "map%2Fcurrent") as response:
            key = (await response.json(content_type=None))["key"]
        async with session.get(base + key.replace("/", "%2F")) as response:
            return LatencyMap(await response.read())
    except (aiohttp.ClientError, ValueError, KeyError, TypeError, MapError):
        return None


class _Sayer:
    """Progress: a line each, with the seconds since the start; the screen shows the last one as its title."""

    def __init__(self, console: Console) -> None:
        self.console, self.text = console, ""
        self._began = time.monotonic()

    def __call__(self, text: str) -> None:
        self.text = text
        self.console.print(
            f"{time.monotonic() - self._began:5.1f} s  {text}", highlight=False, soft_wrap=True
        )


class Screen:
    """The live table: for each network what was chosen, believed and true."""

    def __init__(self, site: LabSite, traffic: Traffic, say: _Sayer) -> None:
        self.site, self.traffic, self.say = site, traffic, say
        self._map: LatencyMap | None = None
        self._live: Live | None = None
        self._console = Console()

    def live(self, console: Console) -> contextlib.AbstractContextManager[object]:
        """The context in which the table is shown; nothing where there is no terminal."""
        if not console.is_terminal:
            return contextlib.nullcontext()
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=False)
        return self._live

    async def refresh_for_ever(self) -> None:
        """Twice a second; the map is read anew when the answers name another."""
        while self._live is not None:
            versions = {a.map for a in self.traffic.last.values()} - {"", "none"}
            if versions and (self._map is None or self._map.version not in versions):
                self._map = await read_map(self.site, self.traffic.session) or self._map
            self._live.update(self.render(), refresh=True)
            await asyncio.sleep(0.5)
        await asyncio.Event().wait()

    def render(self) -> Group:
        """The table as it stands: as many networks as fit, those that lose most first."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("network", no_wrap=True)
        table.add_column("", no_wrap=True, overflow="ellipsis", max_width=14)
        table.add_column("chosen region", no_wrap=True, overflow="ellipsis")
        for name in ("believed", "true", "best", "lost ms"):
            table.add_column(name, justify="right", no_wrap=True, min_width=len(name))
        table.add_column("h3", no_wrap=True, min_width=6)
        clients = sorted(self.site.world.clients, key=self._lost, reverse=True)
        room = max(5, self._console.size.height - 6)
        for client in clients[:room]:
            table.add_row(*self._row(client))
        rest = [Text(f"and {len(clients) - room} more", style="dim")] if len(clients) > room else []
        head = Text(f"requests {self.traffic.requests}, failed {self.traffic.failed}", style="bold")
        return Group(Text(self.say.text), head, table, *rest)

    def _lost(self, client: WorldClient) -> float:
        answer = self.traffic.last.get(client.asn)
        return (
            self.traffic.regret_ms(answer) if answer is not None and answer.region else 1e9 if answer else 0.0
        )

    def _row(self, client: WorldClient) -> tuple[str | Text, ...]:
        name, place = f"AS{client.asn}", f"{client.country} {client.city}"
        answer = self.traffic.last.get(client.asn)
        if answer is None or not answer.region:
            return (name, place, Text("failed", style="red") if answer else "", "", "", "", "", "")
        lost = self.traffic.regret_ms(answer)
        true = self.site.world.true_rtt(client.asn, answer.region)
        return (
            name,
            place,
            answer.region,
            self._believed(client, answer.region),
            f"{true:.1f}",
            f"{true - lost:.1f}",
            Text(f"{lost:.1f}", style="green" if lost < 1 else "yellow"),
            "pinned" if answer.alt_svc else "-",
        )

    def _believed(self, client: WorldClient, region: str) -> str:
        if self._map is None:
            return "-"
        facts = facts_of(
            client.asn, client.country, client.colo, client.continent, client.latitude, client.longitude
        )
        _, colour = self._map.find(facts)
        return next((f"{c.rtt_ms:.1f}" for c in self._map.candidates(colour) if c.origin == region), "-")


def summary(report: Report, show: Callable[[str], None]) -> None:
    """The report for people."""
    show("")
    live = report["map"] or {}
    show(
        f"networks {report['asns']} in {report['countries']} countries, regions {report['origins']}, samples {report['samples']}"
    )
    show(f"requests {report['requests']}, failed {report['failed_requests']}")
    if report["mean_regret_ms"] is not None:
        show(
            f"choices: mean regret {report['mean_regret_ms']} ms against the replayed truth, {report['wrong_choices']} not the best"
        )
    if report["alt_svc_offered"] is not None:
        show(
            f"affinity: {report['alt_svc_followed_ok']} of {report['alt_svc_offered']} offered endpoints followed to the right region"
        )
    if report["withdrawal"] is not None:
        show(f"a broken endpoint was withdrawn at the edge after {told(report['withdrawal'])}")
    if report["offered_again"] is not None:
        show(f"mended, it was offered again after {told(report['offered_again'])}")
    if report["failover_s"] is not None:
        show(
            f"failover {report['edge_failover_s']} s at the edge, {report['failover_s']} s in the map, recovery {report['recovery_s']} s"
        )
    if report["first_map_after_s"] is not None:
        show(f"first map after {report['first_map_after_s']} s")
    if live:
        show(
            f"map {live['version']}: {live['bytes']} bytes, {live['colours']} colours, {live['cells']} cells"
        )
    for problem in report["problems"]:
        show(f"FAILED: {problem}")
    show("every drill passed" if report["ok"] else "a drill failed")
