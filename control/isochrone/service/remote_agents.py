"""The agents of other regions, as the daemon sees them: who they are, what they are told, what is taken from them."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from isochrone.agents import plan as plans
from isochrone.agents.checks import FUTURE_SECONDS, Refused, allowance_of, check
from isochrone.agents.wire import MalformedError, decode
from isochrone.model import Outcome
from isochrone.store import agent_batches
from isochrone.store.agent_batches import TooManyError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from isochrone.agents.plan import Plan
    from isochrone.agents.wire import Batch
    from isochrone.model import Origin, Target, TargetKey
    from isochrone.settings import Settings
    from isochrone.store.sqlite import Store

log = logging.getLogger(__name__)

FLAG_SECONDS = 3600.0  # after a refusal an agent stays flagged for so long
LATE_ROUNDS, LATE_SECONDS = (
    3,
    60.0,
)  # an agent is late when nothing good came for so many intervals, and a bit
OLD_PLANS = 2  # read plans that are kept beside the current one
CHECKS = 2  # batches that are unpacked and checked at once: bounds memory and CPU
PLAN_SECONDS = 600.0  # a plan stands at least so long: targets come and go with every round


@dataclass(slots=True)
class Standing:
    """What this process saw of one agent. Times are Unix seconds, 0 for never."""

    batches: int = 0  # stored
    repeats: int = 0  # acknowledged again
    outcomes: Counter[str] = field(default_factory=Counter)  # of the samples stored
    set_aside: int = 0  # samples faster than light, in batches that were stored
    refused: Counter[str] = field(default_factory=Counter)  # batches, by code
    last_good: float = 0.0
    last_refused: float = 0.0
    problem: str = ""  # why the last refused batch was refused
    plan_asked: float = 0.0  # when it last asked for its plan
    note: str = ""  # what it said of itself with its last batch
    late: bool = False


class Taken(NamedTuple):
    """What became of a batch that was acknowledged."""

    batch: str
    samples: int  # stored with it, now or before
    set_aside: int
    repeat: bool


_TakenOutcomes = tuple[Taken, "Counter[str]", "dict[TargetKey, Outcome]"]
_TELLING = (Outcome.PROBER_FAILED, Outcome.TARGET_FAILED, Outcome.OK)  # the later says more about a target


class RemoteAgents:
    """Reads and writes the store in threads; one batch of an origin at a time, so that a repeat waits for the first."""

    def __init__(
        self,
        settings: Settings,
        origins: Sequence[Origin],
        targets: Callable[[], Sequence[Target]],
        store: Store,
        clock: Callable[[], float],
        *,
        told: Callable[[Mapping[TargetKey, Outcome]], None] | None = None,
    ) -> None:
        wanted = {agent.origin for agent in settings.agents}
        self.origins = {origin.id: origin for origin in origins if origin.id in wanted}
        self.standings = {origin: Standing() for origin in self.origins}
        self._hashes = [(digest, agent.origin) for agent in settings.agents for digest in agent.token_sha256]
        self._probing = settings.probing
        self._max_age = settings.estimation.window_seconds
        self._targets = targets
        self._told = told or (lambda _: None)  # hears what each target answered
        self._store = store
        self._clock = clock
        self._started_at = clock()
        self._checks = asyncio.Semaphore(CHECKS)
        self._locks = {origin: asyncio.Lock() for origin in self.origins}
        self._written: tuple[float, Sequence[Target], Plan] | None = None  # when, of what
        self._read: OrderedDict[str, Plan] = OrderedDict()

    @property
    def keep_seconds(self) -> float:
        """How long ids and plans are remembered: longer than a sample, which is refused for its age then."""
        return 2 * self._max_age + FUTURE_SECONDS

    def recall(self) -> None:
        """What the store knows from before the start. Raises StoreError."""
        for origin, at in agent_batches.last_accepted(self._store).items():
            if origin in self.standings:
                self.standings[origin].last_good = at

    def origin_of(self, token: str) -> str | None:
        """Whose token this is. Takes the same time whichever it is, or none."""
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
        found = None
        for known, origin in self._hashes:
            if hmac.compare_digest(known, digest):
                found = origin
        return found

    async def plan_for(self, origin: str) -> Plan:
        """The plan as it is now, on disk before it is handed out. Raises StoreError."""
        plan = await asyncio.to_thread(self._current)
        await asyncio.to_thread(agent_batches.save_plan, self._store, plan.id, plan.body, self._clock())
        self.standings[origin].plan_asked = self._clock()
        return plan

    async def take(self, origin: str, body: bytes, note: str = "") -> Taken:
        """Store a batch. When this returns, it is on disk, once.

        Raises:
            Refused: nothing of it was stored, and it will never be taken.
            StoreError: it could not be stored now.
        """
        standing = self.standings[origin]
        async with self._locks[origin], self._checks:
            try:
                taken, outcomes, answers = await asyncio.to_thread(self._take, origin, body)
            except Refused as refused:
                self.refuse(origin, refused)
                raise
        standing.note = note
        if taken.repeat or any(outcome != Outcome.PROBER_FAILED for outcome in outcomes):
            standing.last_good = self._clock()  # an agent that can make no probe says nothing of the network
        if taken.repeat:
            standing.repeats += 1
        else:
            standing.batches += 1
            standing.outcomes.update(outcomes)
            standing.set_aside += taken.set_aside
            self._told(answers)
        return taken

    def refuse(self, origin: str, refused: Refused) -> None:
        """Count a refusal and flag the agent; told when it is the first for a while, or another reason than before."""
        standing, now = self.standings[origin], self._clock()
        standing.refused[refused.code] += 1
        if now - standing.last_refused >= FLAG_SECONDS or not standing.problem.startswith(f"{refused.code}:"):
            log.warning("agent of %s: batch refused: %s: %s", origin, refused.code, refused)
        standing.last_refused = now
        standing.problem = f"{refused.code}: {refused}"

    def _take(self, origin: str, body: bytes) -> _TakenOutcomes:
        try:
            batch = decode(body)
        except MalformedError as error:
            if error.too_large:
                raise Refused("too_large", str(error), 413) from None
            raise Refused("malformed", str(error), 400) from None
        header = batch.header
        if header.origin != origin:
            raise Refused("unknown_origin", f"the batch is not of origin {origin!r}, whose token this is")
        if agent_batches.is_known(self._store, origin, header.batch):
            return Taken(header.batch, header.samples, 0, repeat=True), Counter(), {}
        return self._take_new(origin, batch)

    def _take_new(self, origin: str, batch: Batch) -> _TakenOutcomes:
        header = batch.header
        plan = self._plan(header.plan)
        if plan is None:
            raise Refused("unknown_plan", "no such plan was handed out, or it is long forgotten", 409)
        now = self._clock()
        checked = check(batch, origin=self.origins[origin], plan=plan, now=now, max_age=self._max_age)
        try:
            fresh = agent_batches.accept(
                self._store, origin, header.batch, checked.samples, now=now, allowance=allowance_of(plan)
            )
        except TooManyError as error:
            raise Refused("flood", str(error)) from None
        outcomes = Counter(sample.outcome.value for sample in checked.samples)
        answers: dict[TargetKey, Outcome] = {}
        recent = now - 2 * plan.probing.interval_seconds
        for row in batch.rows:
            if row.at < recent:  # from the spool: it says nothing about the target now
                continue
            key, outcome = (row.address, row.port), Outcome(row.outcome)
            answers[key] = max(outcome, answers.get(key, outcome), key=_TELLING.index)
        return (
            Taken(header.batch, len(checked.samples), checked.set_aside, repeat=not fresh),
            outcomes,
            answers,
        )

    def _current(self) -> Plan:
        targets, now = self._targets(), self._clock()
        if self._written is not None:
            at, before, plan = self._written
            if before == targets or 0 <= now - at < PLAN_SECONDS:
                return plan
        self._written = now, targets, plans.write(self._probing, targets)
        return self._written[2]

    def _plan(self, wanted: str) -> Plan | None:
        if self._written is not None and self._written[2].id == wanted:
            return self._written[2]
        found = self._read.get(wanted)
        if found is None:
            body = agent_batches.plan_body(self._store, wanted)
            if body is None:
                return None
            found = self._read[wanted] = plans.read(body)
        self._read.move_to_end(wanted)
        while len(self._read) > OLD_PLANS:
            self._read.popitem(last=False)
        return found

    def forget(self, now: float) -> None:
        """Let go of what can not come again. Blocks; raises StoreError."""
        if self._written is not None:
            agent_batches.save_plan(self._store, self._written[2].id, self._written[2].body, now)
        agent_batches.forget(self._store, now - self.keep_seconds)

    def age(self, origin: str, now: float) -> float:
        """Seconds since its last good batch, or since the daemon's start."""
        return now - max(self.standings[origin].last_good, min(self._started_at, now))

    def watch(self) -> None:
        """Tell once when an agent falls silent, and once when it is back."""
        now = self._clock()
        bound = LATE_ROUNDS * self._probing.interval_seconds + LATE_SECONDS
        for origin, standing in self.standings.items():
            age = self.age(origin, now)
            if age > bound and not standing.late:
                log.warning("agent of %s: no good batch for %.0f s; is it running?", origin, age)
            elif age <= bound and standing.late:
                log.info("agent of %s: is back", origin)
            standing.late = age > bound

    def silent(self) -> str:
        """That no agent at all is heard of; "" while one is."""
        if not self.standings or not all(standing.late for standing in self.standings.values()):
            return ""
        age = min(self.age(origin, self._clock()) for origin in self.standings)
        return f"no good batch from any agent for {age:.0f} s"

    def state(self, origin: str, now: float) -> str:
        """`flagged` (a batch was refused lately), `late`, `unseen` or `ok`."""
        standing = self.standings[origin]
        if standing.last_refused and now - standing.last_refused < FLAG_SECONDS:
            return "flagged"
        if standing.late:
            return "late"
        return "ok" if standing.last_good else "unseen"

    def document(self, now: float) -> list[dict[str, Any]]:
        """For `/status`."""
        return [
            {
                "origin": origin,
                "state": self.state(origin, now),
                "last_good": round(standing.last_good, 3),
                "last_good_age_seconds": round(now - standing.last_good, 3) if standing.last_good else None,
                "batches": standing.batches,
                "repeats": standing.repeats,
                "samples": {"total": standing.outcomes.total(), **standing.outcomes},
                "set_aside": standing.set_aside,
                "refused": {"total": standing.refused.total(), **standing.refused},
                "last_refused": round(standing.last_refused, 3),
                "problem": standing.problem,
                "plan_asked": round(standing.plan_asked, 3),
                "says": standing.note,
            }
            for origin, standing in self.standings.items()
        ]
