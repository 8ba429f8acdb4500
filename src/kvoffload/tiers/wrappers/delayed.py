"""Reports that come late, by a virtual time, or not at all until they are released: a slow or a silent tier."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace
from enum import Enum
from typing import ClassVar

from kvoffload.clock import Clock
from kvoffload.errors import ConfigError
from kvoffload.tiers.base import Tier, TierJob, TierReport
from kvoffload.tiers.wrappers.holding import HoldingTier, Pause


class Distribution(Enum):
    """How delays are spread around their mean."""

    FIXED = "fixed"
    UNIFORM = "uniform"
    """From 0 to twice the mean."""
    EXPONENTIAL = "exponential"
    """Mostly short, now and then very long."""


@dataclass(frozen=True, slots=True)
class DelayConfig:
    """How long a job takes at least, from its submission. Raises ConfigError when made with a value out of range."""

    mean_s: float = 0.0
    distribution: Distribution = Distribution.FIXED
    bytes_per_s: float | None = None
    """Adds the time that the job's bytes take at this rate. None: none."""
    max_held_jobs: int = 256
    """Jobs that were taken and have not ended. More are refused."""

    def __post_init__(self) -> None:
        if not 0 <= self.mean_s < float("inf") or not (self.bytes_per_s is None or self.bytes_per_s > 0):
            raise ConfigError(
                f"delay: mean_s={self.mean_s} must be 0 or more, bytes_per_s={self.bytes_per_s} above 0 or None"
            )


class DelayedTier(HoldingTier):
    """Holds every report back; `stall` holds everything until `release`, even beyond `shutdown`."""

    adds: ClassVar[str] = "delayed"

    def __init__(
        self, inner: Tier, config: DelayConfig, clock: Clock, rng: random.Random, pause: Pause = time.sleep
    ) -> None:
        super().__init__(inner, config.max_held_jobs, pause)
        self._config = config
        self._clock = clock
        self._rng = rng
        self._stalled = False
        self._started_s: dict[int, tuple[float, float]] = {}
        self._waiting: list[TierReport] = []

    def stall(self) -> None:
        """From now on nothing is reported. A tier inside that works when it is polled moves no byte either."""
        self._stalled = True

    def release(self) -> None:
        """The end of `stall`: what is overdue comes with the next poll."""
        self._stalled = False

    def drain(self, timeout_s: float) -> bool:
        """See Tier. A stalled tier works no more for being waited for."""
        if not self._stalled or not self._held:
            return super().drain(timeout_s)
        self._pause(timeout_s)
        return False

    def _start(self, job: TierJob) -> bool:
        if not self.inner.submit(job):
            return False
        now_s = self._clock.now_s()
        self._started_s[job.job_id] = (now_s, now_s + self._draw_s(job))
        return True

    def _advance(self) -> None:
        if self._stalled:
            return
        self._waiting += self.inner.poll()
        now_s = self._clock.now_s()
        waiting, self._waiting = self._waiting, []
        for report in waiting:
            started_s, due_s = self._started_s[report.job_id]
            if now_s < due_s and not self._closed:
                self._waiting.append(report)
                continue
            del self._started_s[report.job_id]
            self._end(replace(report, busy_s=max(report.busy_s, min(now_s, due_s) - started_s)))

    def _draw_s(self, job: TierJob) -> float:
        bytes_per_s = self._config.bytes_per_s
        moving_s = 0.0 if bytes_per_s is None else job.size_bytes / bytes_per_s
        match self._config.distribution:
            case Distribution.FIXED:
                return moving_s + self._config.mean_s
            case Distribution.UNIFORM:
                return moving_s + self._rng.uniform(0.0, 2 * self._config.mean_s)
            case Distribution.EXPONENTIAL:
                return moving_s + self._rng.expovariate(1.0) * self._config.mean_s
