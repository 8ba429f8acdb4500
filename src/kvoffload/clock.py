"""Time as a constructor argument, so that nothing in the core reads a clock by itself."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Something that tells the time."""

    def now_s(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        ...


class MonotonicClock:
    """The machine's monotonic clock."""

    def now_s(self) -> float:
        """Seconds since some fixed moment of this machine; never goes back."""
        return time.monotonic()


class WallClock:
    """The machine's calendar time."""

    def now_s(self) -> float:
        """Seconds since the epoch; may be set back."""
        return time.time()


class ManualClock:
    """A clock that moves only when told: for tests and simulations."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        """The time it was last set to, in seconds."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Move forward; `seconds` must not be negative."""
        assert seconds >= 0, seconds
        self._now_s += seconds
