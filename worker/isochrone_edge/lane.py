"""What all plain requests of one network from one place have in common, made once: the quick way's half of the work."""

from __future__ import annotations

from .alt_svc import CLEAR
from .headers import via
from .steer import Plan, Steering


class Lane:
    """A plan's first candidate, with the texts that go to it and to the client, as far as they are always the same."""

    __slots__ = ("alt_svc", "base", "fields", "origin", "plan", "reason", "shape", "steering", "timing")

    def __init__(self, steering: Steering, plan: Plan, protocol: str) -> None:
        origin = plan.origins[0]
        self.steering, self.plan, self.origin = steering, plan, origin
        self.base = "https://" + origin.host
        #: None: it depends on the time
        self.alt_svc: str | None = origin.alt_svc
        if steering.valid_until is not None and origin.alt_svc != CLEAR:
            self.alt_svc = None
        #: Server-Timing, between whose halves the durations stand
        self.timing = (
            f'colour;desc="{plan.colour}", map;desc="{plan.version}", origin;desc="{origin.id}";dur='
        )
        self.reason = f', tries;desc="1", reason;desc="{plan.reason}"'
        #: for the origin, as JSON: what `headers.added` sets, without what is this request's or this client's own
        self.fields = (
            f'{{"x-isochrone-colour":"{plan.colour}","x-isochrone-origin":"{origin.id}","x-isochrone-map":"{plan.version}",'
            f'"via":"{via(None, protocol)}","tracestate":"isochrone=colour:{plan.colour};map:{plan.version}"}}'
        )
        #: how the rim keeps it, if it does
        self.shape: object = None
