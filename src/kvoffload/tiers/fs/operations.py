"""What the threads do with a slice of a job: store, load or delete its chunks, and tell index and cap about it."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.tiers.base import Outcome, TierEntry, Verb
from kvoffload.tiers.executor import Slice, SliceEnd
from kvoffload.tiers.fs.chunk_writer import ChunkWriter, WriteEnd
from kvoffload.tiers.fs.directory import GONE
from kvoffload.tiers.fs.disk import is_plain_file
from kvoffload.tiers.fs.finder import ChunkFinder, Found, Presence
from kvoffload.tiers.fs.index import ChunkIndex, Use
from kvoffload.tiers.fs.place import ChunkFile
from kvoffload.tiers.fs.reader import ChunkReader
from kvoffload.tiers.fs.room import Room
from kvoffload.tiers.fs.share import UsageShare
from kvoffload.tiers.fs.surroundings import Surroundings

_NOT_WRITABLE_PAUSE_S = 5.0
"""A directory that cannot be written (EROFS, EACCES) is tried again after this time."""
_ORDER_S = 1e-6
"""Chunks of one job are given times this far apart, so that a later start knows a prompt's beginning from its end."""
_NANOSECONDS = 1_000_000_000
_OUTCOMES = {
    WriteEnd.DONE: Outcome.DONE,
    WriteEnd.THERE: Outcome.DONE,
    WriteEnd.VOID: Outcome.REJECTED,
    WriteEnd.NO_ROOM: Outcome.REJECTED,
    WriteEnd.NOT_WRITABLE: Outcome.REJECTED,
    WriteEnd.BLOCKED: Outcome.REJECTED,
    WriteEnd.FAILED: Outcome.FAILED,
}


@dataclass(slots=True)
class Epoch:
    """Which clearing of the tier the present is after. Written by the tier's own thread."""

    generation: int = 0
    is_clearing: bool = False
    """The files are being deleted: until they are gone, the tier is empty and takes nothing."""


@dataclass(frozen=True, slots=True)
class Writing:
    """What a tier that writes has besides one that only reads."""

    finder: ChunkFinder
    writer: ChunkWriter
    room: Room


class _Wanted(NamedTuple):
    """A chunk of a slice that is to be written."""

    position: int
    chunk: ChunkFile
    row: memoryview
    found: Found
    """What stands in its place."""


class Kept:
    """The chunks of a job: room for some of them must not be made at the cost of others."""

    def __init__(self, entries: Sequence[TierEntry]) -> None:
        self._entries = entries
        self._keys: frozenset[OffloadKey] | None = None

    def __call__(self, key: OffloadKey) -> bool:
        """Whether the chunk is one of them."""
        if self._keys is None:
            self._keys = frozenset(entry.key for entry in self._entries)
        return key in self._keys


