"""Reads the journal: what other engines stored and deleted becomes part of the catalogue, without a question per key."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future

from kvoffload.tiers.obj.announcer import Announcer
from kvoffload.tiers.obj.around import Around
from kvoffload.tiers.obj.client import ObjectInfo
from kvoffload.tiers.obj.journal import (
    MAX_JOURNAL_BYTES,
    Came,
    Event,
    Went,
    decode_journal,
    is_of_other_version,
)
from kvoffload.tiers.obj.pool import DaemonPool
from kvoffload.tiers.obj.trouble import ObjectError, Trouble

OVERLAP_S = 60.0
"""Journal objects this much older than the newest are looked for again: clocks differ, and a put takes its time."""
_FETCHED_AT_ONCE = 8
_DAMAGED_FOR_GOOD = 5


class Follower:
    """Keeps the catalogue up with the journal. Safe for threads.

    Args:
        around: The store and what is known of it.
        announcer: Whose objects need not be read.
    """

    def __init__(self, around: Around, announcer: Announcer) -> None:
        self._around = around
        self._announcer = announcer
        self._seen: set[str] = set()
        self._damaged: dict[str, int] = {}
        """How often a journal object was found damaged."""
        self._of_others: set[str] = set()
        self._newest_s: float | None = None
        self._turn = threading.Lock()
        self._tickets = itertools.count(1)
        self._last_ticket = 0
        self._covered = 0
        self._pool = DaemonPool(_FETCHED_AT_ONCE, f"{around.config.name}-journal")
        self.is_warm = threading.Event()
        """The whole journal was read once."""

    def refresh(self) -> None:
        """Learn what was announced before this call. Callers at the same time share one look.

        Raises:
            ObjectError: it could not be read, or somebody is reading very much of it.
        """
        ticket = self._last_ticket = next(self._tickets)
        # A load must not wait while all of a long journal is read.
        if not self._turn.acquire(timeout=self._around.config.call_deadline_s):
            raise ObjectError(Trouble.TIMEOUT, "the journal is being read")
        try:
            if ticket <= self._covered:
                return
            covers = self._last_ticket
            self._look(self._after())
            self._covered = covers
        finally:
            self._turn.release()

    def not_understood(self, there: Collection[str]) -> set[str]:
        """Those of these journal objects that a later version wrote: what they speak of is not known here."""
        return self._of_others.intersection(there)

    def read_all(self, listed: Iterable[ObjectInfo], there: Collection[str]) -> None:
        """Read these journal objects, own and known ones included, as far as they speak of objects that are there.

        Raises:
            ObjectError: a part could not be read.
        """
        with self._turn:
            is_whole = True
            for events in self._fetch(sorted(self._readable(listed))):
                is_whole = is_whole and events is not None
                came = [event for event in events or () if isinstance(event, Came) and event.name in there]
                known = self._around.catalogue.object
                self._take_over([event for event in came if known(event.name) is None], None)
            if not is_whole:
                raise ObjectError(Trouble.OTHER, "a part of the journal could not be read")

    def stop(self) -> None:
        """End the threads that fetch."""
        self._pool.stop()

    def forget(self) -> None:
        """Begin anew: nothing was read."""
        with self._turn:
            self._seen.clear()
            self._newest_s = None

    def _after(self) -> str | None:
        if self._newest_s is None:
            return None
        return self._around.place.journal_from(self._newest_s - OVERLAP_S)

    def _look(self, after: str | None) -> None:
        place = self._around.place
        names = self._readable(self._around.caller.list(place.journal, after))
        if not self._read(names):
            raise ObjectError(Trouble.OTHER, "a part of the journal could not be read")
        self._seen.intersection_update(names)
        self._damaged = {name: count for name, count in self._damaged.items() if name not in self._seen}
        self.is_warm.set()

    def _readable(self, listed: Iterable[ObjectInfo]) -> list[str]:
        """The names of those that are not too long to be journal objects of ours."""
        names: list[str] = []
        for info in listed:
            if info.size_bytes > MAX_JOURNAL_BYTES:
                self._around.counters.add("journal_too_long")
            else:
                names.append(info.name)
        return names

    def _read(self, names: Iterable[str]) -> bool:
        place, epoch = self._around.place, self._around.epoch
        generation = epoch.generation
        times = {name: place.journal_time_s(name) for name in names if name not in self._seen}
        fresh = sorted(name for name, time_s in times.items() if time_s is not None)
        wanted = [name for name in fresh if not self._announcer.is_own(name)]
        is_whole = True
        for name, events in zip(wanted, self._fetch(wanted), strict=True):
            if events is None:
                is_whole = False
                fresh.remove(name)
                continue
            self._take_over(events, generation)
        if epoch.generation != generation:
            return is_whole
        self._seen.update(fresh)
        # A clock that is far ahead must not hide what everybody else writes.
        now_s = self._around.wall_clock.now_s()
        newest = max((min(times[name] or 0.0, now_s) for name in fresh), default=None)
        if newest is not None and is_whole:
            self._newest_s = max(newest, self._newest_s or newest)
        return is_whole

    def _take_over(self, events: Sequence[Event], generation: int | None) -> None:
        epoch = self._around.epoch
        with epoch.lock:
            if generation in (None, epoch.generation) and not epoch.is_clearing:
                self._apply(events)

    def _fetch(self, names: Sequence[str]) -> Iterable[list[Event] | None]:
        """What each of them says, in their order; None: it could not be read now."""
        for first in range(0, len(names), _FETCHED_AT_ONCE):
            part = names[first : first + _FETCHED_AT_ONCE]
            begun: list[Future[list[Event] | None] | None] = [
                self._pool.start(lambda name=name: self._fetch_one(name))  # type: ignore[misc]
                for name in part
            ]
            for name, future in zip(part, begun, strict=True):
                yield self._fetch_one(name) if future is None else future.result()

    def _fetch_one(self, name: str) -> list[Event] | None:
        counters = self._around.counters
        try:
            text = self._around.caller.get_whole(name)
        except ObjectError as error:
            # Merged into another one, which the same listing or the next one has.
            return [] if error.trouble is Trouble.MISSING else None
        events = decode_journal(text)
        counters.add("journal_read")
        if events is not None:
            self._damaged.pop(name, None)
            return events
        if is_of_other_version(text):
            counters.add("journal_of_other_version")
            self._of_others.add(name)
            return []
        # Perhaps only on its way; or for ever, and then it must not stand before the others for ever.
        counters.add("journal_damaged")
        self._damaged[name] = self._damaged.get(name, 0) + 1
        return [] if self._damaged[name] >= _DAMAGED_FOR_GOOD else None

    def _apply(self, events: Sequence[Event]) -> None:
        around = self._around
        for event in events:
            match event:
                case Came():
                    if not self._is_sound(event):
                        around.counters.add("journal_odd")
                    elif event.used_s >= around.epoch.not_before_s:
                        around.catalogue.add(event, around.clock.now_s())
                case Went():
                    around.catalogue.remove([event.name])

    def _is_sound(self, came: Came) -> bool:
        """Whether it speaks of an object of this namespace with chunks as long as this engine's, one behind the other."""
        place = self._around.place
        at = 0
        for chunk in came.chunks:
            if not place.is_length_of(chunk.key, chunk.length) or chunk.offset != at:
                return False
            at += chunk.length
        # A name means content: what says otherwise would have a chunk taken for a damaged other one, and removed.
        return place.is_name_of(came.name, [chunk.key for chunk in came.chunks])
