"""The thread that looks at the journal every few seconds, and at everything now and then."""

from __future__ import annotations

import logging
import random
import threading

from kvoffload.tiers.obj.around import Around
from kvoffload.tiers.obj.follower import Follower
from kvoffload.tiers.obj.opening import write_namespace
from kvoffload.tiers.obj.sweeping import Sweeper
from kvoffload.tiers.obj.trouble import ObjectError

logger = logging.getLogger(__name__)

_SOON_S = 30.0


class Upkeep:
    """Runs in one daemon thread.

    Args:
        around: The store and what is known of it.
        follower: Reads the journal.
        sweeper: Reconciles.
    """

    def __init__(self, around: Around, follower: Follower, sweeper: Sweeper) -> None:
        self._around = around
        self._follower = follower
        self._sweeper = sweeper
        self._stopped = threading.Event()
        self._rng = random.Random()  # noqa: S311 - so that engines of a fleet do not all ask at the same moment
        self._thread = threading.Thread(
            target=self._run, name=f"kvoffload-{around.config.name}-upkeep", daemon=True
        )

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> threading.Thread:
        """End soon; returns the thread."""
        self._stopped.set()
        return self._thread

    def look(self) -> None:
        """Learn what others stored; if that is too much together, make it less: nobody may be storing any more. Raises ObjectError."""
        self._follower.refresh()
        if not self._around.config.read_only:
            self._sweeper.meet_cap()

    def _run(self) -> None:
        config, clock = self._around.config, self._around.clock
        # The first one soon: what a bucket's own rules removed while no engine ran need not be found out load by load.
        due_s = clock.now_s() + min(_SOON_S, config.reconcile_interval_s) * self._rng.random()
        while True:
            try:
                self.look()
                if clock.now_s() >= due_s and not self._stopped.is_set():
                    due_s = clock.now_s() + config.reconcile_interval_s * (0.75 + 0.5 * self._rng.random())
                    self._reconcile()
            except ObjectError:
                self._around.counters.add("upkeep_failures")
            except Exception:
                logger.exception("%s tier: internal error in its upkeep", config.name)
                self._around.counters.add("internal_errors")
            if self._stopped.wait(config.poll_interval_s * (0.75 + 0.5 * self._rng.random())):
                return

    def _reconcile(self) -> None:
        survey = self._sweeper.survey()
        self._around.counters.add("reconciled")
        if not survey.has_namespace_file:
            # The store was away at the start, or a rule of the bucket took its oldest object: tools know a namespace by it.
            write_namespace(self._around)
        if not self._around.config.read_only:
            self._sweeper.carry_out(self._sweeper.plan(survey))
