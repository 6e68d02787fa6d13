"""Prometheus metrics, read from the daemon's state when they are asked for: nothing is counted twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from isochrone.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.metrics_core import Metric

    from isochrone.service.daemon import Daemon

_KV_COUNTERS = {
    "publishes": "Maps made live.",
    "unchanged": "Maps not published because nothing changed.",
    "refused": "Maps refused by the guard.",
    "held": "Maps not published because another writer's map is live.",
    "failures": "Failed attempts to use KV.",
    "damaged": "Times the live map or manifest was found damaged or gone.",
}


class DaemonCollector(Collector):
    """Turns the daemon's state into metrics."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def collect(self) -> Iterable[Metric]:
        """All families."""
        daemon = self._daemon
        now = daemon.clock()
        yield from self._jobs(now)
        samples = CounterMetricFamily(
            "isochrone_samples", "Probes by outcome, since the start.", labels=["outcome"]
        )
        for outcome, count in sorted(daemon.measuring.tally.outcomes.items()):
            samples.add_metric([outcome], count)
        yield samples
        yield CounterMetricFamily(
            "isochrone_probes_missed", "Probes planned and not made in time.", daemon.measuring.tally.missed
        )
        yield from self._targets(now)
        yield from self._agents(now)
        state = daemon.publisher.state
        for name, what in _KV_COUNTERS.items():
            yield CounterMetricFamily(f"isochrone_kv_{name}", what, getattr(state, name))
        kv = GaugeMetricFamily(
            "isochrone_kv_ok",
            "1 when KV answers and holds a good map of this controller.",
            int(state.state == "ok"),
        )
        yield kv
        live = daemon.publisher.live
        if live is not None:
            yield GaugeMetricFamily("isochrone_map_age_seconds", "Age of the live map.", now - live.built_at)
            yield GaugeMetricFamily("isochrone_map_bytes", "Size of the live map.", live.size)
            yield GaugeMetricFamily("isochrone_map_cells", "Cells of the live map.", live.cells)
            yield GaugeMetricFamily("isochrone_map_colours", "Colours of the live map.", live.colours)
        offered = GaugeMetricFamily(
            "isochrone_endpoint_offered", "1 when the endpoint is proved and offered.", labels=["origin"]
        )
        up = GaugeMetricFamily("isochrone_origin_up", "1 when the origin is not down.", labels=["origin"])
        for origin in daemon.verifying.origins:
            up.add_metric([origin.id], int(daemon.verifying.state(origin) != "down"))
            if origin.alt_svc is not None:
                offered.add_metric([origin.id], int(daemon.verifying.offered(origin)))
        doubted = CounterMetricFamily(
            "isochrone_checks_doubted", "Rounds whose silence was taken for our own.", labels=["job"]
        )
        for name, count in sorted(daemon.verifying.doubted.items()):
            doubted.add_metric([name], count)
        yield doubted
        found = GaugeMetricFamily(
            "isochrone_findings", "Findings of the last checks, by severity.", labels=["severity"]
        )
        current = [f.severity for findings in daemon.verifying.findings.values() for f in findings]
        for severity in Severity:
            found.add_metric([severity.value], current.count(severity))
        yield found
        yield offered
        yield up

    def _targets(self, now: float) -> Iterable[Metric]:
        told = self._daemon.choosing.document(now)
        targets = GaugeMetricFamily(
            "isochrone_targets", "Targets by what is done with them.", labels=["state"]
        )
        for state in ("active", "spare", "given_up", "refused"):
            targets.add_metric([state], told[state])
        yield targets
        yield GaugeMetricFamily("isochrone_target_asns", "ASNs that have targets.", told["asns"])
        age = GaugeMetricFamily(
            "isochrone_database_age_seconds", "Since the database in use was built.", labels=["database"]
        )
        good = GaugeMetricFamily(
            "isochrone_database_ok", "0 when a newer file could not be used.", labels=["database"]
        )
        for database in told["databases"]:
            age.add_metric([database["name"]], database["age_seconds"])
            good.add_metric([database["name"]], int(not database["problem"]))
        yield age
        yield good

    def _agents(self, now: float) -> Iterable[Metric]:
        agents = self._daemon.agents
        labels = ["origin"]
        age = GaugeMetricFamily(
            "isochrone_agent_age_seconds", "Since the agent's last good batch, or the start.", labels=labels
        )
        flagged = GaugeMetricFamily(
            "isochrone_agent_flagged", "1 when a batch was refused within the last hour.", labels=labels
        )
        batches = CounterMetricFamily("isochrone_agent_batches", "Batches stored.", labels=labels)
        repeats = CounterMetricFamily(
            "isochrone_agent_repeats", "Batches acknowledged again, stored before.", labels=labels
        )
        samples = CounterMetricFamily(
            "isochrone_agent_samples", "Samples stored, by outcome.", labels=["origin", "outcome"]
        )
        aside = CounterMetricFamily(
            "isochrone_agent_samples_set_aside", "Samples faster than light, not stored.", labels=labels
        )
        refused = CounterMetricFamily(
            "isochrone_agent_refused", "Batches refused, by reason.", labels=["origin", "code"]
        )
        for origin, standing in agents.standings.items():
            age.add_metric([origin], agents.age(origin, now))
            flagged.add_metric([origin], int(agents.state(origin, now) == "flagged"))
            batches.add_metric([origin], standing.batches)
            repeats.add_metric([origin], standing.repeats)
            aside.add_metric([origin], standing.set_aside)
            for outcome, count in sorted(standing.outcomes.items()):
                samples.add_metric([origin, outcome], count)
            for code, count in sorted(standing.refused.items()):
                refused.add_metric([origin, code], count)
        return [age, flagged, batches, repeats, samples, aside, refused]

    def _jobs(self, now: float) -> Iterable[Metric]:
        runs = CounterMetricFamily("isochrone_job_runs", "Runs begun.", labels=["job"])
        failures = CounterMetricFamily("isochrone_job_failures", "Runs ended by an error.", labels=["job"])
        deadlines = CounterMetricFamily(
            "isochrone_job_deadlines", "Runs stopped by their deadline.", labels=["job"]
        )
        age = GaugeMetricFamily(
            "isochrone_job_success_age_seconds", "Since the last good run.", labels=["job"]
        )
        seconds = GaugeMetricFamily(
            "isochrone_job_last_seconds", "How long the last run took.", labels=["job"]
        )
        for name, record in sorted(self._daemon.jobs.records.items()):
            runs.add_metric([name], record.runs)
            failures.add_metric([name], record.failures)
            deadlines.add_metric([name], record.deadlines)
            seconds.add_metric([name], record.last_seconds)
            age.add_metric([name], now - (record.last_success or self._daemon.started_at))
        return [runs, failures, deadlines, age, seconds]


def registry(daemon: Daemon) -> CollectorRegistry:
    """A registry of this daemon's own: two in one process must not meet."""
    found = CollectorRegistry(auto_describe=False)
    found.register(DaemonCollector(daemon))
    return found
