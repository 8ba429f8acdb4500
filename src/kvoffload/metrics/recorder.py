"""Where the core counts. Exporters (Prometheus, logs, tests) read it at the edge."""

from __future__ import annotations

from kvoffload.metrics.catalog import CATALOG, Metric, MetricKind


class Recorder:
    """Counters and gauges of one process, by metric.

    Not thread-safe: one thread (the scheduler's) writes.
    """

    def __init__(self) -> None:
        self._values: dict[str, float] = {metric.name: 0 for metric in CATALOG}
        self._taken: dict[str, float] = {}

    def count(self, metric: Metric, amount: float = 1) -> None:
        """Add to a counter; `amount` must not be negative."""
        assert metric.kind is MetricKind.COUNTER, metric
        assert amount >= 0, (metric.name, amount)
        self._values[metric.name] += amount

    def set(self, metric: Metric, value: float) -> None:
        """Set a gauge."""
        assert metric.kind is MetricKind.GAUGE, metric
        self._values[metric.name] = value

    def value(self, metric: Metric) -> float:
        """Current value."""
        return self._values[metric.name]

    def values(self) -> dict[str, float]:
        """A copy of all values by metric name."""
        return dict(self._values)

    def take_changes(self) -> dict[str, float]:
        """Counters: the increase since the last call (zeros left out); gauges: their value if it changed.

        An increase is never negative, so an exporter can add it to a counter of its own.
        """
        changes: dict[str, float] = {}
        for metric in CATALOG:
            now = self._values[metric.name]
            before = self._taken.get(metric.name, 0)
            if now != before:
                changes[metric.name] = now - before if metric.kind is MetricKind.COUNTER else now
                self._taken[metric.name] = now
        return changes
