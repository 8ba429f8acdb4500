"""Carries what tiers count themselves into the metrics, now and then."""

from __future__ import annotations

from collections.abc import Sequence

from kvoffload.manager.health import BreakerState
from kvoffload.manager.lane import TierLane
from kvoffload.metrics import catalog as m
from kvoffload.metrics.recorder import Recorder

_EVERY_S = 1.0


class TierWatch:
    """Looks at the lanes at most once a second: a look costs more than a step should.

    Args:
        lanes: The tiers' lanes.
        recorder: Where it counts.
    """

    def __init__(self, lanes: Sequence[TierLane], recorder: Recorder) -> None:
        self._lanes = tuple(lanes)
        self._recorder = recorder
        self._seen: dict[tuple[str, str], int] = {}
        self._looked_s: float | None = None

    def look(self, now_s: float) -> None:
        """Take the tiers' counters and gauges over if it is time."""
        if self._looked_s is not None and now_s - self._looked_s < _EVERY_S:
            return
        self._looked_s = now_s
        for lane in self._lanes:
            stats = lane.tier.stats()
            self._recorder.set(m.TIER_STORED_BYTES, stats.stored_bytes, tier=lane.name)
            self._recorder.set(
                m.TIER_OPEN, int(lane.breaker.state is not BreakerState.CLOSED), tier=lane.name
            )
            meter = lane.load_meter
            if meter.bytes_per_s is not None and meter.latency_s is not None:
                self._recorder.set(m.TIER_LOAD_BYTES_PER_SECOND, round(meter.bytes_per_s), tier=lane.name)
                self._recorder.set(m.TIER_LOAD_LATENCY_SECONDS, round(meter.latency_s, 6), tier=lane.name)
            for event, total in stats.counters.items():
                before = self._seen.get((lane.name, event), 0)
                self._recorder.count(m.TIER_EVENTS, max(0, total - before), tier=lane.name, event=event)
                self._seen[lane.name, event] = max(before, total)
