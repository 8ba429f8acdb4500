"""`FsTier`: a directory as a secondary tier. The facade: it puts the parts together and implements the contract.

scheduler's thread                        threads of the tier
lookup ──> ChunkIndex (memory) ─────────> Prober: one lstat per unknown key
submit ──> JobExecutor ─────────────────> Operations: ChunkReader, ChunkWriter
                                             └─ Room: UsageShare (cap), FreeSpace, Evictor
poll   <── reports                        Upkeep: walks, times of use, signs of life
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from kvoffload.clock import Clock, MonotonicClock, WallClock
from kvoffload.config.units import format_bytes
from kvoffload.keys.fingerprint import Namespace
from kvoffload.keys.offload_key import OffloadKey
from kvoffload.layout.partial import RowShape
from kvoffload.policies.base import EvictionPolicy
from kvoffload.policies.factory import EVICTION_POLICIES
from kvoffload.tiers.base import StoredChunk, Tier, TierContext, TierJob, TierReport, TierStats
from kvoffload.tiers.counters import Counters
from kvoffload.tiers.executor import ExecutorLimits, JobExecutor, Ticket
from kvoffload.tiers.fs.chunk_writer import ChunkWriter
from kvoffload.tiers.fs.clearing import Clearing
from kvoffload.tiers.fs.directory import (
    MAX_DIRECTORIES_BYTES,
    SHARED_DIRECTORY,
    USAGE_FILE,
    key_of_chunk_name,
    walk_namespace,
)
from kvoffload.tiers.fs.disk import DiskIO
from kvoffload.tiers.fs.evictor import Evictor
from kvoffload.tiers.fs.finder import ChunkFinder
from kvoffload.tiers.fs.index import SHARDS, ChunkIndex
from kvoffload.tiers.fs.opening import count_siblings, open_directory
from kvoffload.tiers.fs.operations import Epoch, Operations, Writing
from kvoffload.tiers.fs.options import FsTierConfig
from kvoffload.tiers.fs.place import StorePlace
from kvoffload.tiers.fs.prober import Prober
from kvoffload.tiers.fs.reader import ChunkReader
from kvoffload.tiers.fs.room import FreeSpace, Room
from kvoffload.tiers.fs.share import UsageShare
from kvoffload.tiers.fs.solid import SolidDirectories
from kvoffload.tiers.fs.surroundings import Surroundings
from kvoffload.tiers.fs.unreadable import Unreadable
from kvoffload.tiers.fs.upkeep import Upkeep, UpkeepOptions
from kvoffload.tiers.fs.usage import UsageFile
from kvoffload.tiers.fs.walker import Walker
from kvoffload.tiers.fs.writer import WriterId, new_writer
from kvoffload.types import LookupResult

_CLEAR_PATIENCE_S = 2.0
_AFTER_RESET_S = 1e-6
_BETWEEN_RESETS_NS = 10_000
_DIRECTORIES_PART = 64
_UNBOUNDED_CHUNKS = 2**40
_NANOSECONDS = 1_000_000_000


def _must_prune(cap_bytes: int | None) -> bool:
    """Whether empty directories are worth removing: under a small cap they would leave no room for chunks."""
    return cap_bytes is not None and cap_bytes < _DIRECTORIES_PART * MAX_DIRECTORIES_BYTES


class FsTier(Tier):
    """A directory, local or shared, of self-describing, checksummed chunks under one cap.

    Args:
        config: Options.
        namespace: What the engine's bytes mean.
        rows: Bytes of a chunk, or the shape of its row, for every group.
        clock: For intervals.
        wall_clock: For times on the disk, in seconds since the epoch.
        disk: The disk; tests inject faults here.

    Raises:
        ConfigError: the directory cannot be used as configured, or belongs to another configuration.
    """

    options_type: ClassVar[type[Any]] = FsTierConfig
    has_threads: ClassVar[bool] = True
    """False in a subclass that does by itself, and in its own time, what the threads would do."""

    def __init__(
        self,
        config: FsTierConfig,
        namespace: Namespace,
        rows: Sequence[int | RowShape],
        *,
        clock: Clock,
        wall_clock: Clock,
        disk: DiskIO | None = None,
    ) -> None:
        self.name = config.name
        self.medium_name = "STORAGE"
        self._other_namespaces = 0
        self._config = config
        disk = disk or DiskIO()
        # The root may be a link. It is resolved once, so that all that follows is about one directory.
        root = os.path.realpath(os.path.expanduser(config.root_dir))  # noqa: PTH111
        place = StorePlace(root, namespace, rows, self._new_writer())
        self._direct = open_directory(disk, place, config)
        self._around = Surroundings(disk, place, Counters(), clock, wall_clock)
        self._epoch = Epoch()
        self._clearing: Clearing | None = None
        # Reentrant, as a subclass may do the deletion at once.
        self._clear_lock = threading.RLock()
        """Whether a clearing has ended, and whether the tier is empty because of one, change together."""
        self._is_shut_down = False
        self._assemble()

    @classmethod
    def open(cls, options: FsTierConfig, context: TierContext) -> FsTier:
        """See Tier."""
        rows = context.row_shapes()
        tier = cls(options, context.namespace, rows, clock=MonotonicClock(), wall_clock=WallClock())
        tier._other_namespaces = count_siblings(tier._around.disk, tier._around.place)
        return tier

    def _assemble(self) -> None:
        config, around = self._config, self._around
        disk, place, counters = around.disk, around.place, around.counters
        solid = SolidDirectories(disk)
        finder = ChunkFinder(disk, place, solid)
        self._index = ChunkIndex(self._make_policy, place.file_bytes_of, around.clock, config.negative_ttl_s)
        usage_file = UsageFile(
            disk, f"{place.root}/{SHARED_DIRECTORY}/{USAGE_FILE}", place.writer.text, around.clock
        )
        self._share = UsageShare(usage_file, place.writer.text, config.max_bytes, around.wall_clock)
        evictor = Evictor(
            disk,
            place,
            self._index,
            share=self._share,
            counters=counters,
            prune=_must_prune(config.max_bytes),
        )
        free_space = FreeSpace(disk, place.root, config.min_free_bytes, around.clock)
        room = self._room = Room(config.max_bytes, free_space, self._share, evictor, counters)
        unreadable = None if config.read_only else Unreadable(around.clock)
        self._reader = ChunkReader(disk, place, solid, counters, direct=self._direct, unreadable=unreadable)
        writer = ChunkWriter(disk, place, finder, counters, config.durability, direct=self._direct)
        operations = Operations(
            around,
            self._epoch,
            self._index,
            reader=self._reader,
            share=self._share,
            writing=None if config.read_only else Writing(finder, writer, room),
        )
        limits = ExecutorLimits(
            config.threads, config.max_pending_jobs, config.max_pending_bytes, self.has_threads
        )
        self._executor = JobExecutor(operations.run, around.clock, counters, limits, self.name)
        probing = {} if self.has_threads else {"threads": 0}
        self._prober = Prober(finder, place, self._index, counters=counters, name=self.name, **probing)
        walker = Walker(disk, place, self._index, share=self._share, evictor=evictor, counters=counters)
        options = UpkeepOptions(config.touch_interval_s, config.scan_interval_s, config.read_only)
        self._upkeep = Upkeep(around, options, self._index, walker=walker, share=self._share, room=room)
        if self.has_threads:
            self._upkeep.start()

    def _new_writer(self) -> WriterId:
        return new_writer()

    def _spawn(self, work: Callable[[], None], name: str) -> list[threading.Thread]:
        """Have something done that may take its time; returns the threads that do it."""
        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
        return [thread]

    def _make_policy(self) -> EvictionPolicy:
        place, cap = self._around.place, self._config.max_bytes
        chunks = _UNBOUNDED_CHUNKS if cap is None else max(1, cap // place.smallest_file_bytes)
        return EVICTION_POLICIES.resolve(self._config.eviction_policy)(max(1, chunks // SHARDS))

    def lookup(self, keys: Sequence[OffloadKey]) -> list[LookupResult]:
        """See Tier. Reads dictionaries only; what they do not know is found out by threads."""
        if self._epoch.is_clearing or self._is_shut_down:
            return [LookupResult.MISS] * len(keys)
        answers, unknown = self._index.lookup(keys)
        if unknown:
            self._prober.ask(unknown)
        return answers

    def submit(self, job: TierJob) -> bool:
        """See Tier."""
        # The clock may have been set back since a reset: what is stored after it must not look older than it.
        after_reset_s = self._reader.not_before_ns / _NANOSECONDS + _AFTER_RESET_S
        now_s = max(self._around.wall_clock.now_s(), after_reset_s)
        return self._executor.submit(job, Ticket(self._epoch.generation, now_s))

    def poll(self) -> list[TierReport]:
        """See Tier."""
        return self._executor.poll()

    def touch(self, keys: Sequence[OffloadKey]) -> None:
        """See Tier. Deferred to the next eviction or upkeep."""
        now_s = self._around.wall_clock.now_s()
        self._index.use([(key, now_s) for key in keys])

    def scan(self) -> Iterator[StoredChunk]:
        """See Tier. What is on the disk now, whoever stored it."""
        disk, place = self._around.disk, self._around.place

        def note(_path: str, error: OSError) -> None:
            self._around.counters.add_error("scan", error)

        for leaf in walk_namespace(disk, place.directory, note):
            for file in leaf.chunks:
                key = key_of_chunk_name(file.name)
                if key is not None:
                    yield StoredChunk(key, file.size_bytes, file.mtime_ns / _NANOSECONDS)

    def stats(self) -> TierStats:
        """See Tier. `stored_*` is this namespace, as this process knows it; the capacity is the whole directory's."""
        jobs, size_bytes = self._executor.pending()
        return TierStats(
            stored_chunks=self._index.count,
            stored_bytes=self._index.size_bytes,
            capacity_bytes=self._config.max_bytes,
            queued_jobs=jobs,
            queued_bytes=size_bytes,
            counters=self._around.counters.snapshot(),
            other_namespaces=self._other_namespaces,
        )

    def describe(self) -> str:
        """See Tier."""
        config = self._config
        cap = "no cap" if config.max_bytes is None else f"at most {format_bytes(config.max_bytes)}"
        access = "O_DIRECT" if self._direct else "through the page cache"
        mode = "read only" if config.read_only else f"durability {config.durability.value}"
        return f"{self._around.place.directory}, {cap}, {access}, {mode}"

    def clear(self) -> bool:
        """See Tier. While files are being deleted, the tier is empty and takes nothing; waits 2 s at most.

        A tier that only reads deletes nothing, but is as empty afterwards: it never serves what was there before.
        """
        if self._is_shut_down:
            return False
        with self._clear_lock:
            self._begin_anew()
            if self._config.read_only:
                return True
            self._epoch.is_clearing = True
            clearing = self._clearing
            if clearing is None or clearing.has_ended:
                clearing = self._clearing = Clearing(self._around, self._share, self._end_clearing)
                self._spawn(clearing.run, "kvoffload-fs-clear")
        return clearing.wait(_CLEAR_PATIENCE_S)

    def _begin_anew(self) -> None:
        """From now on nothing that is there counts any more."""
        self._epoch.generation += 1
        # Airtight against a store that becomes visible just now: its file says that it is older. Later than the
        # reset before, also if the clock was set back in between.
        now_ns = round(self._around.wall_clock.now_s() * _NANOSECONDS)
        reset_ns = self._reader.not_before_ns
        self._reader.not_before_ns = max(now_ns, reset_ns + _BETWEEN_RESETS_NS if reset_ns else 0)
        if self._config.read_only:
            self._around.place.kept_since_ns = self._reader.not_before_ns
        self._index.clear()

    def _end_clearing(self, set_ended: Callable[[], None]) -> None:
        with self._clear_lock:
            self._index.clear()
            self._epoch.is_clearing = False
            set_ended()

    def drain(self, timeout_s: float) -> bool:
        """See Tier."""
        return self._executor.drain(timeout_s)

    def shutdown(self) -> None:
        """See Tier. Bounded by `shutdown_timeout_s` even if a thread hangs in a system call."""
        if self._is_shut_down:
            return
        self._is_shut_down = True
        deadline_s = time.monotonic() + self._config.shutdown_timeout_s
        self._executor.stop(self._config.shutdown_timeout_s)
        for thread in (*self._prober.stop(), self._upkeep.stop(), *self._leave()):
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _leave(self) -> list[threading.Thread]:
        """Give back what was promised, in a thread: the disk may hang."""
        if self._config.read_only:
            return []

        def leave() -> None:
            # If it cannot be told, the next walk finds out that this writer is dead.
            with contextlib.suppress(OSError):
                self._share.close()

        return self._spawn(leave, "kvoffload-fs-leave")
