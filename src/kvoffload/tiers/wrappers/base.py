"""What wrappers share: handing everything through, and the waiting of those that report later than the tier inside."""

from __future__ import annotations

import dataclasses
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from kvoffload.errors import ConfigError
from kvoffload.keys.offload_key import OffloadKey
from kvoffload.tiers.base import StoredChunk, Tier, TierContext, TierJob, TierReport, TierStats
from kvoffload.types import LookupResult

_FIRST_STEP_S = 0.001


class TierWrapper(Tier):
    """Hands everything through to the tier inside; a subclass overrides what it changes.

    It has the name of the tier inside, so that metrics, filters and logs stay as they were.
    """

    options_type: ClassVar[type[Any]] = type(None)
    adds: ClassVar[str]
    """One word for `describe`: what is different with it."""

    def __init__(self, inner: Tier) -> None:
        self.inner = inner
        self.name = inner.name
        self._counters: Counter[str] = Counter()

    @classmethod
    def open(cls, options: Any, context: TierContext) -> Tier:
        """Raises ConfigError: a wrapper has no place of its own."""
        del options, context
        raise ConfigError(f"{cls.__name__} is not a tier of its own; open a tier and put it around that")

    def lookup(self, keys: Sequence[OffloadKey]) -> list[LookupResult]:
        """See Tier."""
        return self.inner.lookup(keys)

    def submit(self, job: TierJob) -> bool:
        """See Tier."""
        return self.inner.submit(job)

    def poll(self) -> list[TierReport]:
        """See Tier."""
        return self.inner.poll()

    def touch(self, keys: Sequence[OffloadKey]) -> None:
        """See Tier."""
        self.inner.touch(keys)

    def scan(self) -> Iterator[StoredChunk]:
        """See Tier."""
        return self.inner.scan()

    def stats(self) -> TierStats:
        """See Tier. The wrapper's counters are added to those of the tier inside."""
        stats = self.inner.stats()
        counters = Counter(stats.counters)
        counters.update(self._counters)
        return dataclasses.replace(stats, counters=dict(counters))

    def describe(self) -> str:
        """See Tier."""
        return f"{self.inner.describe()}, {self.adds}"

    def clear(self) -> bool:
        """See Tier."""
        return self.inner.clear()

    def drain(self, timeout_s: float) -> bool:
        """See Tier."""
        return self.inner.drain(timeout_s)

    def shutdown(self) -> None:
        """See Tier."""
        self.inner.shutdown()


class HoldingTier(TierWrapper):
    """A wrapper that reports a job at another time than the tier inside: it holds jobs and advances them.

    Args:
        inner: The tier inside.
        max_held_jobs: Jobs that were taken and have not ended. More are refused.
        pause: Lets time go by in `drain`: of a ManualClock its `advance`.
    """

    def __init__(
        self, inner: Tier, max_held_jobs: int, pause: Callable[[float], None] = time.sleep
    ) -> None:
        super().__init__(inner)
        self._max_held_jobs = max_held_jobs
        self._pause = pause
        self._closed = False
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
        while True:
            step_s = min(left_s, 2 * step_s)
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
