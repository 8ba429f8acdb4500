"""Jobs, and the threads that carry them out: bounded queues, loads before stores, an outcome for every key.

It knows nothing of disks: it cuts a job into slices and calls a function with each of them.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvoffload.clock import Clock
from kvoffload.keys.offload_key import OffloadKey
from kvoffload.tiers.base import Outcome, TierEntry, TierJob, TierReport, Verb
from kvoffload.tiers.counters import Counters

logger = logging.getLogger(__name__)

_SLICE_BYTES = 2 * 1024**2
_MAX_SLICE = 32
_TURN_PATIENCE_S = 2.0


class Turnstile:
    """Lets the slices of one job through in their order, whatever threads carry them out."""

    def __init__(self) -> None:
        self._passed = 0
        self._moved = threading.Condition()

    def wait(self, first: int) -> None:
        """Wait until all entries before position `first` are through; not for ever, as a disk may hang."""
        with self._moved:
            self._moved.wait_for(lambda: self._passed >= first, _TURN_PATIENCE_S)

    def pass_through(self, entries: int) -> None:
        """So many entries are through."""
        with self._moved:
            self._passed += entries
            self._moved.notify_all()


@dataclass(frozen=True, slots=True)
class Ticket:
    """What the tier notes of a job when it takes it."""

    generation: int
    """A later one means that the tier was cleared since."""
    time_s: float
    """Seconds since the epoch."""
    turnstile: Turnstile = field(default_factory=Turnstile)
    is_hopeless: threading.Event = field(default_factory=threading.Event)
    """Set by a slice that failed in a way that the others of its job need not try."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a job that one thread carries out."""

    job: TierJob
    entries: Sequence[TierEntry]
    first: int
    """How many entries of the job are in the slices before it."""
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class SliceEnd:
    """What became of a slice."""

    outcomes: dict[OffloadKey, Outcome]
    moved_bytes: int


@dataclass(frozen=True, slots=True)
class ExecutorLimits:
    """Bounds of an executor."""

    threads: int
    max_jobs: int
    """Jobs of one direction that may wait or run."""
    max_bytes: int
    """The same in bytes; one job alone is always taken."""
    has_threads: bool = True
    """False: nothing happens but by `take`, in the place of as many threads."""
    cut: Callable[[TierJob], Sequence[Sequence[TierEntry]]] | None = None
    """The entries of a job in the parts that one thread takes at a time, none empty; None: what suits small files."""


@dataclass(slots=True)
class _Running:
    job: TierJob
    slices: deque[Slice]
    """Those that no thread has taken."""
    open_slices: int = 0
    started_s: float | None = None
    moved_bytes: int = 0
    outcomes: dict[OffloadKey, Outcome] = field(default_factory=dict)


@dataclass(slots=True)
class _Lane:
    """The jobs of one direction."""

    max_threads: int
    waiting: deque[_Running] = field(default_factory=deque)
    """Jobs with entries that no thread has taken."""
    jobs: int = 0
    """Taken and not ended, waiting ones included."""
    size_bytes: int = 0
    busy_threads: int = 0

    @property
    def has_work(self) -> bool:
        return bool(self.waiting) and self.busy_threads < self.max_threads


