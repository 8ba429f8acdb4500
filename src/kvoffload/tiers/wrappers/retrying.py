"""Another try for what failed, after a growing, jittered pause; a job is reported once, when all of it is settled."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import ClassVar

from kvoffload.clock import Clock
from kvoffload.errors import ConfigError
from kvoffload.keys.offload_key import OffloadKey
from kvoffload.tiers.base import Outcome, Tier, TierEntry, TierJob, TierReport
from kvoffload.tiers.wrappers.holding import HoldingTier, Pause


@dataclass(frozen=True, slots=True)
class RetryConfig:
    """How often and when. Raises ConfigError when made with a value out of range."""

    max_retries: int = 2
    first_delay_s: float = 0.05
    """Pause before the first retry; doubles with each further one."""
    max_delay_s: float = 2.0
    jitter: float = 0.5
    """A pause is shortened by up to this share of it, so that those who failed together do not return together."""
    max_held_jobs: int = 256
    """Jobs that were taken and have not ended. More are refused."""

    def __post_init__(self) -> None:
        is_in_time = 0 < self.first_delay_s <= self.max_delay_s and 0 <= self.jitter <= 1
        if not is_in_time or not 0 <= self.max_retries <= 100:
            raise ConfigError(f"{self}: max_retries 0 to 100, 0 < first_delay_s ≤ max_delay_s, jitter 0 to 1")


@dataclass(slots=True, eq=False)
class _Attempt:
    job: TierJob
    open: tuple[TierEntry, ...]
    """What has not been settled."""
    retries: int = 0
    due_s: float = 0.0
    outcomes: dict[OffloadKey, Outcome] = field(default_factory=dict)
    busy_s: float = 0.0
    moved_bytes: int = 0


class RetryingTier(HoldingTier):
    """Hands the FAILED keys of a job in again; a retry that the tier inside refuses counts as failed, too."""

    adds: ClassVar[str] = "retried"

    def __init__(
        self, inner: Tier, config: RetryConfig, clock: Clock, rng: random.Random, pause: Pause = time.sleep
    ) -> None:
        super().__init__(inner, config.max_held_jobs, pause)
        self._config = config
        self._clock, self._rng = clock, rng
        self._inside: dict[int, _Attempt] = {}
        self._waiting: list[_Attempt] = []
        self._counters.update({"retried_jobs": 0, "retried_chunks": 0})

    def clear(self) -> bool:
        """See Tier. What was stored before is not tried again afterwards."""
        for attempt in (*self._inside.values(), *self._waiting):
            attempt.retries, attempt.due_s = self._config.max_retries + 1, 0.0
        return self.inner.clear()

    def _start(self, job: TierJob) -> bool:
        return self._hand_in(_Attempt(job, job.entries))

    def _hand_in(self, attempt: _Attempt) -> bool:
        inner_id = next(self._ids)
        if not self.inner.submit(TierJob(inner_id, attempt.job.verb, attempt.open)):
            return False
        self._inside[inner_id] = attempt
        return True

    def _advance(self) -> None:
        for report in self.inner.poll():
            attempt = self._inside.pop(report.job_id)
            attempt.outcomes.update(report.outcomes)
            attempt.busy_s += report.busy_s
            attempt.moved_bytes += report.moved_bytes
            self._settle(attempt)
        now_s = self._clock.now_s()
        waiting, self._waiting = self._waiting, []
        for attempt in waiting:
            if now_s < attempt.due_s and not self._closed:
                self._waiting.append(attempt)
            elif self._closed or attempt.retries > self._config.max_retries or not self._hand_in(attempt):
                self._settle(attempt)
            else:
                self._counters.update({"retried_jobs": 1, "retried_chunks": len(attempt.open)})

    def _settle(self, attempt: _Attempt) -> None:
        job, retries = attempt.job, attempt.retries
        attempt.open = tuple(e for e in job.entries if attempt.outcomes[e.key] is Outcome.FAILED)
        if attempt.open and retries < self._config.max_retries and not self._closed:
            delay_s = min(self._config.max_delay_s, self._config.first_delay_s * 2**retries)
            attempt.retries += 1
            attempt.due_s = self._clock.now_s() + delay_s * (1 - self._config.jitter * self._rng.random())
            self._waiting.append(attempt)
            return
        outcomes = {entry.key: attempt.outcomes[entry.key] for entry in job.entries}
        self._end(TierReport(job.job_id, job.verb, outcomes, attempt.busy_s, attempt.moved_bytes))
