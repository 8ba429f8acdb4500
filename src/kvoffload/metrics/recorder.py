"""Where the core counts. Exporters (Prometheus, logs, tests) read it at the edge."""

from __future__ import annotations

from kvoffload.metrics.catalog import CATALOG, Metric, MetricKind

_METRICS = {metric.name: metric for metric in CATALOG}


def series_name(metric: Metric, labels: dict[str, str]) -> str:
    """One series of a metric as text: `name`, or `name{label=value,…}` in the order of the metric's labels.

    Label values are names of tiers, verbs and the like: they contain none of `{},=`.
    """
    assert set(labels) == set(metric.labels), (metric.name, labels)
    if not labels:
        return metric.name
    return metric.name + "{" + ",".join(f"{label}={labels[label]}" for label in metric.labels) + "}"


def parse_series(series: str) -> tuple[Metric, dict[str, str]]:
    """The metric and the labels of a series name."""
    name, _, rest = series.partition("{")
    pairs = [part.partition("=") for part in rest.removesuffix("}").split(",")] if rest else []
    return _METRICS[name], {label: value for label, _, value in pairs}


class Recorder:
    """Counters and gauges of one process, by series.

    Not thread-safe: one thread (the scheduler's) writes.
    """

    def __init__(self) -> None:
        self._values: dict[str, float] = {metric.name: 0 for metric in CATALOG if not metric.labels}
        self._taken: dict[str, float] = {}

    def count(self, metric: Metric, amount: float = 1, **labels: str) -> None:
        """Add to a counter; `amount` must not be negative."""
        assert metric.kind is MetricKind.COUNTER, metric
        assert amount >= 0, (metric.name, amount)
        series = series_name(metric, labels)
        self._values[series] = self._values.get(series, 0) + amount

    def set(self, metric: Metric, value: float, **labels: str) -> None:
        """Set a gauge."""
        assert metric.kind is MetricKind.GAUGE, metric
        self._values[series_name(metric, labels)] = value

    def value(self, metric: Metric, **labels: str) -> float:
        """Current value, 0 if it was never counted."""
        return self._values.get(series_name(metric, labels), 0)

    def value_of(self, series: str) -> float:
        """As `value`, by the series' name."""
        return self._values.get(series, 0)

    def values(self) -> dict[str, float]:
        """A copy of all values by series name."""
        return dict(self._values)

    def take_changes(self) -> dict[str, float]:
        """Counters: the increase since the last call (zeros left out); gauges: their value if it changed.

        An increase is never negative, so an exporter can add it to a counter of its own.
        """
        changes: dict[str, float] = {}
        for series, now in self._values.items():
            before = self._taken.get(series, 0)
            if now != before:
                kind = parse_series(series)[0].kind
                changes[series] = now - before if kind is MetricKind.COUNTER else now
                self._taken[series] = now
        return changes
