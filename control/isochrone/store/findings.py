"""The history of findings: each from when it was first seen to when it was seen last, bounded. Raises StoreError and nothing else.

One row is one stretch of time in which a check saw the same about the same subject, round after round. When a round that says
something does not see it any more, it has ended; when it comes back, that is another row.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isochrone.model import Finding, Severity

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from isochrone.store.engine import Engine

ROWS = 10_000  # of ended ones; those seen last are kept
EVIDENCE_CHARACTERS = 2_000

_COLUMNS = "job, origin, check_id, subject, severity, evidence, advice, source, details, first_seen, last_seen, seen, ended_at"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A finding and its time. Times are Unix seconds."""

    job: str  # the kind of check: health, http3, dns
    origin: str  # its id
    finding: Finding  # as seen last
    first_seen: float
    last_seen: float
    count: int  # rounds in which it was seen
    ended_at: float | None  # when a round did not see it any more; None: it is open

    def document(self) -> dict[str, Any]:
        """For JSON."""
        f = self.finding
        return {
            "origin": self.origin, "job": self.job, "check": f.check, "subject": f.subject, "severity": f.severity.value,
            "evidence": f.evidence, "advice": f.advice, "source": f.source, "details": f.details,
            "first_seen": self.first_seen, "last_seen": self.last_seen, "count": self.count, "ended_at": self.ended_at,
        }  # fmt: skip


def record(
    store: Engine, job: str, seen: Mapping[str, Iterable[Finding]], heard: Collection[str], *, now: float
) -> bool:
    """Keep what one round saw. Returns whether any finding of this kind of check is open now.

    Args:
        store: where to.
        job: the kind of check.
        seen: by origin, its findings; the same finding with several pieces of evidence counts once.
        heard: origins of which the round said something: what it did not see of them any more has ended.
        now: Unix seconds.
    """
    with store.transaction() as connection:
        rows = connection.execute(
            "SELECT id, origin, check_id, subject FROM finding_history WHERE job = ? AND ended_at IS NULL",
            (job,),
        )
        open_ones = {(origin, check, subject): row for row, origin, check, subject in rows}
        for origin, findings in seen.items():
            for finding in _merged(findings):
                row = open_ones.pop((origin, finding.check, finding.subject), None)
                _keep(connection, job, origin, finding, row, now)
        gone = [(now, row) for (origin, _, _), row in open_ones.items() if origin in heard]
        connection.executemany("UPDATE finding_history SET ended_at = ? WHERE id = ?", gone)
        _bound(connection)
        return job in _open_jobs(connection)


def end_others(store: Engine, known: Collection[tuple[str, str]], *, now: float) -> set[str]:
    """End what is open of (job, origin) that are not checked any more. Returns the kinds of check that have open ones still."""
    with store.transaction() as connection:
        rows = connection.execute(
            "SELECT id, job, origin FROM finding_history WHERE ended_at IS NULL"
        ).fetchall()
        gone = [(now, row) for row, job, origin in rows if (job, origin) not in known]
        connection.executemany("UPDATE finding_history SET ended_at = ? WHERE id = ?", gone)
        return _open_jobs(connection)


def history(
    store: Engine, *, only_open: bool = False, origin: str = "", check: str = "", limit: int = 1_000
) -> list[Seen]:
    """At most `limit` findings, those seen last first; of one origin or one check (its id) only, where given."""
    wanted = ["1 = 1"]
    values: list[Any] = []
    if only_open:
        wanted.append("ended_at IS NULL")
    for column, value in (("origin", origin), ("check_id", check)):
        if value:
            wanted.append(f"{column} = ?")
            values.append(value)
    with store.reader() as connection:
        rows = connection.execute(
            f"SELECT {_COLUMNS} FROM finding_history WHERE {' AND '.join(wanted)}"  # noqa: S608  names of ours only
            " ORDER BY last_seen DESC, id DESC LIMIT ?",
            (*values, limit),
        ).fetchall()
    return [_seen(row) for row in rows]


def open_counts(store: Engine) -> dict[str, int]:
    """How many findings are open, by severity; all severities are there."""
    with store.reader() as connection:
        rows = connection.execute(
            "SELECT severity, count(*) FROM finding_history WHERE ended_at IS NULL GROUP BY severity"
        ).fetchall()
    return {severity.value: dict(rows).get(severity.value, 0) for severity in Severity}


def _merged(findings: Iterable[Finding]) -> list[Finding]:
    """One for each check and subject, with all its evidence."""
    by_key: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        by_key.setdefault((finding.check, finding.subject), []).append(finding)
    return [_with_evidence(same) for same in by_key.values()]


def _with_evidence(same: Sequence[Finding]) -> Finding:
    text = "; ".join(dict.fromkeys(finding.evidence for finding in same))
    if len(text) > EVIDENCE_CHARACTERS:
        text = text[: EVIDENCE_CHARACTERS - 3] + "..."
    first = same[0]
    return Finding(
        check=first.check, subject=first.subject, severity=first.severity, evidence=text, advice=first.advice,
        source=first.source, details=first.details,
    )  # fmt: skip


def _keep(
    connection: sqlite3.Connection, job: str, origin: str, finding: Finding, row: int | None, now: float
) -> None:
    f = finding
    told = (f.severity.value, f.evidence, f.advice, f.source, json.dumps(f.details))
    if row is None:
        connection.execute(
            f"INSERT INTO finding_history ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?,1,NULL)",  # noqa: S608
            (job, origin, f.check, f.subject, *told, now, now),
        )
    else:
        connection.execute(
            "UPDATE finding_history SET severity = ?, evidence = ?, advice = ?, source = ?, details = ?,"
            " last_seen = ?, seen = seen + 1 WHERE id = ?",
            (*told, now, row),
        )


def _open_jobs(connection: sqlite3.Connection) -> set[str]:
    rows = connection.execute("SELECT DISTINCT job FROM finding_history WHERE ended_at IS NULL")
    return {job for (job,) in rows}


def _bound(connection: sqlite3.Connection) -> None:
    (ended,) = connection.execute(
        "SELECT count(*) FROM finding_history WHERE ended_at IS NOT NULL"
    ).fetchone()
    if ended > ROWS:
        connection.execute(
            "DELETE FROM finding_history WHERE id IN (SELECT id FROM finding_history WHERE ended_at IS NOT NULL"
            " ORDER BY last_seen, id LIMIT ?)",
            (ended - ROWS,),
        )


def _seen(row: Sequence[Any]) -> Seen:
    job, origin, check, subject, severity, evidence, advice, source, details, first, last, count, ended = row
    finding = Finding(
        check=check, subject=subject, severity=Severity(severity), evidence=evidence, advice=advice, source=source,
        details=json.loads(details),
    )  # fmt: skip
    return Seen(
        job=job, origin=origin, finding=finding, first_seen=first, last_seen=last, count=count, ended_at=ended
    )
