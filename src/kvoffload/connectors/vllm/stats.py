"""The core's counters through the engine's own log and /metrics."""

from __future__ import annotations

from typing import Any

from prometheus_client import Counter, Gauge
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from kvoffload.metrics.catalog import CATALOG, MetricKind
from kvoffload.metrics.recorder import parse_series


class KvoffloadStats(KVConnectorStats):
    """Changes of metrics since the last time: `data` maps series to increases (counters) or values (gauges)."""

    def reset(self) -> None:
        """Forget the changes."""
        self.data: dict[str, Any] = {}

    def aggregate(self, other: KVConnectorStats) -> KvoffloadStats:
        """Add later changes."""
        for series, value in other.data.items():
            if parse_series(series)[0].kind is MetricKind.COUNTER:
                self.data[series] = self.data.get(series, 0) + value
            else:
                self.data[series] = value
        return self

    def reduce(self) -> dict[str, int | float]:
        """The changes, under short names, for the engine's log line."""
        return {name.removeprefix("kvoffload_"): value for name, value in self.data.items()}

    def is_empty(self) -> bool:
        """Whether nothing changed."""
        return not self.data


class KvoffloadPromMetrics(KVConnectorPromMetrics):
    """Registers every metric of the catalogue once and feeds it, per engine."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: dict[type, type],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        kinds = {MetricKind.COUNTER: metric_types[Counter], MetricKind.GAUGE: metric_types[Gauge]}
        self._engines = per_engine_labelvalues
        self._metrics: dict[str, Any] = {
            metric.name: kinds[metric.kind](
                name=metric.name, documentation=metric.help, labelnames=[*labelnames, *metric.labels]
            )
            for metric in CATALOG
        }
        for metric in CATALOG:
            if not metric.labels:  # shown as 0 before they first move
                for labels in per_engine_labelvalues.values():
                    self._metrics[metric.name].labels(*labels)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Take changes over into the metrics of one engine."""
        for series, value in transfer_stats_data.items():
            metric, own = parse_series(series)
            values = [*self._engines[engine_idx], *(own[label] for label in metric.labels)]
            child = self._metrics[metric.name].labels(*values)
            if metric.kind is MetricKind.COUNTER:
                child.inc(value)
            else:
                child.set(value)