class Operations:
    """Carries slices out.

    Args:
        around: Disk, names, counters, clocks.
        epoch: Whether the tier was cleared.
        index: What is there.
        reader: Loads.
        share: Is told what was freed.
        writing: What stores need; None in a tier that only reads.
    """

    def __init__(
        self,
        around: Surroundings,
        epoch: Epoch,
        index: ChunkIndex,
        *,
        reader: ChunkReader,
        share: UsageShare,
        writing: Writing | None,
    ) -> None:
        self._around = around
        self._epoch = epoch
        self._index = index
        self._reader = reader
        self._share = share
        self._writing = writing
        self._not_writable_until_s = float("-inf")

    def run(self, part: Slice) -> SliceEnd:
        """Carry a slice out; what the world does wrong is an outcome."""
        if part.job.verb is Verb.LOAD:
            return self._load(part)
        if part.job.verb is Verb.STORE:
            return self._store(part)
        return self._delete(part)

    def _is_void(self, part: Slice) -> bool:
        return self._epoch.is_clearing or self._epoch.generation != part.ticket.generation

    def _load(self, part: Slice) -> SliceEnd:
        outcomes: dict[OffloadKey, Outcome] = {}
        gone: set[OffloadKey] = set()
        moved = 0
        counts = self._share.counts
        for entry in part.entries:
            if self._is_void(part):
                outcomes[entry.key] = Outcome.MISSING
                continue
            chunk = self._around.place.chunk_file(entry.key)
            end = self._reader.load(chunk, entry.buffer)
            outcome = end.outcome
            if end.freed_bytes:
                self._share.freed(end.freed_bytes, counts)
            if end.is_given_up:
                gone.add(entry.key)
            if self._is_void(part):
                outcome = Outcome.MISSING
            outcomes[entry.key] = outcome
            moved += end.moved_bytes if outcome is Outcome.DONE else 0
        self._around.counters.add("read_bytes", self._reader.take_read_bytes())
        gone.update(key for key, outcome in outcomes.items() if outcome in (Outcome.MISSING, Outcome.CORRUPT))
        self._index.set_absent(sorted(gone))
        if not self._is_void(part):
            self._index.confirm(self._uses(part, {key for key in outcomes if outcomes[key] is Outcome.DONE}))
        return SliceEnd(outcomes, moved)

    def _uses(self, part: Slice, keys: AbstractSet[OffloadKey]) -> list[Use]:
        return [
            (entry.key, self._used_s(part, position))
            for position, entry in enumerate(part.entries)
            if entry.key in keys
        ]

    def _used_s(self, part: Slice, position: int) -> float:
        return part.ticket.time_s - (part.first + position) * _ORDER_S

    def _store(self, part: Slice) -> SliceEnd:
        writing = self._writing
        outcomes = {entry.key: Outcome.REJECTED for entry in part.entries}
        is_off = self._around.clock.now_s() < self._not_writable_until_s
        if is_off:
            self._around.counters.add("rejected_not_writable", len(part.entries))
        if writing is None or is_off or self._is_void(part):
            part.ticket.turnstile.pass_through(len(part.entries))
            return SliceEnd(outcomes, 0)
        wanted = self._look(writing, part, outcomes)
        # In order: if there is room for a part only, it is the first part. A prompt without its beginning is worth nothing.
        part.ticket.turnstile.wait(part.first)
        try:
            taken = self._acquire(writing, part, wanted)
        finally:
            part.ticket.turnstile.pass_through(len(part.entries))
        there = {key for key, outcome in outcomes.items() if outcome is Outcome.DONE}
        stored: set[OffloadKey] = set()
        moved = 0
        for one, taken_bytes in zip(wanted, taken, strict=False):
            end = self._write(writing, part, one, taken_bytes)
            outcomes[one.chunk.key] = _OUTCOMES[end]
            if end is WriteEnd.THERE:
                there.add(one.chunk.key)
            elif end is WriteEnd.DONE:
                stored.add(one.chunk.key)
                moved += one.chunk.payload_bytes
        if not self._is_void(part):
            self._index.add(self._uses(part, stored))
            self._index.confirm(self._uses(part, there))
        return SliceEnd(outcomes, moved)

    def _look(self, writing: Writing, part: Slice, outcomes: dict[OffloadKey, Outcome]) -> list[_Wanted]:
        """Which chunks are to be written; fills in the outcomes of the others."""
        wanted: list[_Wanted] = []
        for position, entry in enumerate(part.entries):
            chunk = self._around.place.chunk_file(entry.key)
            try:
                found = writing.finder.find(chunk)
            except OSError as error:
                self._around.counters.add_error("store", error)
                outcomes[entry.key] = Outcome.FAILED
                continue
            if found.presence is Presence.PRESENT:
                outcomes[entry.key] = Outcome.DONE
            elif found.presence is Presence.BLOCKED:
                self._around.counters.add("foreign_entries")
            elif chunk.form.is_partial:
                # This engine's row holds a part of the chunk: under a valid checksum the rest would be wrong for ever.
                self._around.counters.add("rejected_partial_rows")
            else:
                wanted.append(_Wanted(position, chunk, entry.buffer, found))
        return wanted

    def _acquire(self, writing: Writing, part: Slice, wanted: Sequence[_Wanted]) -> list[int]:
        """What was taken from the cap for each of the first chunks; those behind get none."""
        is_kept = Kept(part.job.entries)
        costs = [writing.writer.cost_bytes(one.chunk) for one in wanted]
        together = writing.room.acquire(sum(costs), is_kept) if len(costs) > 1 else None
        if together is not None:
            return costs if together else [0] * len(costs)
        taken: list[int] = []
        for cost in costs:
            got = writing.room.acquire(cost, is_kept)
            if got is None:
                break
            taken.append(got)
        return taken

    def _write(self, writing: Writing, part: Slice, one: _Wanted, taken: int) -> WriteEnd:
        created_ns = round(part.ticket.time_s * _NANOSECONDS)
        used_ns = round(self._used_s(part, one.position) * _NANOSECONDS)
        counts = self._share.counts
        added = taken
        try:
            end, added = writing.writer.store(
                one.chunk, one.row, (created_ns, used_ns), lambda: self._is_void(part)
            )
            if end is WriteEnd.DONE and one.found.size_bytes:
                # It took the place of a file that could not be used.
                self._share.freed(one.found.size_bytes, counts)
            elif end is WriteEnd.NO_ROOM:
                writing.room.make_some(writing.writer.cost_bytes(one.chunk), Kept(part.job.entries))
            elif end is WriteEnd.NOT_WRITABLE:
                self._not_writable_until_s = self._around.clock.now_s() + _NOT_WRITABLE_PAUSE_S
            return end
        finally:
            writing.room.settle(taken, added)

    def _delete(self, part: Slice) -> SliceEnd:
        outcomes: dict[OffloadKey, Outcome] = {}
        for entry in part.entries:
            outcomes[entry.key] = Outcome.FAILED if self._writing is None else self._delete_one(entry.key)
        self._index.set_absent([key for key, outcome in outcomes.items() if outcome is Outcome.DONE])
        return SliceEnd(outcomes, 0)

    def _delete_one(self, key: OffloadKey) -> Outcome:
        path = self._around.place.path_of(key)
        counts = self._share.counts
        try:
            found = self._around.disk.lstat(path)
            if not is_plain_file(found):
                self._around.counters.add("foreign_entries")
                return Outcome.DONE
            self._around.disk.unlink(path)
        except OSError as error:
            if error.errno in GONE:
                return Outcome.DONE
            self._around.counters.add_error("delete", error)
            return Outcome.FAILED
        self._share.freed(found.st_size, counts)
        return Outcome.DONE
