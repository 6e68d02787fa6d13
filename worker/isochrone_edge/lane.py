"""What all plain requests of one network from one place have in common, made once: the quick way's half of the work."""

from __future__ import annotations

from json import dumps

from .alt_svc import CLEAR
from .headers import forwarded_for, peek, via
from .steer import Plan, Steering


class Lane:
    """A plan's first candidate, with the texts that go to it and to the client, as far as they are always the same."""

    __slots__ = ("alt_svc", "base", "head", "origin", "plan", "reason", "steering", "timing")

    def __init__(self, steering: Steering, plan: Plan, protocol: str) -> None:
        origin = plan.origins[0]
        self.steering, self.plan, self.origin = steering, plan, origin
        self.base = "https://" + origin.host
        #: None: it depends on the time
        self.alt_svc: str | None = origin.alt_svc
        if steering.valid_until is not None and origin.alt_svc != CLEAR:
            self.alt_svc = None
        self.timing = (
            f'colour;desc="{plan.colour}", map;desc="{plan.version}", origin;desc="{origin.id}";dur='
        )
        self.reason = f', tries;desc="1", reason;desc="{plan.reason}"'
        self.head = (
            f'"x-isochrone-colour":"{plan.colour}","x-isochrone-origin":"{origin.id}","x-isochrone-map":"{plan.version}",'
            f'"via":"{via(None, protocol)}","tracestate":"isochrone=colour:{plan.colour};map:{plan.version}",'
        )

    def added(self, text: str, parent: str, front: str) -> str | None:
        """As `headers.added`, for a client whose fields bring nothing that must be continued; None for others.

        Args:
            text: the client's fields as JSON.
            parent: our traceparent, if it brings none.
            front: members that tell of its own connection, as `Isolate.front` makes them.
        """
        if '"traceparent"' in text or '"via"' in text:
            return None
        client = peek(text, "cf-connecting-ip")
        if client:
            listed = forwarded_for(client, peek(text, "x-forwarded-for"))
            if listed:
                return f'{self.head}"traceparent":"{parent}",{front},"x-forwarded-for":{dumps(listed)}'
        return f'{self.head}"traceparent":"{parent}",{front}'
