"""What all plain requests of one network from one place have in common, made once: the quick way's half of the work."""

from __future__ import annotations

from json import dumps

from .alt_svc import CLEAR
from .hop import via
from .steer import Plan, Steering

_FOREVER = 1e12  # seconds; a map may name any number


class Lane:
    """A plan's first candidate, and what crossing.mjs is told of it."""

    __slots__ = ("origin", "plan", "shape", "text")

    def __init__(
        self,
        steering: Steering,
        plan: Plan,
        protocol: str,
        *,
        within_ms: float = 2500.0,
        slow_ms: float = 1000.0,
    ) -> None:
        """The lane of a plan.

        Args:
            steering: what the plan is from.
            plan: with at least one origin.
            protocol: the client's, as `request.cf` has it.
            within_ms: how long an origin may take until its answer begins.
            slow_ms: an answer that took longer is for the long way.
        """
        origin, until = plan.origins[0], _FOREVER
        if steering.valid_until is not None and origin.max_age and origin.alt_svc != CLEAR:
            # From then on the promise is cut shorter.
            until = min(max(steering.valid_until, 0.0), _FOREVER) - min(origin.max_age, _FOREVER)
        self.plan, self.origin = plan, origin
        #: for the rim, as JSON: where requests go, what is added to them and to their answers
        self.text = dumps(
            {
                "base": "https://" + origin.host,
                "origin": origin.id,
                "alt_svc": origin.alt_svc,
                "until": 1000 * until,
                "within": within_ms,
                "slow": slow_ms,
                # Server-Timing: the durations stand behind each of the two
                "timing": f'colour;desc="{plan.colour}", map;desc="{plan.version}", origin;desc="{origin.id}";dur=',
                "reason": f', tries;desc="1", reason;desc="{plan.reason}"',
                # what `headers.added` sets, without what is this request's or this client's own
                "fields": {
                    "x-isochrone-colour": str(plan.colour),
                    "x-isochrone-origin": origin.id,
                    "x-isochrone-map": plan.version,
                    "via": via(None, protocol),
                    "tracestate": f"isochrone=colour:{plan.colour};map:{plan.version}",
                },
            }
        )
        #: how the rim keeps it, if it does
        self.shape: object = None
