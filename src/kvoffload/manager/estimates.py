"""Measured speeds: how fast the engine computes, how fast a tier delivers. Pure arithmetic over reports."""

from __future__ import annotations

_WEIGHT = 0.25
"""Share of the newest measurement in an exponentially weighted mean."""
_MIN_PREFILL_TOKENS = 64
"""Steps with fewer tokens are dominated by their fixed cost and say nothing about prefill."""


def _blend(old: float | None, new: float) -> float:
    return new if old is None else old + _WEIGHT * (new - old)


class PrefillMeter:
    """The engine's prefill rate, from the distance between its steps."""

    def __init__(self) -> None:
        self._tokens = 0
        self._started_s = 0.0
        self.tokens_per_s: float | None = None

    def step(self, now_s: float, scheduled_tokens: int) -> None:
        """A step with this many tokens starts now; the one before has ended."""
        elapsed_s = now_s - self._started_s
        if self._tokens >= _MIN_PREFILL_TOKENS and elapsed_s > 0:
            self.tokens_per_s = _blend(self.tokens_per_s, self._tokens / elapsed_s)
        self._tokens, self._started_s = scheduled_tokens, now_s

    def seconds_for(self, tokens: int) -> float | None:
        """How long computing these tokens takes; None if it was never measured."""
        return None if not self.tokens_per_s else tokens / self.tokens_per_s


class TransferMeter:
    """A tier's speed in one direction: the bandwidth of its jobs, and the least time that a job takes."""

    def __init__(self) -> None:
        self.bytes_per_s: float | None = None
        self.latency_s: float | None = None

    def add(self, moved_bytes: int, elapsed_s: float) -> None:
        """A job of this size took this long from submission to report."""
        if moved_bytes <= 0 or elapsed_s <= 0:
            return
        self.bytes_per_s = _blend(self.bytes_per_s, moved_bytes / elapsed_s)
        self.latency_s = (
            elapsed_s if self.latency_s is None else min(elapsed_s, _blend(self.latency_s, elapsed_s))
        )

    def seconds_for(self, size_bytes: int, queued_bytes: int) -> float | None:
        """How long moving these bytes takes behind those in the queue; None if it was never measured.

        A size larger than what was measured goes at the measured bandwidth; a small one takes no less than the
        smallest job did.
        """
        if self.bytes_per_s is None or self.latency_s is None:
            return None
        return max((size_bytes + queued_bytes) / self.bytes_per_s, self.latency_s)
