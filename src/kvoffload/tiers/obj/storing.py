"""Stores: chunks become objects, straight from their rows, and the journal says so before anybody is told."""

from __future__ import annotations

from collections.abc import Sequence

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.layout.chunk_format import HEADER_BYTES, encode_header, header_for, padded_bytes
from kvoffload.tiers.base import Outcome, TierEntry
from kvoffload.tiers.executor import Slice, SliceEnd
from kvoffload.tiers.obj.announcer import Announcer
from kvoffload.tiers.obj.around import Around
from kvoffload.tiers.obj.journal import Came, PackedChunk, Went
from kvoffload.tiers.obj.planning import plan_objects, unique
from kvoffload.tiers.obj.room import Room
from kvoffload.tiers.obj.trouble import REFUSED, ObjectError, Trouble

_NOT_WRITABLE_PAUSE_S = 5.0
"""A store that refuses what is written is tried again after this time."""
_NANOSECONDS = 1_000_000_000
_LEAST_PACKS = 4
_SKIPPED = REFUSED | {Trouble.THROTTLED}
"""Trouble that leaves loads alone: no reason for the circuit breaker to open."""


class Storing:
    """Carries out slices of stores.

    Args:
        around: The store and what is known of it.
        announcer: Tells everybody.
        room: The cap.
    """

    def __init__(self, around: Around, announcer: Announcer, room: Room) -> None:
        self._around = around
        self._announcer = announcer
        self._room = room
        self._not_writable_until_s = float("-inf")
        self._pack_bytes, self._extra_bytes = _pack_bounds(around.config.pack_bytes, around.config.max_bytes)

    def run(self, part: Slice) -> SliceEnd:
        """Store what is not there."""
        outcomes = {entry.key: Outcome.REJECTED for entry in part.entries}
        if self.is_void(part):
            return SliceEnd(outcomes, 0)
        wanted: list[TierEntry] = []
        for key, entry in unique(part.entries).items():
            if self._around.catalogue.find(key) is not None:
                outcomes[key] = Outcome.DONE
            elif self._around.place.form_of(key).is_partial:
                # This engine's row holds a part of the chunk: under a valid checksum the rest would be wrong for ever.
                self._around.counters.add("rejected_partial_rows")
            else:
                wanted.append(entry)
        moved = 0
        is_away = False
        for group in self.objects_of(wanted):
            outcome, moved_bytes = self._skipped(group, is_away=is_away) or self._store_guarded(part, group)
            outcomes.update(dict.fromkeys((entry.key for entry in group), outcome))
            moved += moved_bytes
            is_away = outcome is Outcome.FAILED
        return SliceEnd(outcomes, moved)

    def objects_of(self, entries: Sequence[TierEntry]) -> list[list[TierEntry]]:
        """The chunks of each object. It depends on nothing but them, so that equal batches become equal objects."""
        sizes = [padded_bytes(entry.buffer.nbytes) + self._extra_bytes for entry in entries]
        objects = plan_objects(sizes, self._pack_bytes, self._around.config.pack_below_bytes)
        return [[entries[position] for position in positions] for positions in objects]

    def _skipped(self, group: Sequence[TierEntry], *, is_away: bool) -> tuple[Outcome, int] | None:
        """What becomes of an object that is not even tried; None: it is to be tried."""
        if is_away:
            # A write has failed with all of its repetitions: the job shall end in time.
            self._around.counters.add("writes_not_tried")
            return Outcome.FAILED, 0
        if self._around.clock.now_s() < self._not_writable_until_s:
            self._around.counters.add("rejected_not_writable", len(group))
            return Outcome.REJECTED, 0
        return None

    def is_void(self, part: Slice) -> bool:
        """Whether the tier was cleared since the job was taken."""
        epoch = self._around.epoch
        return epoch.is_clearing or epoch.generation != part.ticket.generation

    def _store_guarded(self, part: Slice, group: Sequence[TierEntry]) -> tuple[Outcome, int]:
        try:
            return self._store(part, group)
        except ObjectError as error:
            if error.trouble in REFUSED:
                self._not_writable_until_s = self._around.clock.now_s() + _NOT_WRITABLE_PAUSE_S
            return (Outcome.REJECTED if error.trouble in _SKIPPED else Outcome.FAILED), 0

    def _store(self, part: Slice, group: Sequence[TierEntry]) -> tuple[Outcome, int]:
        kept = {entry.key for entry in part.job.entries}
        came = self._came(part, group)
        if not self._room.acquire(came.size_bytes, kept):
            return Outcome.REJECTED, 0
        try:
            with self._around.names.holding([came.name]):
                return self._publish(part, came, group)
        finally:
            self._room.settle(came.size_bytes)

    def _publish(self, part: Slice, came: Came, group: Sequence[TierEntry]) -> tuple[Outcome, int]:
        """Write an object and say so, unless a reset overtakes it."""
        is_new = self._put(part, came, group)
        if self.is_void(part):
            self._take_back(came, is_announced=False)
            return Outcome.REJECTED, 0
        self._announcer.announce([came])
        if not self._note(part, came):
            self._take_back(came, is_announced=True)
            return Outcome.REJECTED, 0
        return Outcome.DONE, sum(entry.buffer.nbytes for entry in group) if is_new else 0

    def _came(self, part: Slice, group: Sequence[TierEntry]) -> Came:
        place = self._around.place
        chunks: list[PackedChunk] = []
        at = 0
        for entry in group:
            length = place.file_bytes_of(entry.key)
            chunks.append(PackedChunk(entry.key, at, length))
            at += length
        position = next(n for n, entry in enumerate(part.entries) if entry is group[0])
        used_s = part.ticket.time_s - (part.first + position) * 1e-6
        return Came(place.object_name([entry.key for entry in group]), used_s, tuple(chunks))

    def _put(self, part: Slice, came: Came, group: Sequence[TierEntry]) -> bool:
        """Write the object; False if the same one is there already."""
        caller, catalogue = self._around.caller, self._around.catalogue
        parts = self._parts(part, group)
        is_bad = catalogue.is_bad(came.name)
        if not caller.put(came.name, parts, create=not is_bad):
            try:
                is_whole = caller.info(came.name).size_bytes == came.size_bytes
            except ObjectError as error:
                if error.trouble is not Trouble.MISSING:
                    raise
                is_whole = False
            if is_whole:
                self._around.counters.add("stored_by_others", len(group))
                return False
            is_bad = True
            caller.put(came.name, parts, create=False)
        if is_bad:
            self._around.counters.add("replaced_objects")
            catalogue.remove([came.name])
        return True

    def _parts(self, part: Slice, group: Sequence[TierEntry]) -> list[memoryview]:
        """Header, payload, header, payload, …: the payloads are the rows themselves."""
        place = self._around.place
        parts: list[memoryview] = []
        for entry in group:
            form = place.form_of(entry.key)
            payload = entry.buffer[: form.payload_bytes]
            page = bytearray(form.header_bytes)
            created_ns = round(part.ticket.time_s * _NANOSECONDS)
            header = header_for(place.identity, entry.key, payload, created_ns, form.piece_bytes)
            encode_header(header, page)
            parts += [memoryview(page), payload]
            padding = form.padded_bytes - form.payload_bytes
            if padding:
                parts.append(memoryview(bytes(padding)))
        return parts

    def _note(self, part: Slice, came: Came) -> bool:
        """Put it into the catalogue, unless the tier was cleared meanwhile."""
        with self._around.epoch.lock:
            if self.is_void(part):
                return False
            self._around.catalogue.add(came, self._around.clock.now_s())
        return True

    def _take_back(self, came: Came, *, is_announced: bool) -> None:
        """What became visible after a reset goes away again."""
        self._around.counters.add("void_stores")
        if self._around.catalogue.object(came.name) is not None:
            # It was stored anew since the reset.
            return
        self._around.caller.delete([came.name])
        if is_announced:
            self._announcer.announce([Went(came.name)])


def reject_all(part: Slice) -> SliceEnd:
    """What a tier that only reads does with a store."""
    outcomes: dict[OffloadKey, Outcome] = {entry.key: Outcome.REJECTED for entry in part.entries}
    return SliceEnd(outcomes, 0)


def _pack_bounds(pack_bytes: int, cap: int | None) -> tuple[int, int]:
    """(bytes of a pack, what counts of a chunk besides its payload).

    Headers do not count: chunks are powers of two as packs are, and a batch of just a pack's size would else become a pack
    and a remainder, one after the other. Under a small cap they do.
    """
    if cap is None or cap // _LEAST_PACKS >= pack_bytes:
        return pack_bytes, 0
    return cap // _LEAST_PACKS, HEADER_BYTES
