"""Loads: bytes go into a row only after they were proved to be the chunk that was asked for, or the parts needed of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.layout.chunk_format import Damage
from kvoffload.tiers.base import Outcome, TierEntry
from kvoffload.tiers.executor import Slice, SliceEnd
from kvoffload.tiers.obj.around import Around
from kvoffload.tiers.obj.catalogue import Location
from kvoffload.tiers.obj.copying import copy_into
from kvoffload.tiers.obj.deleting import Deleting
from kvoffload.tiers.obj.follower import Follower
from kvoffload.tiers.obj.planning import Reading, Wanted, plan_readings, unique
from kvoffload.tiers.obj.proof import Cut, Whole, prove, prove_parts
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
        wanted: list[Wanted] = []
        for entry in entries:
            at = None if self._is_void(part) else self._around.catalogue.find(entry.key)
            if at is None:
                progress.outcomes[entry.key] = Outcome.MISSING
            else:
                wanted.append(Wanted(entry, at, self._parts_of(entry.key, at)))
        config = self._around.config
        # Headers come on top: they were not counted when the job was cut into slices either.
        headers = sum(self._around.place.form_of(one.entry.key).header_bytes for one in wanted)
        for reading in plan_readings(wanted, config.read_span_bytes + headers, config.range_gap_bytes):
            self._read(part, reading, progress, is_last=is_last)

    def _parts_of(self, key: OffloadKey, at: Location) -> tuple[tuple[int, int], ...]:
        """What is to be read of a chunk: all of it, or the header and what this engine needs."""
        form = self._around.place.form_of(key)
        if form.reads is None or at.length != form.file_bytes:
            return ((0, at.length),)
        first = form.header_bytes
        needed = (part for read in form.reads for part in read.parts)
        return ((0, first), *((first + start, first + end) for start, end in needed))

    def _read(self, part: Slice, reading: Reading, progress: _Progress, *, is_last: bool) -> None:
        if progress.is_away:
            self._around.counters.add("reads_not_tried")
            progress.outcomes.update((one.entry.key, Outcome.FAILED) for one in reading.wanted)
            return
        spans: dict[tuple[int, int], memoryview] = {}
        try:
            for start, length in reading.spans:
                spans[start, start + length] = self._around.caller.get(reading.name, start, length)
        except ObjectError as error:
            if error.trouble is not Trouble.SHORT:
                self._unread(reading, progress, is_gone=error.trouble is Trouble.MISSING, is_last=is_last)
                return
        for one in reading.wanted:
            taken = self._take(one, spans)
            if self._is_void(part):
                progress.outcomes[one.entry.key] = Outcome.MISSING
            elif isinstance(taken, int):
                progress.outcomes[one.entry.key] = Outcome.DONE
                progress.moved_bytes += taken
            elif isinstance(taken, Whole):
                # Written before there were pieces, say: it is proved as a whole or not at all.
                self._around.counters.add("read_whole")
                span = (one.at.offset, one.at.length)
                again = Reading(reading.name, (span,), (one._replace(parts=((0, one.at.length),)),))
                self._read(part, again, progress, is_last=is_last)
            elif is_last:
                progress.outcomes[one.entry.key] = self._damaged(one.entry.key, one.at.name, taken)
            else:
                # Perhaps only on its way.
                self._around.counters.add("damaged_reads")
                progress.again[one.entry.key] = one.entry

    def _unread(self, reading: Reading, progress: _Progress, *, is_gone: bool, is_last: bool) -> None:
        if is_gone:
            # Deleted by somebody else, or written anew under another name: the journal knows.
            self._around.catalogue.remove([reading.name])
        progress.is_away = progress.is_away or not is_gone
        for one in reading.wanted:
            progress.outcomes[one.entry.key] = Outcome.MISSING if is_gone else Outcome.FAILED
            if is_gone and not is_last:
                progress.again[one.entry.key] = one.entry

    def _take(self, one: Wanted, spans: Mapping[tuple[int, int], memoryview]) -> int | Damage | Whole:
        """Prove and copy one chunk, or what is needed of it: bytes that went into its row, or why none did."""
        place, key = self._around.place, one.entry.key
        cut = _cutter(spans, one.at.offset)
        if one.parts == ((0, one.at.length),):
            found = prove(place, key, cut(0, one.at.length))
            proved = found if isinstance(found, Damage) else [found]
        else:
            whole_or = prove_parts(place, key, cut)
            if isinstance(whole_or, Whole):
                return whole_or
            proved = whole_or
        if isinstance(proved, Damage):
            return proved
        # Not before all of it is proved.
        for start, data in proved:
            copy_into(one.entry.buffer[start:], data)
        return sum(len(data) for _, data in proved)

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


def _cutter(spans: Mapping[tuple[int, int], memoryview], offset: int) -> Cut:
    """What has come of the chunk that begins at this offset of its object."""

    def cut(start: int, end: int) -> memoryview:
        first, last = offset + start, offset + end
        for (begin, stop), data in spans.items():
            if begin <= first and last <= stop:
                return data[first - begin : last - begin]
        return memoryview(b"")

    return cut