class JobExecutor:
    """Carries jobs out.

    Args:
        run: Called by the threads with a slice. What it raises is a bug: it is logged, and the slice has failed.
        clock: For `busy_s`.
        counters: What is noteworthy.
        limits: Bounds. Stores leave a quarter of the threads to loads.
        name: For the threads.
    """

    def __init__(
        self,
        run: Callable[[Slice], SliceEnd],
        clock: Clock,
        counters: Counters,
        limits: ExecutorLimits,
        name: str,
    ) -> None:
        self._run = run
        self._clock = clock
        self._counters = counters
        self._limits = limits
        self._name = name
        self._loads = _Lane(limits.threads)
        self._stores = _Lane(limits.threads - max(1, limits.threads // 4))
        self._reports: deque[TierReport] = deque()
        self._stopping = False
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._idle = threading.Condition(self._lock)
        # Daemons: a thread that hangs in a system call must not keep the process from ending.
        self._threads = [
            threading.Thread(target=self._loop, name=f"kvoffload-{name}-io{n}", daemon=True)
            for n in range(limits.threads)
        ]
        if limits.has_threads:
            for thread in self._threads:
                thread.start()

    def submit(self, job: TierJob, ticket: Ticket) -> bool:
        """Take a job; False if there are too many, or after `stop`."""
        size_bytes = job.size_bytes
        lane = self._lane(job.verb)
        with self._lock:
            is_full = lane.jobs >= self._limits.max_jobs or (
                lane.jobs > 0 and lane.size_bytes + size_bytes > self._limits.max_bytes
            )
            if self._stopping or is_full:
                return False
            if not job.entries:
                self._reports.append(TierReport(job.job_id, job.verb, {}, 0.0, 0))
                return True
            running = _Running(job, deque(self._slices(job, ticket, size_bytes)))
            lane.jobs += 1
            lane.size_bytes += size_bytes
            lane.waiting.append(running)
            self._work.notify(min(len(running.slices), self._limits.threads))
            return True

    def poll(self) -> list[TierReport]:
        """The jobs that ended since the last call."""
        return [self._reports.popleft() for _ in range(len(self._reports))]

    def take(self) -> Callable[[], None] | None:
        """The work that a thread would begin now, None if there is none: calling it carries a slice out, if only later."""
        with self._lock:
            if not (self._loads.has_work or self._stores.has_work):
                return None
            lane = self._loads if self._loads.has_work else self._stores
            running, part = self._open_slice(lane)

        def carry_out() -> None:
            end = self._carry_out(part)
            with self._lock:
                self._close_slice(lane, running, end)

        return carry_out

    def pending(self) -> tuple[int, int]:
        """(jobs, bytes) that were taken and have not ended."""
        with self._lock:
            return self._loads.jobs + self._stores.jobs, self._loads.size_bytes + self._stores.size_bytes

    def drain(self, timeout_s: float) -> bool:
        """Wait until everything that was taken has ended; False at the time-out."""
        with self._lock:
            return self._idle.wait_for(lambda: self._loads.jobs + self._stores.jobs == 0, timeout_s)

    def stop(self, timeout_s: float) -> bool:
        """Take no more; what has not begun fails; wait for what has. False if it did not end in time.

        A job that hangs keeps its buffers and is not reported before it ends after all.
        """
        with self._lock:
            self._stopping = True
            for lane in (self._loads, self._stores):
                while lane.waiting:
                    running = lane.waiting.popleft()
                    for part in running.slices:
                        running.outcomes.update((entry.key, Outcome.FAILED) for entry in part.entries)
                    running.slices.clear()
                    if running.open_slices == 0:
                        self._end(lane, running)
            self._work.notify_all()
        return self.drain(timeout_s)

    def _loop(self) -> None:
        lane: _Lane | None = None
        running: _Running | None = None
        end = SliceEnd({}, 0)
        while True:
            with self._lock:
                if lane is not None and running is not None:
                    self._close_slice(lane, running, end)
                while not (self._loads.has_work or self._stores.has_work):
                    if self._stopping:
                        return
                    self._work.wait()
                lane = self._loads if self._loads.has_work else self._stores
                running, part = self._open_slice(lane)
            end = self._carry_out(part)

    def _open_slice(self, lane: _Lane) -> tuple[_Running, Slice]:
        running = lane.waiting[0]
        part = running.slices.popleft()
        if not running.slices:
            lane.waiting.popleft()
        running.open_slices += 1
        lane.busy_threads += 1
        if running.started_s is None:
            running.started_s = self._clock.now_s()
        return running, part

    def _carry_out(self, part: Slice) -> SliceEnd:
        try:
            return self._run(part)
        except Exception:
            logger.exception(
                "%s tier: internal error; %d chunks of a %s failed",
                self._name,
                len(part.entries),
                part.job.verb.value,
            )
            self._counters.add("internal_errors")
            return SliceEnd({entry.key: Outcome.FAILED for entry in part.entries}, 0)

    def _close_slice(self, lane: _Lane, running: _Running, end: SliceEnd) -> None:
        running.outcomes.update(end.outcomes)
        running.moved_bytes += end.moved_bytes
        running.open_slices -= 1
        lane.busy_threads -= 1
        if running.open_slices == 0 and not running.slices:
            self._end(lane, running)

    def _end(self, lane: _Lane, running: _Running) -> None:
        job = running.job
        busy_s = 0.0 if running.started_s is None else self._clock.now_s() - running.started_s
        outcomes = {entry.key: running.outcomes[entry.key] for entry in job.entries}
        self._reports.append(TierReport(job.job_id, job.verb, outcomes, busy_s, running.moved_bytes))
        lane.jobs -= 1
        lane.size_bytes -= job.size_bytes
        self._idle.notify_all()

    def _lane(self, verb: Verb) -> _Lane:
        return self._loads if verb is Verb.LOAD else self._stores

    def _slices(self, job: TierJob, ticket: Ticket, size_bytes: int) -> list[Slice]:
        if self._limits.cut is not None:
            parts = self._limits.cut(job)
        else:
            length = self._slice_length(job, size_bytes)
            parts = [job.entries[at : at + length] for at in range(0, len(job.entries), length)]
        slices: list[Slice] = []
        first = 0
        for entries in parts:
            slices.append(Slice(job, entries, first, ticket))
            first += len(entries)
        assert first == len(job.entries), (first, len(job.entries))
        return slices

    def _slice_length(self, job: TierJob, size_bytes: int) -> int:
        """Entries per slice: enough to make the threads' bookkeeping cheap, few enough to use all threads."""
        count = max(1, len(job.entries))
        by_size = max(1, _SLICE_BYTES * count // size_bytes) if size_bytes else _MAX_SLICE
        return max(1, min(by_size, -(-count // self._limits.threads), _MAX_SLICE))
