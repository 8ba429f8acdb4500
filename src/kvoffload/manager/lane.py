"""One tier as the manager's staging sees it: a bounded queue of stores, jobs in flight, a breaker, measured speeds.

It knows no requests and no host index: it takes chunks with their buffers and says what became of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvoffload.config.options import LaneOptions
from kvoffload.keys.offload_key import OffloadKey
from kvoffload.manager.estimates import TransferMeter
from kvoffload.manager.health import BreakerState, CircuitBreaker
from kvoffload.tiers.base import Tier, TierEntry, TierJob, TierReport, Verb
from kvoffload.types import LookupResult, SlotId


@dataclass(frozen=True, slots=True)
class HostChunk:
    """A chunk in a host slot."""

    group: int
    key: OffloadKey
    slot: SlotId


@dataclass(slots=True)
class LaneJob:
    """A job that the tier has."""

    job_id: int
    verb: Verb
    chunks: tuple[HostChunk, ...]
    size_bytes: int
    started_s: float
    lost: bool = False


BufferOf = Callable[[int, SlotId], memoryview]
"""(group, slot) → the row's bytes."""


class TierLane:
    """Everything between the staging and one tier.

    Args:
        tier: The tier.
        config: Bounds.
        buffer_of: Gives the row of a slot.
    """

    def __init__(self, tier: Tier, config: LaneOptions, buffer_of: BufferOf) -> None:
        self.tier = tier
        self.config = config
        self.breaker = CircuitBreaker(config.failures_to_open, config.retry_after_s)
        self.load_meter = TransferMeter()
        self._buffer_of = buffer_of
        self._queue: deque[HostChunk] = deque()
        self._queued_bytes = 0
        self._jobs: dict[int, LaneJob] = {}
        self._next_id = 0
        self._loads_ended_s = float("-inf")

    @property
    def name(self) -> str:
        """The tier's name."""
        return self.tier.name

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait to be stored."""
        return self._queued_bytes

    @property
    def busy(self) -> bool:
        """Whether something is queued or in flight (lost jobs do not count)."""
        return bool(self._queue) or any(not job.lost for job in self._jobs.values())

    def in_flight_bytes(self, verb: Verb) -> int:
        """Bytes of the jobs of one verb that the tier has, lost ones included: their buffers are still in use."""
        return sum(job.size_bytes for job in self._jobs.values() if job.verb is verb)

    def lookup(self, keys: Sequence[OffloadKey]) -> list[LookupResult]:
        """What the tier says; everything is a MISS while the breaker is not closed."""
        if self.breaker.state is not BreakerState.CLOSED:
            return [LookupResult.MISS] * len(keys)
        return self.tier.lookup(keys)

    def enqueue(self, chunk: HostChunk) -> bool:
        """Queue a store; False if the tier is not to be bothered or the queue is full."""
        size = self.row_bytes(chunk)
        if self.breaker.state is not BreakerState.CLOSED and self._queue:
            return False
        if self._queued_bytes + size > self.config.max_queued_bytes:
            return False
        self._queue.append(chunk)
        self._queued_bytes += size
        return True

    def drop_queue(self) -> list[HostChunk]:
        """Empty the queue; returns what was in it."""
        dropped = list(self._queue)
        self._queue.clear()
        self._queued_bytes = 0
        return dropped

    def start_load(self, chunks: Sequence[HostChunk], now_s: float) -> int | None:
        """Hand a load over; None if the tier does not take it."""
        return self._submit(Verb.LOAD, tuple(chunks), now_s) if chunks else None

    def pump(self, now_s: float) -> None:
        """Hand queued stores over, as far as bounds, breaker and the tier allow."""
        while self._queue and self.breaker.allows(now_s):
            if self.in_flight_bytes(Verb.STORE) >= self.config.max_store_bytes_in_flight:
                return
            batch = self._next_batch()
            if self._submit(Verb.STORE, batch, now_s) is None:
                return
            for chunk in batch:
                self._queue.popleft()
                self._queued_bytes -= self.row_bytes(chunk)

    def collect(self) -> list[tuple[LaneJob, TierReport]]:
        """Jobs that ended since the last call, lost ones included."""
        return [(self._jobs.pop(report.job_id), report) for report in self.tier.poll()]

    def measure_loads(self, ended: Sequence[tuple[LaneJob, TierReport]], now_s: float) -> None:
        """Learn the tier's speed from loads that ended together: from the end of those before, if they waited for them."""
        loads = [(job, report) for job, report in ended if job.verb is Verb.LOAD]
        if loads:
            began_s = max(min(job.started_s for job, _ in loads), self._loads_ended_s)
            self.load_meter.add(sum(report.moved_bytes for _, report in loads), now_s - began_s)
            self._loads_ended_s = now_s

    def give_up_overdue(self, now_s: float) -> list[LaneJob]:
        """Jobs beyond the deadline become lost; the breaker opens if there are any."""
        late = [
            job
            for job in self._jobs.values()
            if not job.lost and now_s - job.started_s >= self.config.deadline_s
        ]
        for job in late:
            job.lost = True
        if late:
            self.breaker.timed_out(now_s)
        return late

    def chunks_of(self, verb: Verb) -> list[HostChunk]:
        """Chunks whose host slot the lane needs: those of jobs, lost ones included, and of queued stores."""
        queued = self._queue if verb is Verb.STORE else ()
        return [*queued, *(chunk for job in self._jobs.values() if job.verb is verb for chunk in job.chunks)]

    def row_bytes(self, chunk: HostChunk) -> int:
        """Bytes that a chunk has in this tier's jobs."""
        return self._buffer_of(chunk.group, chunk.slot).nbytes

    def _next_batch(self) -> tuple[HostChunk, ...]:
        batch: list[HostChunk] = []
        size = 0
        for chunk in self._queue:
            batch.append(chunk)
            size += self.row_bytes(chunk)
            if size >= self.config.batch_bytes:
                break
        return tuple(batch)

    def _submit(self, verb: Verb, chunks: tuple[HostChunk, ...], now_s: float) -> int | None:
        if not self.breaker.allows(now_s):
            return None
        self._next_id += 1
        entries = tuple(TierEntry(chunk.key, self._buffer_of(chunk.group, chunk.slot)) for chunk in chunks)
        job = TierJob(self._next_id, verb, entries)
        if not self.tier.submit(job):
            return None
        self.breaker.started()
        self._jobs[job.job_id] = LaneJob(job.job_id, verb, chunks, job.size_bytes, now_s)
        return job.job_id
