"""Loads: bytes go into a row only after they were proved to be the chunk that was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.layout.chunk_format import HEADER_BYTES, Damage
from kvoffload.tiers.base import Outcome, TierEntry
from kvoffload.tiers.executor import Slice, SliceEnd
from kvoffload.tiers.obj.around import Around
from kvoffload.tiers.obj.catalogue import Location
from kvoffload.tiers.obj.copying import copy_into
from kvoffload.tiers.obj.deleting import Deleting
from kvoffload.tiers.obj.follower import Follower
from kvoffload.tiers.obj.planning import Span, plan_spans, unique
from kvoffload.tiers.obj.proof import damage_of, payload_of
from kvoffload.tiers.obj.trouble import ObjectError, Trouble


@dataclass(slots=True)
class _Progress:
    """What became of the chunks of a slice so far."""

    outcomes: dict[OffloadKey, Outcome] = field(default_factory=dict)
    again: dict[OffloadKey, TierEntry] = field(default_factory=dict)
    """To be looked for once more."""
    moved_bytes: int = 0
    is_away: bool = False
    """A read has failed with all of its repetitions: the others are not tried, so that the job ends in time."""


class Loading:
    """Carries out slices of loads.

    Args:
        around: The store and what is known of it.
        follower: Knows what others stored.
        deleting: Removes what is damaged; None in a tier that only reads.
    """

    def __init__(self, around: Around, follower: Follower, deleting: Deleting | None) -> None:
        self._around = around
        self._follower = follower
        self._deleting = deleting

    def run(self, part: Slice) -> SliceEnd:
        """Load the chunks of a slice. What is not where it should be, or damaged, is looked for a second time."""
        progress = _Progress()
        entries = unique(part.entries)
        if any(self._around.catalogue.find(key) is None for key in entries):
            self._refresh()
        self._pass(part, list(entries.values()), progress, is_last=False)
        if progress.again:
            again, progress.again = list(progress.again.values()), {}
            if any(self._around.catalogue.find(entry.key) is None for entry in again):
                self._refresh()
            self._pass(part, again, progress, is_last=True)
        return SliceEnd(progress.outcomes, progress.moved_bytes)

    def _is_void(self, part: Slice) -> bool:
        epoch = self._around.epoch
        return epoch.is_clearing or epoch.generation != part.ticket.generation

    def _refresh(self) -> None:
        try:
            self._follower.refresh()
        except ObjectError:
            # What is known may do; what is not is missing.
            self._around.counters.add("journal_unread")

    def _pass(self, part: Slice, entries: Sequence[TierEntry], progress: _Progress, *, is_last: bool) -> None:
        found: list[tuple[TierEntry, Location]] = []
        for entry in entries:
            at = None if self._is_void(part) else self._around.catalogue.find(entry.key)
            if at is None:
                progress.outcomes[entry.key] = Outcome.MISSING
            else:
                found.append((entry, at))
        # Headers come on top: they were not counted when the job was cut into slices either.
        for span in plan_spans(found, self._around.config.read_span_bytes + HEADER_BYTES * len(found)):
            self._read(part, span, progress, is_last=is_last)

    def _read(self, part: Slice, span: Span, progress: _Progress, *, is_last: bool) -> None:
        if progress.is_away:
            self._around.counters.add("reads_not_tried")
            progress.outcomes.update((entry.key, Outcome.FAILED) for entry, _ in span.entries)
            return
        try:
            data = self._around.caller.get(span.name, span.start, span.length)
        except ObjectError as error:
            if error.trouble is Trouble.SHORT:
                data = memoryview(b"")
            else:
                self._unread(span, progress, is_gone=error.trouble is Trouble.MISSING, is_last=is_last)
                return
        for entry, at in span.entries:
            start = at.offset - span.start
            damage = self._take(entry, data[start : start + at.length])
            if self._is_void(part):
                progress.outcomes[entry.key] = Outcome.MISSING
            elif damage is None:
                progress.outcomes[entry.key] = Outcome.DONE
                progress.moved_bytes += self._around.place.payload_bytes_of(entry.key)
            elif is_last:
                progress.outcomes[entry.key] = self._damaged(entry.key, at.name, damage)
            else:
                # Perhaps only on its way.
                self._around.counters.add("damaged_reads")
                progress.again[entry.key] = entry

    def _unread(self, span: Span, progress: _Progress, *, is_gone: bool, is_last: bool) -> None:
        if is_gone:
            # Deleted by somebody else, or written anew under another name: the journal knows.
            self._around.catalogue.remove([span.name])
        progress.is_away = progress.is_away or not is_gone
        for entry, _ in span.entries:
            progress.outcomes[entry.key] = Outcome.MISSING if is_gone else Outcome.FAILED
            if is_gone and not is_last:
                progress.again[entry.key] = entry

    def _take(self, entry: TierEntry, data: memoryview) -> Damage | None:
        """Prove and copy one chunk; what is wrong with it, if anything."""
        place = self._around.place
        damage = damage_of(place, entry.key, data)
        if damage is None:
            copy_into(entry.buffer, payload_of(place, entry.key, data))
        return damage

    def _damaged(self, key: OffloadKey, name: str, damage: Damage) -> Outcome:
        counters = self._around.counters
        if damage is Damage.UNKNOWN_VERSION:
            counters.add("unknown_versions")
            self._around.catalogue.set_bad(key, name)
            return Outcome.MISSING
        counters.add("corrupt")
        counters.add(f"corrupt_{damage.value}")
        try:
            if self._deleting is not None:
                self._deleting.remove([key])
        except ObjectError:
            counters.add("corrupt_left")
        # Whatever became of it: it is not there any more.
        self._around.catalogue.set_bad(key, name)
        return Outcome.CORRUPT
