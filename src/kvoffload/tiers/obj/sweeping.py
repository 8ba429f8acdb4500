"""Reconciling with what is really there, and what is removed by it: the expired, the orphaned, the superfluous.

First a plan, which is what a dry run shows, then the deeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvoffload.tiers.obj.announcer import Announcer
from kvoffload.tiers.obj.around import Around
from kvoffload.tiers.obj.catalogue import HeldObject
from kvoffload.tiers.obj.client import ObjectInfo
from kvoffload.tiers.obj.follower import OVERLAP_S, Follower
from kvoffload.tiers.obj.journal import Came, Event
from kvoffload.tiers.obj.room import Room

_SMALL_JOURNALS = 256
_SMALL_BYTES = 1024**2
_MERGED_AFTER_S = 10 * OVERLAP_S
_SAID_AT_ONCE = 20_000
"""Chunks of which one journal object speaks after merging: some MiB, which one request reads in its time."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What is in the store."""

    data: Mapping[str, ObjectInfo]
    journal: Mapping[str, ObjectInfo]
    has_namespace_file: bool
    now_s: float
    """The store's time, as far as its listing tells; seconds since the epoch."""

    @property
    def data_bytes(self) -> int:
        """Of all objects with chunks."""
        return sum(info.size_bytes for info in self.data.values())

    @property
    def journal_bytes(self) -> int:
        """Of the journal."""
        return sum(info.size_bytes for info in self.journal.values())


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """What is to be removed."""

    expired: tuple[HeldObject, ...]
    superfluous: tuple[HeldObject, ...]
    """Beyond the cap, the least recently used."""
    orphans: tuple[ObjectInfo, ...]
    """Objects with chunks that no journal names: their writer was killed, or somebody deleted the journal."""
    merged: tuple[str, ...]
    """Old journal objects, many of them small, in the place of which what is left of them is said anew."""


class Sweeper:
    """Looks at everything, and tidies.

    Args:
        around: The store and what is known of it.
        announcer: Tells everybody.
        follower: Reads the journal.
        room: The cap.
    """

    def __init__(self, around: Around, announcer: Announcer, follower: Follower, room: Room) -> None:
        self._around = around
        self._announcer = announcer
        self._follower = follower
        self._room = room

    def survey(self) -> Survey:
        """List everything, and set right what is known: objects that are gone, times of use. Raises ObjectError."""
        around = self._around
        self._follower.refresh()
        # What was known by now was written before, so the listing has it: also for a tool, which has just learned of everything.
        began_s = around.clock.now_s()
        listed = around.caller.list(around.place.base)
        data = {info.name: info for info in listed if around.place.is_data(info.name)}
        journal = {info.name: info for info in listed if around.place.journal_time_s(info.name) is not None}
        known = around.catalogue.objects()
        gone = [one.name for one in known if one.noted_s < began_s and one.name not in data]
        around.catalogue.remove(gone)
        around.counters.add("reconciled_gone", len(gone))
        now_s = max([around.wall_clock.now_s(), *(info.modified_s for info in listed)])
        has_file = any(info.name == around.place.namespace_file for info in listed)
        return Survey(data, journal, has_file, now_s)

    def plan(self, survey: Survey) -> SweepPlan:
        """What is to be removed. Raises ObjectError."""
        orphans = self._orphans(survey)
        if orphans:
            # Before anything is called an orphan, all that was ever announced is read once more.
            self._follower.read_all(survey.journal.values(), survey.data)
            orphans = self._orphans(survey)
        if self._follower.not_understood(survey.journal):
            # What a later version has written, and says so in its own words, is no orphan.
            orphans = []
        expired = self._expired(survey)
        gone = sum(held.size_bytes for held in expired)
        kept = {held.name for held in expired}
        superfluous = [held for held in self._room.superfluous(gone) if held.name not in kept]
        return SweepPlan(expired, tuple(superfluous), tuple(orphans), self._mergeable(survey))

    def carry_out(self, plan: SweepPlan) -> None:
        """Remove what is planned. Raises ObjectError."""
        self._room.remove(plan.expired, "expired")
        self._room.remove(plan.superfluous, "evicted")
        with self._around.names.holding(info.name for info in plan.orphans):
            # Who has found one of them there meanwhile has made it known.
            names = [info.name for info in plan.orphans if self._around.catalogue.object(info.name) is None]
            if names:
                self._around.caller.delete(names)
                self._around.counters.add("orphans_removed", len(names))
        if plan.merged:
            self._merge(plan.merged)

    def meet_cap(self) -> None:
        """Remove what is too much by now, others' writes included. Asks nobody if nothing is. Raises ObjectError."""
        self._room.remove(self._room.superfluous(0), "evicted")

    def _orphans(self, survey: Survey) -> list[ObjectInfo]:
        around = self._around
        before_s = survey.now_s - around.config.orphan_grace_s
        return [
            info
            for name, info in sorted(survey.data.items())
            if info.modified_s < before_s and around.catalogue.object(name) is None
        ]

    def _expired(self, survey: Survey) -> tuple[HeldObject, ...]:
        ttl_s = self._around.config.ttl_s
        if ttl_s is None:
            return ()
        return tuple(
            held
            for held in self._around.catalogue.objects()
            if held.name in survey.data and survey.data[held.name].modified_s < survey.now_s - ttl_s
        )

    def _mergeable(self, survey: Survey) -> tuple[str, ...]:
        """Old journal objects, if many of them are small: an engine that starts reads each of them.

        The large ones as well: they are what was merged before, and would else be kept beside every later one.
        """
        place = self._around.place
        kept = self._follower.not_understood(survey.journal)
        old = [
            info
            for info in survey.journal.values()
            if info.name not in kept
            and (place.journal_time_s(info.name) or 0.0) < survey.now_s - _MERGED_AFTER_S
        ]
        small = sum(info.size_bytes < _SMALL_BYTES for info in old)
        return tuple(sorted(info.name for info in old)) if small >= _SMALL_JOURNALS else ()

    def _merge(self, names: Sequence[str]) -> None:
        """Say anew what is left of many journal objects; everybody reads it as any other one."""
        events: list[Event] = []
        chunks = 0
        for one in self._around.catalogue.objects():
            events.append(Came(one.name, one.used_s, one.chunks))
            chunks += len(one.chunks)
            if chunks >= _SAID_AT_ONCE:
                self._announcer.announce(events)
                events, chunks = [], 0
        if events:
            self._announcer.announce(events)
        self._around.caller.delete(names)
        self._around.counters.add("journal_merged", len(names))
