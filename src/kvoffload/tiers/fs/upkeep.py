"""The tier's housekeeping, in one thread of its own: walks, signs of life, times of use."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.tiers.fs.directory import GONE
from kvoffload.tiers.fs.index import ChunkIndex
from kvoffload.tiers.fs.room import Room
from kvoffload.tiers.fs.share import UsageShare
from kvoffload.tiers.fs.surroundings import Surroundings
from kvoffload.tiers.fs.walker import Walker, WalkStoppedError

logger = logging.getLogger(__name__)

_TICK_S = 0.25
_SIGN_OF_LIFE_S = 20.0
_MIN_WALK_PAUSE_S = 5.0
"""A walk that was asked for, because the one before is used up or has failed, comes at least this long after it."""
_MAX_WRITTEN = 100_000
_REST_AFTER_S = 0.02
_NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class UpkeepOptions:
    """How often what is done."""

    touch_interval_s: float
    walk_interval_s: float
    read_only: bool


class Upkeep:
    """Keeps the tier in order. Its thread begins with `start`; tests call `tick` themselves.

    Args:
        around: The disk and the clocks.
        options: How often what is done.
        index: The chunks of this namespace.
        walker: Makes the walks.
        share: Shows that this writer lives.
        room: Asks for walks, and is told of them.
    """

    def __init__(
        self,
        around: Surroundings,
        options: UpkeepOptions,
        index: ChunkIndex,
        *,
        walker: Walker,
        share: UsageShare,
        room: Room,
    ) -> None:
        self._around = around
        self._options = options
        self._index = index
        self._walker = walker
        self._share = share
        self._room = room
        self._written_s: OrderedDict[OffloadKey, float] = OrderedDict()
        """When the time on the disk was renewed, of chunks whose time in memory is newer than that."""
        self._walked_s: float | None = None
        self._walk_began_s = 0.0
        self._walk_is_asked_for = False
        self._shown_s = around.clock.now_s()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="kvoffload-fs-upkeep", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> threading.Thread:
        """End soon; returns the thread."""
        self._stopping.set()
        self._room.wants_walk.set()
        return self._thread

    def tick(self) -> None:
        """Do what is due."""
        now_s = self._around.clock.now_s()
        self._renew_times()
        self._walk_if_due(now_s)
        if not self._options.read_only and now_s - self._shown_s >= _SIGN_OF_LIFE_S:
            self._shown_s = now_s
            try:
                self._share.show()
            except OSError as error:
                self._around.counters.add_error("usage", error)

    def _loop(self) -> None:
        while not self._stopping.is_set():
            try:
                self.tick()
            except WalkStoppedError:
                return
            except Exception:
                logger.exception("fs tier: internal error in its upkeep")
                self._around.counters.add("internal_errors")
            self._room.wants_walk.wait(_TICK_S)

    def _walk_if_due(self, now_s: float) -> None:
        if self._room.wants_walk.is_set():
            self._room.wants_walk.clear()
            self._walk_is_asked_for = True
        since_s = None if self._walked_s is None else now_s - self._walked_s
        is_due = since_s is None or since_s >= self._options.walk_interval_s
        # One that is waited for because nothing was counted comes at once.
        is_urgent = self._walk_is_asked_for and (
            not self._room.walked.is_set() or (since_s or 0) >= _MIN_WALK_PAUSE_S
        )
        if is_due or is_urgent:
            self._walk_is_asked_for = False
            self._walked_s = now_s
            self._walk(is_first=since_s is None)

    def _walk(self, *, is_first: bool) -> None:
        self._walk_began_s = time.monotonic()
        pause = self._check_stop if is_first or not self._room.walked.is_set() else self._rest
        try:
            self._walker.walk(self._around.wall_clock.now_s(), pause, counts=not self._options.read_only)
        except OSError as error:
            # The index is filled; the record cannot be used, which stores find out, too.
            self._around.counters.add_error("usage", error)
        self._room.walked.set()

    def _check_stop(self) -> None:
        if self._stopping.is_set():
            raise WalkStoppedError

    def _rest(self) -> None:
        """Routine walks leave half of a processor, and of the disk's time, to others."""
        worked_s = time.monotonic() - self._walk_began_s
        if worked_s > _REST_AFTER_S:
            self._stopping.wait(worked_s)
            self._walk_began_s = time.monotonic()
        self._check_stop()

    def _renew_times(self) -> None:
        for key, before_s, used_s in self._index.take_touched():
            if not self._options.read_only:
                self._renew(key, self._written_s.get(key, before_s), used_s)

    def _renew(self, key: OffloadKey, written_s: float, used_s: float) -> None:
        if used_s - written_s >= self._options.touch_interval_s:
            try:
                self._around.disk.set_times(self._around.place.path_of(key), round(used_s * _NANOSECONDS))
            except OSError as error:
                if error.errno not in GONE:
                    self._around.counters.add_error("touch", error)
            written_s = used_s
        self._written_s[key] = written_s
        self._written_s.move_to_end(key)
        if len(self._written_s) > _MAX_WRITTEN:
            self._written_s.popitem(last=False)
