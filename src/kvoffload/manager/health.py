"""A tier's circuit breaker: a small state machine over time, without a clock of its own.

CLOSED    --time-out, or too many failures in a row--> OPEN
OPEN      --retry_after_s passed, one job let through-> HALF_OPEN
HALF_OPEN --that job succeeded------------------------> CLOSED
HALF_OPEN --that job failed or timed out--------------> OPEN
"""

from __future__ import annotations

from enum import Enum


class BreakerState(Enum):
    """Whether jobs go to the tier."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


_TRANSITIONS = {
    (BreakerState.CLOSED, BreakerState.OPEN),
    (BreakerState.OPEN, BreakerState.HALF_OPEN),
    (BreakerState.HALF_OPEN, BreakerState.CLOSED),
    (BreakerState.HALF_OPEN, BreakerState.OPEN),
}


class CircuitBreaker:
    """Decides whether a tier may be bothered.

    Args:
        failures_to_open: Failed jobs in a row that open it.
        retry_after_s: How long it stays open before one job is let through.
    """

    def __init__(self, failures_to_open: int, retry_after_s: float) -> None:
        self._failures_to_open = failures_to_open
        self._retry_after_s = retry_after_s
        self._failures = 0
        self._opened_s = 0.0
        self.state = BreakerState.CLOSED
        self.times_opened = 0

    def allows(self, now_s: float) -> bool:
        """Whether a job may go to the tier now. Does not mutate."""
        if self.state is BreakerState.OPEN:
            return now_s - self._opened_s >= self._retry_after_s
        return self.state is BreakerState.CLOSED

    def started(self) -> None:
        """A job went to the tier; call it only when `allows`."""
        if self.state is BreakerState.OPEN:
            self._move(BreakerState.HALF_OPEN)

    def succeeded(self) -> None:
        """A job came back in good order."""
        self._failures = 0
        if self.state is BreakerState.HALF_OPEN:
            self._move(BreakerState.CLOSED)

    def failed(self, now_s: float) -> None:
        """A job came back and the tier had failed."""
        self._failures += 1
        if self.state is BreakerState.HALF_OPEN or self._failures >= self._failures_to_open:
            self._open(now_s)

    def timed_out(self, now_s: float) -> None:
        """A job did not come back in time: that alone is enough."""
        self._open(now_s)

    def _open(self, now_s: float) -> None:
        self._failures = 0
        self._opened_s = now_s
        if self.state is not BreakerState.OPEN:
            self._move(BreakerState.OPEN)
            self.times_opened += 1

    def _move(self, state: BreakerState) -> None:
        if (self.state, state) not in _TRANSITIONS:
            raise AssertionError(f"breaker: {self.state} → {state} is not a transition")
        self.state = state
