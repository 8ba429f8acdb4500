"""A bound on what a tier has in flight, and on its bandwidth: what is over is refused, nothing waits here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvoffload.clock import Clock
from kvoffload.errors import ConfigError
from kvoffload.tiers.base import Tier, TierJob, TierReport
from kvoffload.tiers.wrappers.base import TierWrapper


@dataclass(frozen=True, slots=True)
class ThrottleConfig:
    """Bounds. Raises ConfigError when made with a value out of range."""

    max_jobs: int = 64
    """Jobs that were taken and not polled."""
    max_bytes: int = 2**30
    """The same in bytes; one job alone is always taken, whatever its size."""
    bytes_per_s: float | None = None
    """Bytes taken in the long run. None: no cap."""
    burst_bytes: int = 2**26
    """Bytes that may be taken at once after a rest; a larger job is taken after a full rest, and paid off later."""

    def __post_init__(self) -> None:
        for name in ("max_jobs", "max_bytes", "burst_bytes", "bytes_per_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"throttle: {name}={value} must be above 0")


class ThrottledTier(TierWrapper):
    """Refuses what would exceed the bounds of `config`; the bucket of bytes is filled by `clock`."""

    adds: ClassVar[str] = "throttled"

    def __init__(self, inner: Tier, config: ThrottleConfig, clock: Clock) -> None:
        super().__init__(inner)
        self._config = config
        self._clock = clock
        self._in_flight: dict[int, int] = {}
        self._in_flight_bytes = 0
        self._allowance_bytes: float = config.burst_bytes
        self._filled_s = clock.now_s()
        self._counters.update({"throttled_jobs": 0})

    def submit(self, job: TierJob) -> bool:
        """See Tier."""
        size_bytes = job.size_bytes
        self._fill()
        is_affordable = self._allowance_bytes >= min(size_bytes, self._config.burst_bytes)
        if not is_affordable or not self._has_room(size_bytes):
            self._counters["throttled_jobs"] += 1
            return False
        if not self.inner.submit(job):
            return False
        self._in_flight[job.job_id] = size_bytes
        self._in_flight_bytes += size_bytes
        if self._config.bytes_per_s is not None:
            self._allowance_bytes -= size_bytes
        return True

    def poll(self) -> list[TierReport]:
        """See Tier."""
        reports = self.inner.poll()
        for report in reports:
            self._in_flight_bytes -= self._in_flight.pop(report.job_id)
        return reports

    def _has_room(self, size_bytes: int) -> bool:
        if not self._in_flight:
            return True
        is_over = self._in_flight_bytes + size_bytes > self._config.max_bytes
        return len(self._in_flight) < self._config.max_jobs and not is_over

    def _fill(self) -> None:
        now_s = self._clock.now_s()
        gained = (now_s - self._filled_s) * (self._config.bytes_per_s or 0.0)
        self._allowance_bytes = min(self._config.burst_bytes, self._allowance_bytes + gained)
        self._filled_s = now_s
