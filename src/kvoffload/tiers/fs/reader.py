"""Reads one chunk, or the part of it that is needed, from its file straight into a row of host memory, and trusts nothing in it."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from typing import NamedTuple

from kvoffload.layout.chunk_format import (
    MAX_HEADER_BYTES,
    ChunkHeader,
    Damage,
    check_header,
    check_payload,
    check_pieces,
    decode_header,
    header_bytes,
)
from kvoffload.tiers.base import Outcome
from kvoffload.tiers.chunk_form import Read
from kvoffload.tiers.counters import Counters
from kvoffload.tiers.fs.directory import GONE
from kvoffload.tiers.fs.disk import DiskIO, is_plain_file
from kvoffload.tiers.fs.place import ChunkFile, StorePlace
from kvoffload.tiers.fs.removal import remove_if_same
from kvoffload.tiers.fs.scratch import Scratch
from kvoffload.tiers.fs.solid import SolidDirectories
from kvoffload.tiers.fs.unreadable import OF_ONE_FILE, Unreadable

_FOREIGN = frozenset({errno.ELOOP, errno.ENXIO, errno.EISDIR})
"""Opening something that is no plain file: a link, a socket, a directory."""


class Void(Enum):
    """Nothing is wrong with the file, but the tier was cleared after it was written."""

    VOID = "void"


class LoadEnd(NamedTuple):
    """What became of a load, and how many bytes of the disk it freed (a damaged file was removed)."""

    outcome: Outcome
    freed_bytes: int = 0
    is_given_up: bool = False
    """It could not be read, and counts as not there from now on."""
    moved_bytes: int = 0
    """Of a DONE load: payload that is in the row now."""


class ChunkReader:
    """Loads chunks.

    Args:
        disk: The disk.
        place: Names and lengths.
        solid: Which directories are no links.
        counters: What is noteworthy.
        direct: Whether to bypass the page cache.
        unreadable: Judges files that cannot be read. None in a tier that only reads: nothing is removed or replaced.
    """

    def __init__(
        self,
        disk: DiskIO,
        place: StorePlace,
        solid: SolidDirectories,
        counters: Counters,
        *,
        direct: bool,
        unreadable: Unreadable | None = None,
    ) -> None:
        self._disk = disk
        self._place = place
        self._solid = solid
        self._counters = counters
        self._flags = os.O_RDONLY | (os.O_DIRECT if direct else 0)
        self._may_remove = unreadable is not None
        self._unreadable = unreadable
        self._scratch = Scratch()
        self.not_before_ns = 0
        """Chunks that were created earlier (nanoseconds since the epoch) are void."""

    def load(self, chunk: ChunkFile, row: memoryview) -> LoadEnd:
        """Fill `row` with the payload of a chunk, or with what is needed of it. Only DONE means that it holds anything useful."""
        try:
            self._solid.check(chunk.path.rpartition("/")[0])
            fd = self._open(chunk.path)
        except OSError as error:
            return self._not_readable(error, chunk)
        # The open descriptor keeps the bytes, whoever deletes the file meanwhile.
        try:
            found = self._disk.fstat(fd)
            if not is_plain_file(found):
                self._counters.add("foreign_entries")
                return LoadEnd(Outcome.MISSING)
            damage = self._read(fd, found.st_size, chunk, row)
        except OSError as error:
            return self._not_readable(error, chunk)
        finally:
            with suppress(OSError):
                self._disk.close(fd)
        if self._unreadable is not None:
            self._unreadable.read_well()
        if damage is not None:
            return self._damaged(chunk, found, damage)
        return LoadEnd(Outcome.DONE, moved_bytes=self._scratch.moved_bytes)

    def take_read_bytes(self) -> int:
        """What this thread has read from files since the last call: headers, and what was read in vain, included."""
        scratch = self._scratch
        read, scratch.read_bytes = scratch.read_bytes, 0
        return read

    def _open(self, path: str) -> int:
        try:
            return self._disk.open(path, self._flags)
        except OSError as error:
            if error.errno != errno.EINVAL or not self._flags & os.O_DIRECT:
                raise
        self._counters.add("direct_io_fallbacks")
        return self._disk.open(path, self._flags & ~os.O_DIRECT)

    def _read(self, fd: int, size: int, chunk: ChunkFile, row: memoryview) -> Damage | Void | None:
        form = chunk.form
        if not form.has_length(size):
            # Its header may still say that it is another version's, which is no damage.
            return self._damage_of_odd_file(fd)
        if form.reads is None or size != form.file_bytes:
            return self._read_whole(fd, size, chunk, row)
        return self._read_parts(fd, form.reads, chunk, row)

    def _read_whole(self, fd: int, size: int, chunk: ChunkFile, row: memoryview) -> Damage | Void | None:
        form, scratch = chunk.form, self._scratch
        area, payload = scratch.header(size - form.padded_bytes), row[: form.padded_bytes]
        if not self._fill(fd, [area, payload], 0, size):
            return Damage.LENGTH
        header = self._accept(area, chunk)
        if not isinstance(header, ChunkHeader):
            return header
        scratch.moved_bytes = form.payload_bytes
        return check_payload(header, payload)

    def _read_parts(
        self, fd: int, reads: Sequence[Read], chunk: ChunkFile, row: memoryview
    ) -> Damage | Void | None:
        form, scratch, waste = chunk.form, self._scratch, self._scratch.waste
        area = scratch.header(form.header_bytes)
        buffers, size, rest = [area], form.header_bytes, reads
        if reads[0].start == 0:
            # What lies right behind the header comes with it.
            buffers += reads[0].buffers(row, waste)
            size, rest = size + reads[0].size_bytes, reads[1:]
        if not self._fill(fd, buffers, 0, size):
            return Damage.LENGTH
        header = self._accept(area, chunk)
        if not isinstance(header, ChunkHeader):
            return header
        if header.piece_bytes != form.piece_bytes:
            # Of the version before pieces, so it can be verified as a whole only.
            return self._read_whole(fd, form.file_bytes, chunk, row)
        for read in rest:
            if not self._fill(fd, read.buffers(row, waste), form.header_bytes + read.start, read.size_bytes):
                return Damage.LENGTH
        scratch.moved_bytes = form.part_bytes
        return check_pieces(header, row, (part for read in reads for part in read.parts))

    def _accept(self, area: memoryview, chunk: ChunkFile) -> ChunkHeader | Damage | Void:
        """The header, if it is that of the chunk that was asked for."""
        header = decode_header(area)
        if not isinstance(header, ChunkHeader):
            return header
        if header.created_ns < self.not_before_ns:
            return Void.VOID
        damage = check_header(header, self._place.identity, chunk.key, chunk.payload_bytes)
        if damage is None and header.piece_bytes != chunk.form.piece_bytes:
            # Cut otherwise: the payload must begin where we take it to begin all the same.
            is_there = header_bytes(header.payload_bytes, header.piece_bytes) == len(area)
            damage = None if is_there else Damage.LENGTH
        return damage or header

    def _fill(self, fd: int, buffers: Sequence[memoryview], offset: int, size: int) -> bool:
        """Fill the buffers, `size` bytes together; False if the file ends before."""
        try:
            done = self._disk.read_into(fd, buffers, offset)
        except OSError as error:
            if error.errno != errno.EINVAL or not self._flags & os.O_DIRECT:
                raise
            # This file system or this buffer does not suit O_DIRECT after all.
            self._counters.add("direct_io_fallbacks")
            self._disk.without_direct(fd)
            done = self._disk.read_into(fd, buffers, offset)
        self._scratch.read_bytes += done
        return done >= size

    def _damage_of_odd_file(self, fd: int) -> Damage:
        if self._flags & os.O_DIRECT:
            self._disk.without_direct(fd)
        area = self._scratch.header(MAX_HEADER_BYTES)
        found = decode_header(area[: self._disk.read_into(fd, [area])])
        return found if isinstance(found, Damage) else Damage.LENGTH

    def _not_readable(self, error: OSError, chunk: ChunkFile) -> LoadEnd:
        if error.errno in GONE:
            return LoadEnd(Outcome.MISSING)
        if error.errno in _FOREIGN:
            self._counters.add("foreign_entries")
            return LoadEnd(Outcome.MISSING)
        self._counters.add_error("load", error)
        return LoadEnd(Outcome.FAILED, is_given_up=error.errno in OF_ONE_FILE and self._give_up(chunk))

    def _give_up(self, chunk: ChunkFile) -> bool:
        """Have the next store replace this file, if others can be read; returns whether it is so."""
        if self._unreadable is None or not self._unreadable.is_given_up():
            return False
        try:
            self._place.bad_files.add(chunk.key, self._disk.lstat(chunk.path))
        except OSError:
            return False
        self._counters.add("unreadable_files")
        return True

    def _damaged(self, chunk: ChunkFile, found: os.stat_result, damage: Damage | Void) -> LoadEnd:
        if damage is Damage.UNKNOWN_VERSION:
            self._counters.add("unknown_versions")
            self._place.bad_files.add(chunk.key, found)
            return LoadEnd(Outcome.MISSING)
        if isinstance(damage, Void):
            self._counters.add("void_loads")
            if self._may_remove and self._remove_if_same(chunk.path, found):
                return LoadEnd(Outcome.MISSING, found.st_size)
            # It stays, and must not be proposed, loaded and found void again and again.
            self._place.bad_files.add(chunk.key, found)
            return LoadEnd(Outcome.MISSING)
        self._counters.add("corrupt")
        self._counters.add(f"corrupt_{damage.value}")
        if self._may_remove and self._remove_if_same(chunk.path, found):
            return LoadEnd(Outcome.CORRUPT, found.st_size)
        self._place.bad_files.add(chunk.key, found)
        return LoadEnd(Outcome.CORRUPT)

    def _remove_if_same(self, path: str, found: os.stat_result) -> bool:
        """Remove the file that was read, and not a good one that another writer has just put in its place."""
        try:
            return remove_if_same(self._disk, path, found)
        except OSError as error:
            self._counters.add_error("remove", error)
            return False
