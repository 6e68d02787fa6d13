"""Which live versions are this controller's own: what keeps two writers, or a writer and a person, from fighting over a key."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Collection

STALE_SECONDS = 120.0  # KV may serve the older manifest for a minute or more after a write


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """What this controller did last. Kept in the store: a restart must know it."""

    live: str | None = None  # the version that it published or adopted last
    previous: str | None = None  # what was live before that
    published_at: float = 0.0  # Unix seconds
    #: noted before the manifest is written: a crash right after the write must not orphan it
    intent: str | None = None
    #: offered and refused by the guard; when a person publishes just that, it is still ours
    refused: str | None = None
    #: good samples for each target and origin when `live` was built or last confirmed; None: not known
    evidence: float | None = None

    @property
    def own(self) -> Collection[str]:
        """The versions that may be replaced without asking."""
        return {version for version in (self.live, self.intent, self.refused) if version}

    def is_stale(self, version: str | None, now: float) -> bool:
        """Whether reading this version right after a publish is KV being slow, not somebody else."""
        return version == self.previous and version != self.live and now - self.published_at < STALE_SECONDS

    def intends(self, version: str) -> Self:
        """Before the manifest is written."""
        return replace(self, intent=version)

    def published(
        self, version: str, previous: str | None, now: float, evidence: float | None = None
    ) -> Self:
        """After the manifest was written."""
        return replace(
            self,
            live=version,
            previous=previous,
            published_at=now,
            intent=None,
            refused=None,
            evidence=evidence,
        )

    def confirmed(self, evidence: float) -> Self:
        """A newer build from more samples decides the same."""
        return (
            replace(self, evidence=max(self.evidence or 0.0, evidence)) if self.evidence is not None else self
        )

    def refuses(self, version: str) -> Self:
        """The guard kept this one back; a person may publish it with --force."""
        return replace(self, refused=version)

    def saw(self, version: str | None) -> Self:
        """What is live turns out to be what was intended, or what a person published for us."""
        if version and version != self.live and version in self.own:
            return replace(self, live=version, previous=None, intent=None, refused=None, evidence=None)
        return self

    def adopts(self, version: str | None) -> Self:
        """Taking over from whoever published it."""
        return replace(self, live=version, previous=None, intent=None, refused=None, evidence=None)

    def dump(self) -> str:
        """As the store keeps it."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str | None) -> Self:
        """As the store gave it; an empty one when it gave nothing."""
        return cls(**json.loads(text)) if text else cls()
