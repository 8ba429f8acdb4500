"""A moment after which nobody waits any more. Nothing else lives here."""

from __future__ import annotations

from kvoffload.clock import Clock, MonotonicClock

_MACHINE_CLOCK = MonotonicClock()


class Deadline:
    """A point in time that waits are measured against.

    Args:
        timeout_s: Seconds from now; negative counts as zero.
        clock: Where the time comes from. The default is the machine's clock: sockets wait in real time.
    """

    def __init__(self, timeout_s: float, clock: Clock = _MACHINE_CLOCK) -> None:
        self._clock = clock
        self._end_s = clock.now_s() + max(0.0, timeout_s)

    def remaining_s(self) -> float:
        """Seconds that are left; never negative."""
        return max(0.0, self._end_s - self._clock.now_s())

    @property
    def expired(self) -> bool:
        """Whether the moment has come."""
        return self.remaining_s() <= 0.0

    def later(self, extra_s: float) -> Deadline:
        """The same moment plus `extra_s` seconds, or that long from now if the moment is past."""
        return Deadline(self.remaining_s() + extra_s, self._clock)
