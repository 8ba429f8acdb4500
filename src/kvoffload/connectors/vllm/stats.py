"""The core's counters through the engine's own log and /metrics."""

from __future__ import annotations

from typing import Any

from prometheus_client import Counter, Gauge
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from kvoffload.metrics.catalog import CATALOG, MetricKind

_KINDS = {metric.name: metric.kind for metric in CATALOG}


class KvoffloadStats(KVConnectorStats):
    """Changes of metrics since the last time: `data` maps names to increases (counters) or values (gauges)."""

    def reset(self) -> None:
        """Forget the changes."""
        self.data: dict[str, Any] = {}

    def aggregate(self, other: KVConnectorStats) -> KvoffloadStats:
        """Add later changes."""
        for name, value in other.data.items():
            if _KINDS[name] is MetricKind.COUNTER:
                self.data[name] = self.data.get(name, 0) + value
            else:
                self.data[name] = value
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
        self._metrics: dict[int, dict[str, Any]] = {index: {} for index in per_engine_labelvalues}
        for metric in CATALOG:
            parent = kinds[metric.kind](name=metric.name, documentation=metric.help, labelnames=labelnames)
            for index, labels in per_engine_labelvalues.items():
                self._metrics[index][metric.name] = parent.labels(*labels)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Take changes over into the metrics of one engine."""
        for name, value in transfer_stats_data.items():
            child = self._metrics[engine_idx][name]
            if _KINDS[name] is MetricKind.COUNTER:
                child.inc(value)
            else:
                child.set(value)
