"""Latency and bandwidth from measured jobs: a straight line through (bytes, seconds), newer jobs weigh more."""

from __future__ import annotations

_MIN_SPREAD = 1e-3
"""Variance of the sizes over their squared mean, below which latency and bandwidth cannot be told apart."""


class SpeedMeter:
    """Exponentially weighted least squares: seconds = latency + bytes ÷ bandwidth.

    With (weighted) means x̄ of bytes and ȳ of seconds: slope = cov(x, y) ÷ var(x), latency = ȳ - slope · x̄. While all
    jobs are of about one size, or the line makes no sense (larger jobs are quicker), only their mean is known: then a
    smaller job is taken to last as long, a larger one proportionally longer.

    Args:
        weight: Share of the newest job, above 0 and at most 1.
    """

    def __init__(self, weight: float) -> None:
        self._weight = weight
        self._x = self._y = self._xx = self._xy = 0.0
        self.jobs = 0
        """Measured so far."""

    def add(self, moved_bytes: int, busy_s: float) -> None:
        """A job moved so many bytes in so many seconds. One that moved nothing, or took no time, says nothing."""
        if moved_bytes <= 0 or busy_s <= 0:
            return
        self.jobs += 1
        # The first few count alike: the very first one must not weigh as much as all that follow.
        share = max(self._weight, 1 / self.jobs)
        self._x += share * (moved_bytes - self._x)
        self._y += share * (busy_s - self._y)
        self._xx += share * (moved_bytes**2 - self._xx)
        self._xy += share * (moved_bytes * busy_s - self._xy)

    @property
    def line(self) -> tuple[float, float] | None:
        """(latency in seconds, bandwidth in bytes per second) if they can be told apart. Does not mutate."""
        variance = self._xx - self._x**2
        if not self.jobs or variance <= _MIN_SPREAD * self._x**2:
            return None
        slope = (self._xy - self._x * self._y) / variance
        latency_s = self._y - slope * self._x
        if slope <= 0:
            return None
        # A line that meets the axis below 0: no latency, and the bandwidth of the mean job.
        return (latency_s, 1 / slope) if latency_s >= 0 else (0.0, self._x / self._y)

    def seconds_for(self, size_bytes: int, queued_bytes: int = 0) -> float | None:
        """How long a job takes behind others of so many bytes; None if nothing was measured. Does not mutate."""
        if not self.jobs:
            return None
        line = self.line
        if line is not None:
            return line[0] + (size_bytes + queued_bytes) / line[1]
        return self._y * max(1.0, (size_bytes + queued_bytes) / self._x)
