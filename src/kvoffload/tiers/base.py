"""The contract of a secondary tier. Small on purpose; `kvoffload.testing.TierTests` says what each verb must do.

A tier is driven by one thread (the scheduler's). No verb of the hot path blocks on I/O: work is submitted, carried
out by threads of the tier, and collected with `poll`. Faults stay inside: whatever the world does wrong is an
outcome of a key, never an exception.

The buffers of a job belong to the tier from `submit` until its report has been polled; neither side touches them
in between (a load's buffers hold nothing useful unless the outcome is DONE).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from kvoffload.keys.fingerprint import Namespace
from kvoffload.keys.offload_key import OffloadKey
from kvoffload.layout.partial import RowShape
from kvoffload.types import LookupResult


class Verb(Enum):
    """What a job does with its keys."""

    STORE = "store"
    LOAD = "load"
    DELETE = "delete"


class Outcome(Enum):
    """What became of one key of a job."""

    DONE = "done"
    """Stored (or there already), loaded and verified, deleted (or not there)."""
    MISSING = "missing"
    """LOAD: not there."""
    CORRUPT = "corrupt"
    """LOAD: there, but what was looked at is not what was stored; it was removed, so that it is missing from now on."""
    REJECTED = "rejected"
    """STORE: no room, or switched off; nothing is wrong."""
    FAILED = "failed"
    """The world's fault (I/O error, permission, time-out); the next try may succeed."""


@dataclass(frozen=True, slots=True, eq=False)
class TierEntry:
    """One chunk of a job."""

    key: OffloadKey
    buffer: memoryview
    """The chunk's row in host memory, C-contiguous bytes, page-aligned; written by LOAD, read by STORE, empty for
    DELETE. It is a whole row also where the engine needs a part of it."""


@dataclass(frozen=True, slots=True, eq=False)
class TierJob:
    """A batch of one verb. `job_id` is unique in the life of the tier."""

    job_id: int
    verb: Verb
    entries: tuple[TierEntry, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(entry.buffer.nbytes for entry in self.entries)


@dataclass(frozen=True, slots=True)
class TierReport:
    """The end of a job: an outcome for every key of it."""

    job_id: int
    verb: Verb
    outcomes: Mapping[OffloadKey, Outcome]
    busy_s: float
    """Time that the job took from its first byte to its last, without waiting in a queue."""
    moved_bytes: int
    """Payload bytes of the entries that are DONE by moving them: of a load those that went into rows, which may be more
    than the ranges asked for and less than the rows."""


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """One chunk in a tier, as `scan` finds it."""

    key: OffloadKey
    size_bytes: int
    """What it occupies, headers and padding included."""
    last_used_s: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class TierStats:
    """How a tier is doing. Counters are since its start and only rise."""

    stored_chunks: int
    stored_bytes: int
    capacity_bytes: int | None
    queued_jobs: int
    queued_bytes: int
    counters: Mapping[str, int]
    """Name → count of everything noteworthy (evicted, corrupt, io_errors, …)."""
    other_namespaces: int = 0
    """How many other namespaces of the same model were seen in the same place at the start."""


@dataclass(frozen=True, slots=True)
class TierContext:
    """What a tier must know of the engine that it serves."""

    namespace: Namespace
    row_bytes: tuple[int, ...]
    """By the group id that stands in keys: bytes of a chunk's buffer in jobs (a multiple of the memory page); 0 for groups
    that are not offloaded."""
    shapes: tuple[RowShape, ...] = ()
    """By group id, where something is known of what lies in the rows; empty: nothing is.

    An engine that holds some ranks only needs the same ranges of every row of a group, for ever. A load that is DONE has
    filled these. Elsewhere a row is as it was, or holds the chunk's true bytes, never anything else. A tier that cannot
    do ranges reads whole rows, which is right as well. What is stored is always whole, so an engine with ranges stores nothing.
    """

    def row_shapes(self) -> tuple[RowShape, ...]:
        """The shapes, or what is known without them."""
        return self.shapes or tuple(RowShape(size) for size in self.row_bytes)


class Tier(ABC):
    """One secondary tier."""

    name: str
    """For logs, metrics and filters."""

    medium_name: str | None = None
    """What it keeps chunks on, as filters of requests may say: "CPU" or "STORAGE"; None matches any."""

    options_type: ClassVar[type[Any]]
    """The dataclass of the tier's own options."""

    @classmethod
    @abstractmethod
    def open(cls, options: Any, context: TierContext) -> Tier:
        """Make the tier for one engine.

        Args:
            options: An instance of `options_type`.
            context: What the engine stores.

        Raises:
            KvError: the tier cannot be used as configured; one line that says how to mend it.
        """

    @abstractmethod
    def lookup(self, keys: Sequence[OffloadKey]) -> list[LookupResult]:
        """HIT, MISS, or RETRY (being found out: ask again), in the order of the keys.

        Does not block on I/O. A HIT is a good guess, not a promise: the load may still be MISSING.
        """

    @abstractmethod
    def submit(self, job: TierJob) -> bool:
        """Take a job, or refuse it (False) because the tier is under pressure or shut down; does not block."""

    @abstractmethod
    def poll(self) -> list[TierReport]:
        """The jobs that ended since the last call; each job that was taken is reported exactly once."""

    @abstractmethod
    def touch(self, keys: Sequence[OffloadKey]) -> None:
        """Count these keys as used; cheap, may be deferred or dropped."""

    @abstractmethod
    def scan(self) -> Iterator[StoredChunk]:
        """Everything that is there. For tools: may block."""

    @abstractmethod
    def stats(self) -> TierStats:
        """How it is doing; does not block on I/O."""

    def describe(self) -> str:
        """A few words for the log line at the start: where it is and how big."""
        return "no description"

    @abstractmethod
    def clear(self) -> bool:
        """Forget everything this namespace has here; jobs in flight do not come back. May block briefly.

        Returns:
            Whether everything is gone.
        """

    @abstractmethod
    def drain(self, timeout_s: float) -> bool:
        """Wait until all jobs that were taken have ended; they must still be polled. False at the time-out."""

    @abstractmethod
    def shutdown(self) -> None:
        """Take no more jobs, end threads within a bound; idempotent. Jobs that did not start are reported FAILED."""
