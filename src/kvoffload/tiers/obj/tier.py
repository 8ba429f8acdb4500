"""`ObjTier`: an object store as a secondary tier. The facade: it puts the parts together and implements the contract.

scheduler's thread                        threads of the tier
lookup ──> Catalogue (memory) <────────── Follower: reads the journal, one listing every few seconds
submit ──> JobExecutor ─────────────────> Storing, Loading, Deleting
                                             ├─ Announcer: writes the journal
                                             └─ Room: the cap
poll   <── reports                        Upkeep: Follower, Sweeper
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from kvoffload.clock import Clock, MonotonicClock, WallClock
from kvoffload.config.units import format_bytes
from kvoffload.errors import ConfigError
from kvoffload.keys.fingerprint import Namespace
from kvoffload.keys.offload_key import OffloadKey
from kvoffload.layout.partial import RowShape
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
from kvoffload.tiers.counters import Counters
from kvoffload.tiers.executor import ExecutorLimits, JobExecutor, Slice, SliceEnd, Ticket
from kvoffload.tiers.obj.address import parse_address
from kvoffload.tiers.obj.announcer import Announcer
from kvoffload.tiers.obj.around import Around
from kvoffload.tiers.obj.caller import Caller, CallLimits
from kvoffload.tiers.obj.catalogue import Catalogue
from kvoffload.tiers.obj.client import ObjectClient, open_client
from kvoffload.tiers.obj.cutting import parts_to_read
from kvoffload.tiers.obj.deleting import Deleting
from kvoffload.tiers.obj.follower import Follower
from kvoffload.tiers.obj.journal import Went
from kvoffload.tiers.obj.loading import Loading
from kvoffload.tiers.obj.opening import check_ownership
from kvoffload.tiers.obj.options import ObjTierConfig
from kvoffload.tiers.obj.place import ObjPlace
from kvoffload.tiers.obj.room import Room
from kvoffload.tiers.obj.storing import Storing, reject_all
from kvoffload.tiers.obj.sweeping import Sweeper
from kvoffload.tiers.obj.trouble import ObjectError
from kvoffload.tiers.obj.upkeep import Upkeep
from kvoffload.types import LookupResult

_CLEAR_PATIENCE_S = 2.0
_AFTER_RESET_S = 1e-3
_SAID_AT_ONCE = 20_000
"""Objects of which one journal object says that they are gone."""


class ObjTier(Tier):
    """Packs of self-describing, checksummed chunks in an object store that a fleet shares.

    Args:
        config: Options.
        namespace: What the engine's bytes mean.
        rows: Bytes of a chunk, or the shape of its row, for every group.
        client: The store; None: made from the options.
        clock: For intervals.
        wall_clock: For times that others see, in seconds since the epoch.

    Raises:
        ConfigError: the store refuses this engine, or belongs to another configuration.
    """

    options_type: ClassVar[type[Any]] = ObjTierConfig

    def __init__(
        self,
        config: ObjTierConfig,
        namespace: Namespace,
        rows: Sequence[int | RowShape],
        *,
        client: ObjectClient | None = None,
        clock: Clock | None = None,
        wall_clock: Clock | None = None,
    ) -> None:
        self.name = config.name
        self._config = config
        clock = clock or MonotonicClock()
        counters = Counters()
        limits = CallLimits.of(config)
        caller = Caller(client or open_client(config), limits, clock, counters, config.name)
        place = ObjPlace(namespace, rows)
        if config.max_bytes is not None and config.max_bytes < place.smallest_file_bytes:
            raise ConfigError(
                f"obj tier: max_bytes={config.max_bytes} holds not even one chunk of {place.smallest_file_bytes} bytes; "
                "give more"
            )
        self._address = parse_address(config.url).text
        self._around = Around(config, caller, place, Catalogue(), counters, clock, wall_clock or WallClock())
        check_ownership(self._around, self._address)
        self._started_s = clock.now_s()
        self._is_shut_down = False
        self._clear_lock = threading.Lock()
        self._clearing: threading.Thread | None = None
        self._is_cleared = False
        self._assemble()

    @classmethod
    def open(cls, options: ObjTierConfig, context: TierContext) -> ObjTier:
        """See Tier."""
        return cls(options, context.namespace, context.row_shapes())

    def _assemble(self) -> None:
        around, config = self._around, self._config
        self._announcer = Announcer(around.caller, around.place, around.wall_clock)
        self._follower = Follower(around, self._announcer)
        room = Room(around, self._announcer)
        self.sweeper = Sweeper(around, self._announcer, self._follower, room)
        """For tools."""
        self._deleting = Deleting(around, self._announcer, self._follower)
        self._storing = Storing(around, self._announcer, room)
        self._loading = Loading(around, self._follower, None if config.read_only else self._deleting)
        limits = ExecutorLimits(
            config.threads, config.max_pending_jobs, config.max_pending_bytes, cut=self._cut
        )
        self._executor = JobExecutor(self._run, around.clock, around.counters, limits, self.name)
        self._upkeep = Upkeep(around, self._follower, self.sweeper)
        self._upkeep.start()

    def _run(self, part: Slice) -> SliceEnd:
        if part.ticket.is_hopeless.is_set():
            # A request has failed with all of its repetitions: the job shall end in time.
            self._around.counters.add(f"{'reads' if part.job.verb is Verb.LOAD else 'writes'}_not_tried")
            return _all_failed(part)
        end = self._carry_out(part)
        if Outcome.FAILED in end.outcomes.values():
            part.ticket.is_hopeless.set()
        return end

    def _carry_out(self, part: Slice) -> SliceEnd:
        if part.job.verb is Verb.LOAD:
            return self._loading.run(part)
        if self._config.read_only:
            return reject_all(part) if part.job.verb is Verb.STORE else _all_failed(part)
        return self._storing.run(part) if part.job.verb is Verb.STORE else self._deleting.run(part)

    def _cut(self, job: TierJob) -> Sequence[Sequence[TierEntry]]:
        """A pack is written, and a span read, by one thread; what is to be deleted from one object is so at once."""
        if job.verb is Verb.DELETE:
            return [job.entries]
        if job.verb is Verb.LOAD:
            return parts_to_read(job.entries, self._around.catalogue.find, self._config.read_span_bytes)
        return self._storing.objects_of(job.entries)

    def lookup(self, keys: Sequence[OffloadKey]) -> list[LookupResult]:
        """See Tier. Reads a dictionary only."""
        if self._around.epoch.is_clearing or self._is_shut_down:
            return [LookupResult.MISS] * len(keys)
        find = self._around.catalogue.find
        unknown = LookupResult.MISS if self._is_warm() else LookupResult.RETRY
        return [unknown if find(key) is None else LookupResult.HIT for key in keys]

    def _is_warm(self) -> bool:
        if self._follower.is_warm.is_set():
            return True
        return self._around.clock.now_s() - self._started_s >= self._config.warm_up_s

    def submit(self, job: TierJob) -> bool:
        """See Tier."""
        epoch = self._around.epoch
        now_s = max(self._around.wall_clock.now_s(), epoch.not_before_s + _AFTER_RESET_S)
        return self._executor.submit(job, Ticket(epoch.generation, now_s))

    def poll(self) -> list[TierReport]:
        """See Tier."""
        return self._executor.poll()

    def touch(self, keys: Sequence[OffloadKey]) -> None:
        """See Tier. Known to this process only."""
        self._around.catalogue.touch(keys, self._around.wall_clock.now_s())

    def scan(self) -> Iterator[StoredChunk]:
        """See Tier. What is in the store now, whoever stored it. Raises ObjectError."""
        self.sweeper.survey()
        for key, size_bytes, used_s in self._around.catalogue.listed():
            yield StoredChunk(key, size_bytes, used_s)

    def stats(self) -> TierStats:
        """See Tier. `stored_*` is this namespace, as this process knows it, the chunks of all engines."""
        jobs, size_bytes = self._executor.pending()
        return TierStats(
            stored_chunks=self._around.catalogue.chunks,
            stored_bytes=self._around.catalogue.size_bytes,
            capacity_bytes=self._config.max_bytes,
            queued_jobs=jobs,
            queued_bytes=size_bytes,
            counters=self._around.counters.snapshot(),
        )

    def describe(self) -> str:
        """See Tier."""
        config = self._config
        cap = "no cap" if config.max_bytes is None else f"at most {format_bytes(config.max_bytes)}"
        mode = "read only" if config.read_only else f"packs of {format_bytes(config.pack_bytes)}"
        return f"{self._address}/{self._around.place.base}, {cap}, {mode}"

    def clear(self) -> bool:
        """See Tier. While objects are being deleted, the tier is empty and takes nothing; waits 2 s at most."""
        if self._is_shut_down:
            return False
        epoch = self._around.epoch
        with self._clear_lock:
            with epoch.lock:
                epoch.generation += 1
                epoch.is_clearing = not self._config.read_only
                epoch.not_before_s = max(self._around.wall_clock.now_s(), epoch.not_before_s + _AFTER_RESET_S)
                self._around.catalogue.clear()
            if self._config.read_only:
                return True
            clearing = self._clearing
            if clearing is None or not clearing.is_alive():
                clearing = self._clearing = threading.Thread(
                    target=self._delete_all, name=f"kvoffload-{self.name}-clear", daemon=True
                )
                clearing.start()
        clearing.join(_CLEAR_PATIENCE_S)
        return not epoch.is_clearing and self._is_cleared

    def _delete_all(self) -> None:
        around = self._around
        self._is_cleared = False
        try:
            names = [info.name for info in around.caller.list(around.place.base)]
            data = [name for name in names if around.place.is_data(name)]
            around.caller.delete(
                data + [name for name in names if around.place.journal_time_s(name) is not None]
            )
            self._is_cleared = True
            # Else others would take all of it for stored until they list everything.
            for first in range(0, len(data), _SAID_AT_ONCE):
                self._announcer.announce_alone([Went(name) for name in data[first : first + _SAID_AT_ONCE]])
        except ObjectError:
            # What is left is older than the reset, and so not taken from the journal again.
            around.counters.add("clear_failures")
        self._follower.forget()
        with around.epoch.lock:
            around.catalogue.clear()
            around.epoch.is_clearing = False

    def drain(self, timeout_s: float) -> bool:
        """See Tier."""
        return self._executor.drain(timeout_s)

    def shutdown(self) -> None:
        """See Tier. Bounded by `shutdown_timeout_s`, even if the store does not answer."""
        if self._is_shut_down:
            return
        self._is_shut_down = True
        deadline_s = time.monotonic() + self._config.shutdown_timeout_s
        thread = self._upkeep.stop()
        self._executor.stop(self._config.shutdown_timeout_s)
        self._around.caller.stop()
        self._follower.stop()
        with contextlib.suppress(RuntimeError):
            thread.join(max(0.0, deadline_s - time.monotonic()))


def _all_failed(part: Slice) -> SliceEnd:
    outcomes: dict[OffloadKey, Outcome] = {entry.key: Outcome.FAILED for entry in part.entries}
    return SliceEnd(outcomes, 0)
