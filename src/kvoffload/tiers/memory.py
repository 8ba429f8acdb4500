"""A tier in this process's memory: the reference of the contract, and the double that tests and simulations use.

Deterministic: no threads, and time only from the clock it is given. A job ends at the first `poll` (or `drain`) after
its latency, and its bytes move then and not before: the worst that a slow tier may do to whoever reuses a buffer early.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import xxhash

from kvoffload.clock import Clock, MonotonicClock
from kvoffload.config.units import format_bytes, parse_bytes
from kvoffload.errors import ConfigError
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

_MIN_PAUSE_S = 1e-6
"""So that rounding cannot make `drain` wait for nothing for ever."""


@dataclass(frozen=True, slots=True)
class MemoryTierConfig:
    """Options of a memory tier. Raises ConfigError when made with a value out of range."""

    max_bytes: int = field(metadata={"parse": parse_bytes})
    name: str = "memory"
    latency_s: float = 0.0
    """How long every job takes, however many there are."""
    max_pending_jobs: int = 64
    """Jobs that were taken and not polled. More are refused."""

    def __post_init__(self) -> None:
        if self.max_bytes < 1 or self.max_pending_jobs < 1:
            raise ConfigError(
                f"memory tier: max_bytes={self.max_bytes} and max_pending_jobs={self.max_pending_jobs} "
                "must be at least 1"
            )
        if not 0 <= self.latency_s < float("inf"):
            raise ConfigError(f"memory tier: latency_s={self.latency_s} must be 0 or more seconds")


@dataclass(slots=True)
class _Chunk:
    data: bytes
    digest: bytes
    """Of what was stored, whatever happened to `data` since."""
    used_s: float


class MemoryMedium:
    """Chunks under a cap; the least recently used go first.

    Several tiers may share one, as processes share a disk: a tier that is made anew on it is a restart. Whatever a
    disk may do to its bytes can be done here, too.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self.generation = 0
        """How often it was cleared: a job of an earlier generation stores nothing."""
        self._chunks: OrderedDict[OffloadKey, _Chunk] = OrderedDict()

    def __len__(self) -> int:
        """Number of chunks."""
        return len(self._chunks)

    def __contains__(self, key: OffloadKey) -> bool:
        """Whether there is something under this key."""
        return key in self._chunks

    def items(self) -> list[tuple[OffloadKey, int, float]]:
        """(key, bytes, last used) of everything, the least recently used first."""
        return [(key, len(chunk.data), chunk.used_s) for key, chunk in self._chunks.items()]

    def has(self, key: OffloadKey, size_bytes: int) -> bool:
        """Whether there is a chunk of this size under this key."""
        chunk = self._chunks.get(key)
        return chunk is not None and len(chunk.data) == size_bytes

    def put(
        self, key: OffloadKey, data: memoryview, now_s: float, kept: Collection[OffloadKey]
    ) -> int | None:
        """Store a copy in place of what is there.

        Returns:
            How many chunks were evicted for it, none of them `kept`; None (and nothing has changed) if that makes
            no room.
        """
        free_bytes = self.max_bytes - self.size_bytes
        victims: list[OffloadKey] = [key] if key in self._chunks else []
        free_bytes += sum(len(self._chunks[victim].data) for victim in victims)
        replaced = len(victims)
        for other, chunk in self._chunks.items():
            if free_bytes >= data.nbytes:
                break
            if other != key and other not in kept:
                victims.append(other)
                free_bytes += len(chunk.data)
        if free_bytes < data.nbytes:
            return None
        for victim in victims:
            self.remove(victim)
        copy = bytes(data)
        self._chunks[key] = _Chunk(copy, xxhash.xxh3_128_digest(copy), now_s)
        self.size_bytes += len(copy)
        return len(victims) - replaced

    def read(self, key: OffloadKey, buffer: memoryview) -> Outcome:
        """Copy a chunk into a buffer: DONE, MISSING, or CORRUPT (then it is removed and the buffer is untouched)."""
        chunk = self._chunks.get(key)
        if chunk is None:
            return Outcome.MISSING
        if len(chunk.data) != buffer.nbytes or xxhash.xxh3_128_digest(chunk.data) != chunk.digest:
            self.remove(key)
            return Outcome.CORRUPT
        buffer[:] = chunk.data
        return Outcome.DONE

    def use(self, key: OffloadKey, now_s: float) -> None:
        """Count a key as used just now, if it is there."""
        if key in self._chunks:
            self._chunks.move_to_end(key)
            self._chunks[key].used_s = now_s

    def remove(self, key: OffloadKey) -> bool:
        """Forget a chunk; False if it was not there."""
        chunk = self._chunks.pop(key, None)
        if chunk is None:
            return False
        self.size_bytes -= len(chunk.data)
        return True

    def clear(self) -> None:
        """Forget everything; jobs that are in flight will store nothing."""
        self._chunks.clear()
        self.size_bytes = 0
        self.generation += 1

    def flip_bit(self, key: OffloadKey, bit: int) -> bool:
        """Damage what is stored (bit number modulo its size); False if it is not there."""
        chunk = self._chunks.get(key)
        if chunk is None or not chunk.data:
            return False
        data = bytearray(chunk.data)
        data[bit // 8 % len(data)] ^= 1 << bit % 8
        chunk.data = bytes(data)
        return True


@dataclass(frozen=True, slots=True, eq=False)
class _Pending:
    job: TierJob
    due_s: float
    generation: int


class MemoryTier(Tier):
    """Keeps copies of chunks, the least recently used go first. Of a job that is too big, the first chunks are kept.

    Args:
        config: See MemoryTierConfig.
        clock: Tells the time.
        medium: Where the chunks are; a new one if not given.
        pause: Lets time go by in `drain`: of a ManualClock its `advance`.
        epoch_s: What the clock's zero is in seconds since the epoch.
    """

    options_type: ClassVar[type[MemoryTierConfig]] = MemoryTierConfig

    def __init__(
        self,
        config: MemoryTierConfig,
        clock: Clock,
        *,
        medium: MemoryMedium | None = None,
        pause: Callable[[float], None] = time.sleep,
        epoch_s: float = 0.0,
    ) -> None:
        self.name = config.name
        self.medium_name = "CPU"
        self.medium = MemoryMedium(config.max_bytes) if medium is None else medium
        self._config = config
        self._clock = clock
        self._pause = pause
        self._epoch_s = epoch_s
        self._jobs: dict[int, _Pending] = {}
        self._reports: list[TierReport] = []
        self._counters = Counter({"evicted": 0, "rejected": 0, "corrupt": 0})
        self._closed = False

    @classmethod
    def open(cls, options: MemoryTierConfig, context: TierContext) -> MemoryTier:
        """See Tier. Nothing of the engine matters: what is in memory serves one engine only."""
        del context
        clock = MonotonicClock()
        return cls(options, clock, epoch_s=time.time() - clock.now_s())

    def describe(self) -> str:
        """See Tier."""
        return f"this process's memory, at most {format_bytes(self.medium.max_bytes)}"

    def lookup(self, keys: Sequence[OffloadKey]) -> list[LookupResult]:
        """See Tier; never RETRY."""
        is_open = not self._closed
        return [LookupResult.HIT if is_open and key in self.medium else LookupResult.MISS for key in keys]

    def submit(self, job: TierJob) -> bool:
        """See Tier."""
        if self._closed or len(self._jobs) + len(self._reports) >= self._config.max_pending_jobs:
            return False
        assert job.job_id not in self._jobs, job.job_id
        due_s = self._clock.now_s() + self._config.latency_s
        self._jobs[job.job_id] = _Pending(job, due_s, self.medium.generation)
        return True

    def poll(self) -> list[TierReport]:
        """See Tier. Jobs that are due are carried out here, in the order in which they came."""
        self._carry_out()
        reports, self._reports = self._reports, []
        return reports

    def touch(self, keys: Sequence[OffloadKey]) -> None:
        """See Tier."""
        for key in keys:
            self.medium.use(key, self._clock.now_s())

    def scan(self) -> Iterator[StoredChunk]:
        """See Tier."""
        return iter([StoredChunk(key, size, self._epoch_s + used) for key, size, used in self.medium.items()])

    def stats(self) -> TierStats:
        """See Tier."""
        return TierStats(
            stored_chunks=len(self.medium),
            stored_bytes=self.medium.size_bytes,
            capacity_bytes=self.medium.max_bytes,
            queued_jobs=len(self._jobs),
            queued_bytes=sum(pending.job.size_bytes for pending in self._jobs.values()),
            counters=dict(self._counters),
        )

    def clear(self) -> bool:
        """See Tier."""
        self.medium.clear()
        return True

    def drain(self, timeout_s: float) -> bool:
        """See Tier."""
        self._carry_out()
        left_s = timeout_s
        while self._jobs and left_s > 0:
            last_s = max(pending.due_s for pending in self._jobs.values())
            step_s = min(left_s, max(_MIN_PAUSE_S, last_s - self._clock.now_s()))
            self._pause(step_s)
            left_s -= step_s
            self._carry_out()
        return not self._jobs

    def shutdown(self) -> None:
        """See Tier."""
        self._closed = True

    def _carry_out(self) -> None:
        now_s = self._clock.now_s()
        due = [pending for pending in self._jobs.values() if self._closed or now_s >= pending.due_s]
        for pending in due:
            del self._jobs[pending.job.job_id]
            self._reports.append(self._run(pending))

    def _run(self, pending: _Pending) -> TierReport:
        job = pending.job
        kept = {entry.key for entry in job.entries}
        outcomes: dict[OffloadKey, Outcome] = {}
        moved_bytes = 0
        for entry in job.entries:
            if self._closed:
                outcomes[entry.key] = Outcome.FAILED
            elif job.verb is Verb.STORE:
                is_new = not self.medium.has(entry.key, entry.buffer.nbytes)
                outcomes[entry.key] = self._store(entry, kept, pending.generation)
                moved_bytes += entry.buffer.nbytes * (is_new and outcomes[entry.key] is Outcome.DONE)
            elif job.verb is Verb.LOAD:
                outcomes[entry.key] = self.medium.read(entry.key, entry.buffer)
                self._counters["corrupt"] += outcomes[entry.key] is Outcome.CORRUPT
                moved_bytes += entry.buffer.nbytes * (outcomes[entry.key] is Outcome.DONE)
            else:
                self.medium.remove(entry.key)
                outcomes[entry.key] = Outcome.DONE
        # The beginning of a prompt is worth more than its end, which is nothing without it.
        self.touch([entry.key for entry in reversed(job.entries)])
        # From its first byte to its last there is no time: the latency stands for the whole of it.
        return TierReport(job.job_id, job.verb, outcomes, self._config.latency_s, moved_bytes)

    def _store(self, entry: TierEntry, kept: Collection[OffloadKey], generation: int) -> Outcome:
        if generation == self.medium.generation:
            if self.medium.has(entry.key, entry.buffer.nbytes):
                return Outcome.DONE
            evicted = self.medium.put(entry.key, entry.buffer, self._clock.now_s(), kept)
            if evicted is not None:
                self._counters["evicted"] += evicted
                return Outcome.DONE
        self._counters["rejected"] += 1
        return Outcome.REJECTED
