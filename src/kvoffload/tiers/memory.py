"""A tier in this process's memory: the reference of the contract, and the double that simulations use.

Deterministic: no threads, and time only from the clock it is given. A job ends at the first `poll` after its latency.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from kvoffload.clock import Clock, MonotonicClock
from kvoffload.config.units import parse_bytes
from kvoffload.keys.offload_key import OffloadKey
from kvoffload.tiers.base import (
    Outcome,
    StoredChunk,
    Tier,
    TierContext,
    TierEntry,
    TierJob,
    TierReport,
    TierStats,
    Verb,
)
from kvoffload.types import LookupResult


@dataclass(frozen=True, slots=True)
class MemoryTierConfig:
    """Options of a memory tier."""

    max_bytes: int = field(metadata={"parse": parse_bytes})
    name: str = "memory"
    latency_s: float = 0.0
    """How long every job takes."""
    max_pending_jobs: int = 64


class MemoryTier(Tier):
    """Keeps copies of chunks, the least recently used go first.

    Args:
        config: See MemoryTierConfig.
        clock: Tells the time.
    """

    options_type: ClassVar[type[MemoryTierConfig]] = MemoryTierConfig

    def __init__(self, config: MemoryTierConfig, clock: Clock) -> None:
        self.name = config.name
        self._config = config
        self._clock = clock
        self._chunks: OrderedDict[OffloadKey, bytes] = OrderedDict()
        self._used_s: dict[OffloadKey, float] = {}
        self._bytes = 0
        self._jobs: dict[int, tuple[TierJob, float]] = {}
        self._overtaken: set[int] = set()
        self._counters = {"evicted": 0, "rejected": 0}
        self._closed = False

    @classmethod
    def open(cls, options: MemoryTierConfig, context: TierContext) -> MemoryTier:
        """See Tier. Nothing of the engine matters: what is in memory serves one engine only."""
        del context
        return cls(options, MonotonicClock())

    def describe(self) -> str:
        """See Tier."""
        return f"{self._config.max_bytes} bytes of this process"

    def lookup(self, keys: Sequence[OffloadKey]) -> list[LookupResult]:
        """See Tier; never RETRY."""
        return [LookupResult.HIT if key in self._chunks else LookupResult.MISS for key in keys]

    def submit(self, job: TierJob) -> bool:
        """See Tier."""
        if self._closed or len(self._jobs) >= self._config.max_pending_jobs:
            return False
        self._jobs[job.job_id] = (job, self._clock.now_s())
        return True

    def poll(self) -> list[TierReport]:
        """See Tier. Jobs are carried out here."""
        now_s = self._clock.now_s()
        due = [
            job
            for job, since_s in self._jobs.values()
            if self._closed or now_s - since_s >= self._config.latency_s
        ]
        for job in due:
            del self._jobs[job.job_id]
        return [self._run(job) for job in due]

    def touch(self, keys: Sequence[OffloadKey]) -> None:
        """See Tier."""
        for key in keys:
            if key in self._chunks:
                self._chunks.move_to_end(key)
                self._used_s[key] = self._clock.now_s()

    def scan(self) -> Iterator[StoredChunk]:
        """See Tier; times are those of the clock."""
        return iter([StoredChunk(key, len(data), self._used_s[key]) for key, data in self._chunks.items()])

    def stats(self) -> TierStats:
        """See Tier."""
        queued = sum(job.size_bytes for job, _ in self._jobs.values())
        return TierStats(
            len(self._chunks),
            self._bytes,
            self._config.max_bytes,
            len(self._jobs),
            queued,
            dict(self._counters),
        )

    def clear(self) -> bool:
        """See Tier."""
        for key in list(self._chunks):
            self._remove(key)
        self._overtaken.update(job_id for job_id, (job, _) in self._jobs.items() if job.verb is Verb.STORE)
        return True

    def drain(self, timeout_s: float) -> bool:
        """See Tier. Jobs need a poll to end, so there is nothing to wait for."""
        del timeout_s
        return not self._jobs

    def shutdown(self) -> None:
        """See Tier."""
        self._closed = True

    def _run(self, job: TierJob) -> TierReport:
        overtaken = job.job_id in self._overtaken
        self._overtaken.discard(job.job_id)
        outcomes = {
            entry.key: Outcome.FAILED
            if self._closed
            else self._run_entry(job.verb, entry, overtaken=overtaken)
            for entry in job.entries
        }
        moved = sum(entry.buffer.nbytes for entry in job.entries if outcomes[entry.key] is Outcome.DONE)
        return TierReport(job.job_id, job.verb, outcomes, self._config.latency_s, moved)

    def _run_entry(self, verb: Verb, entry: TierEntry, *, overtaken: bool) -> Outcome:
        if verb is Verb.DELETE:
            self._remove(entry.key)
            return Outcome.DONE
        if verb is Verb.STORE:
            return Outcome.DONE if overtaken else self._store(entry)
        data = self._chunks.get(entry.key)
        if data is None or len(data) != entry.buffer.nbytes:
            return Outcome.MISSING
        entry.buffer[:] = data
        self.touch([entry.key])
        return Outcome.DONE

    def _store(self, entry: TierEntry) -> Outcome:
        if entry.key not in self._chunks:
            if entry.buffer.nbytes > self._config.max_bytes:
                self._counters["rejected"] += 1
                return Outcome.REJECTED
            while self._bytes + entry.buffer.nbytes > self._config.max_bytes:
                self._remove(next(iter(self._chunks)))
                self._counters["evicted"] += 1
            self._chunks[entry.key] = bytes(entry.buffer)
            self._bytes += entry.buffer.nbytes
        self._used_s[entry.key] = self._clock.now_s()
        self._chunks.move_to_end(entry.key)
        return Outcome.DONE

    def _remove(self, key: OffloadKey) -> None:
        data = self._chunks.pop(key, None)
        if data is not None:
            self._bytes -= len(data)
            del self._used_s[key]
