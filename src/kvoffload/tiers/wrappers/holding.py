"""What wrappers share that report a job at another time than the tier inside: they hold jobs, and advance them."""

from __future__ import annotations

import dataclasses
import time
from abc import abstractmethod
from collections.abc import Callable
from itertools import count

from kvoffload.tiers.base import Tier, TierJob, TierReport, TierStats
from kvoffload.tiers.wrappers.base import TierWrapper

_FIRST_STEP_S = 0.001
_LAST_STEP_S = 0.1
_MAX_STEPS = 100
"""Of `_LAST_STEP_S` and less; a longer wait has longer steps."""

Pause = Callable[[float], None]
"""Lets so many seconds go by: `time.sleep`, or of a ManualClock its `advance`."""


class HoldingTier(TierWrapper):
    """Takes a job with `_start`, carries it on with `_advance`, and reports it with `_end`.

    Args:
        inner: The tier inside.
        max_held_jobs: Jobs that were taken and have not ended. More are refused.
        pause: Lets time go by in `drain`.
    """

    def __init__(self, inner: Tier, max_held_jobs: int, pause: Pause = time.sleep) -> None:
        super().__init__(inner)
        self._max_held_jobs = max_held_jobs
        self._pause = pause
        self._closed = False
        self._ids = count(1)
        """For the tier inside, if the wrapper adds jobs: ids are unique in the life of a tier."""
        self._held: dict[int, TierJob] = {}
        """Jobs that were taken and have not ended, by the caller's ids."""
        self._reports: list[TierReport] = []

    @abstractmethod
    def _start(self, job: TierJob) -> bool:
        """Take a job, or refuse it."""

    @abstractmethod
    def _advance(self) -> None:
        """Take the reports of the tier inside, do what is due, and `_end` what is over. All of it once `_closed`."""

    def _end(self, report: TierReport) -> None:
        del self._held[report.job_id]
        self._reports.append(report)

    def submit(self, job: TierJob) -> bool:
        """See Tier."""
        if self._closed or len(self._held) >= self._max_held_jobs or not self._start(job):
            return False
        self._held[job.job_id] = job
        return True

    def poll(self) -> list[TierReport]:
        """See Tier."""
        self._advance()
        reports, self._reports = self._reports, []
        return reports

    def stats(self) -> TierStats:
        """See Tier. The queue is what the caller waits for, and not what the tier inside has of it."""
        size_bytes = sum(job.size_bytes for job in self._held.values())
        return dataclasses.replace(super().stats(), queued_jobs=len(self._held), queued_bytes=size_bytes)

    def drain(self, timeout_s: float) -> bool:
        """See Tier. In growing steps: what the tier inside has ended may mean more work for it."""
        left_s, step_s = timeout_s, _FIRST_STEP_S
        longest_s = max(_LAST_STEP_S, timeout_s / _MAX_STEPS)
        while True:
            step_s = min(left_s, longest_s, 2 * step_s)
            is_idle = self.inner.drain(step_s)
            self._advance()
            if not self._held or left_s <= 0:
                return not self._held
            if is_idle:
                self._pause(step_s)
            left_s -= step_s

    def shutdown(self) -> None:
        """See Tier."""
        self._closed = True
        self.inner.shutdown()
