"""The targets that a configuration names, read again when `targets_file` or a database has changed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from isochrone.probing.databases import QUIET_SECONDS, Annotator, DatabaseState, TargetsError
from isochrone.probing.methods import manners_of
from isochrone.probing.targets import load_targets, usable

if TYPE_CHECKING:
    from isochrone.model import Target
    from isochrone.settings import Settings

log = logging.getLogger(__name__)


class TargetSource:
    """`targets` are all that are named, `allowed` those that manners let us probe. Keeps the databases open.

    Not safe for several threads at once.

    Raises from its constructor: TargetsError.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._annotator = Annotator(settings.probing.asn_database, settings.probing.country_database)
        self._good = self._seen = self._print()  # the last file that was of use, the last that was read
        self._stale = False  # whether a database has changed since
        found = usable(load_targets(settings, self._annotator))
        self.targets: tuple[Target, ...] = found.targets
        self._manners = manners_of(settings.probing)
        self.allowed, self.refused = self._judged()
        self.left_out = found.problems  # one sentence for each kind of row that can't be used
        self.problem = ""  # why a changed file of targets was passed over

    def refresh(self, now: float) -> bool:
        """Read again what has changed, at the Unix time `now`. Whether `targets` is another list.

        What can't be used leaves the targets from before; that is logged once and told by `problem` or `databases`.
        """
        self._stale |= self._annotator.refresh(now)
        file = self._print()
        if file is None and self._settings.targets_file is not None:
            self._passed_over(f"{self._settings.targets_file}: is gone")
            return False
        if file == self._good:
            self.problem = ""
        if file is not None and 0 <= now - file[3] / 1e9 < QUIET_SECONDS:
            return False
        if file == self._seen and not self._stale:
            return False
        self._seen, self._stale = file, False
        try:
            found = usable(load_targets(self._settings, self._annotator))
        except TargetsError as error:
            self._passed_over(str(error))
            return False
        if not found.targets:
            self._passed_over(f"{self._settings.targets_file}: there is no usable target in it")
            return False
        self._good, self.problem = file, ""
        if found.problems != self.left_out:
            for problem in found.problems:
                log.warning("%s", problem)
            self.left_out = found.problems
        changed = found.targets != self.targets
        if changed:
            self.targets = found.targets
            self.allowed, self.refused = self._judged()
            log.info("targets read again: %d", len(self.targets))
        return changed

    @property
    def databases(self) -> tuple[DatabaseState, ...]:
        """The databases in use."""
        return self._annotator.states()

    def _judged(self) -> tuple[tuple[Target, ...], tuple[str, ...]]:
        """The targets that may be probed, and one sentence about those that may not."""
        refusals = [self._manners.refusal(target.address) for target in self.targets]
        allowed = tuple(target for target, why in zip(self.targets, refusals, strict=True) if why is None)
        refused = [why for why in refusals if why is not None]
        if not refused:
            return allowed, ()
        more = ", ..." if len(refused) > 1 else ""
        return allowed, (
            f"{len(refused)} target{'s' if len(refused) > 1 else ''} will never be probed ({refused[0]}{more})",
        )

    def _passed_over(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("%s; the targets read before stay in use", problem)
            self.problem = problem

    def _print(self) -> tuple[int, int, int, int] | None:
        """By this a changed file is known; None when there is none."""
        if self._settings.targets_file is None:
            return None
        try:
            status = self._settings.targets_file.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
