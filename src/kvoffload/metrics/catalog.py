"""The catalogue: every metric of the project stands here once, with its unit in its name.

Counters only rise. A metric that is not in `CATALOG` cannot be recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class MetricKind(Enum):
    """How a metric behaves."""

    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its name as users see it in /metrics (without a suffix that the exporter adds)."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"kvoffload_{name}", MetricKind.COUNTER, text, labels)


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"kvoffload_{name}", MetricKind.GAUGE, text, labels)


LOOKUP_TOKENS = _counter("lookup_tokens", "Tokens that requests asked the host tier for")
HIT_TOKENS = _counter("hit_tokens", "Tokens for which a load was planned")
LOADED_CHUNKS = _counter("loaded_chunks", "Chunks copied from host to device")
LOADED_BYTES = _counter("loaded_bytes", "Bytes copied from host to device, all workers together")
LOAD_FAILED_CHUNKS = _counter("load_failed_chunks", "Chunks that could not be loaded and were recomputed")
STORED_CHUNKS = _counter("stored_chunks", "Chunks copied from device to host")
STORED_BYTES = _counter("stored_bytes", "Bytes copied from device to host, all workers together")
STORE_FAILED_CHUNKS = _counter(
    "store_failed_chunks", "Chunks whose copy to the host failed; they stay a miss"
)
STORE_REJECTED_CHUNKS = _counter("store_rejected_chunks", "Chunks not stored because no slot could be freed")
STORE_FILTERED_CHUNKS = _counter("store_filtered_chunks", "Chunks that admission (store_threshold) left out")
EVICTED_CHUNKS = _counter("evicted_chunks", "Chunks evicted from the host tier to make room")
FENCED_JOBS = _counter("fenced_jobs", "Stores finished early because the engine gave their blocks away")
PENDING_TIMEOUTS = _counter(
    "pending_timeouts", "Lookups that waited for a transfer too long and became a miss"
)
LATE_JOBS = _counter("late_jobs", "Transfers that were reported after a reset; their result was dropped")
LOST_JOBS = _counter("lost_jobs", "Transfers that no worker reported within the deadline")
BAD_REQUEST_PARAMS = _counter("bad_request_params", "Requests whose kv_transfer_params were not valid")
PIN_REFUSED_CHUNKS = _counter(
    "pin_refused_chunks", "Chunks whose request pinned them in vain: pins have used up their share"
)
EXPIRED_CHUNKS = _counter("expired_chunks", "Chunks forgotten because the ttl_s of their requests was over")
USELESS_STORE_WARNINGS = _counter(
    "useless_store_warnings", "Times that much had been stored and nothing loaded, by likely cause", "cause"
)
RESETS = _counter("resets", "Calls of reset_cache")
RESIDENT_CHUNKS = _gauge("resident_chunks", "Chunks that can be loaded now")
CAPACITY_CHUNKS = _gauge("capacity_chunks", "Chunks that the host tier can hold")
PINNED_CHUNKS = _gauge("pinned_chunks", "Chunks that a running load protects from eviction")
KEPT_CHUNKS = _gauge("kept_chunks", "Chunks that requests have pinned for a time (pin, pin_ttl_s)")

TIER_CHUNKS = _counter("tier_chunks", "Chunks that a tier was asked for", "tier", "verb", "outcome")
TIER_BYTES = _counter("tier_bytes", "Payload bytes moved to (store) or from (load) a tier", "tier", "verb")
TIER_TIMEOUTS = _counter("tier_timeouts", "Jobs of a tier that were given up at its deadline", "tier", "verb")
TIER_EVENTS = _counter(
    "tier_events", "What a tier itself counts (evictions, errors by kind, …)", "tier", "event"
)
TIER_STORED_BYTES = _gauge(
    "tier_stored_bytes", "Bytes that a tier holds, as far as this process knows", "tier"
)
TIER_OPEN = _gauge("tier_open", "1 while a tier's circuit breaker keeps requests away from it", "tier")
TIER_LOAD_BYTES_PER_SECOND = _gauge(
    "tier_load_bytes_per_second",
    "Measured rate of loads from a tier (what `load_policy: auto` decides by)",
    "tier",
)
TIER_LOAD_LATENCY_SECONDS = _gauge(
    "tier_load_latency_seconds", "The least time that a load from a tier was measured to take", "tier"
)
CASCADE_DROPPED_CHUNKS = _counter(
    "cascade_dropped_chunks",
    "Chunks not handed to a tier because it was under pressure or switched off",
    "tier",
)
READ_THROUGH_CHUNKS = _counter(
    "read_through_chunks", "Chunks that came from a slower tier and were offered to this one", "tier"
)
PROMOTION_TIMEOUTS = _counter("promotion_timeouts", "Requests that waited for tiers until the deadline")
PROMOTION_SKIPPED_CHUNKS = _counter(
    "promotion_skipped_chunks", "Chunks not promoted because recomputing was measured to be faster"
)
RECORD_DROPPED_REQUESTS = _counter(
    "record_dropped_requests",
    "Requests that record_dir should have recorded and did not (file full, disk slow)",
)
ESTIMATED_HIT_RATIO = _gauge(
    "estimated_hit_ratio",
    "Share of recent prompts that LRU would have in a host tier of so many times the present size, device hits included",
    "size",
)
ESTIMATED_HIT_RATIO_ERROR = _gauge(
    "estimated_hit_ratio_error",
    "Two standard errors of estimated_hit_ratio, which comes from a sample",
    "size",
)
PREFILL_TOKENS_PER_SECOND = _gauge("prefill_tokens_per_second", "The engine's measured prefill rate")

CATALOG: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
