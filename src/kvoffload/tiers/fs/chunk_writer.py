"""Writes one chunk: a temporary file in the same directory, then a rename. Never visible half-written.

`rename` and not `link`: it exists on every file system, is one call instead of two, and takes the place of a
damaged file at once. Two writers of one key write the same bytes, so it does not matter whose file stays.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from kvoffload.layout.chunk_format import encode_header, header_for
from kvoffload.tiers.counters import Counters
from kvoffload.tiers.fs.directory import DIRECTORY_BYTES, GONE
from kvoffload.tiers.fs.disk import DiskIO
from kvoffload.tiers.fs.finder import ChunkFinder, Presence
from kvoffload.tiers.fs.namespace_file import write_namespace
from kvoffload.tiers.fs.options import Durability
from kvoffload.tiers.fs.place import ChunkFile, StorePlace
from kvoffload.tiers.fs.scratch import Scratch
from kvoffload.tiers.fs.solid import check_leaf

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_NOT_WRITABLE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_DIRECTORY_ATTEMPTS = 3
_BLOCKED = frozenset({errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENOTEMPTY})


class WriteEnd(Enum):
    """What became of writing a chunk."""

    DONE = "done"
    THERE = "there"
    """Another process has stored it meanwhile."""
    VOID = "void"
    """Cleared while it was being written: it does not come back."""
    NO_ROOM = "no_room"
    NOT_WRITABLE = "not_writable"
    BLOCKED = "blocked"
    FAILED = "failed"


class Written(NamedTuple):
    """What became of writing a chunk, and what that changed on the disk."""

    end: WriteEnd
    added_bytes: int
    """Bytes that are now on the disk and were not before: the file, a temporary file that stayed, directories."""


@dataclass(slots=True)
class _Made:
    """Bytes of the directories that a store had to make, also if it failed after that."""

    size_bytes: int = 0


class ChunkWriter:
    """Stores chunks.

    Args:
        disk: The disk.
        place: Names and lengths.
        finder: Looks at what is there.
        counters: What is noteworthy.
        durability: What a finished store survives.
        direct: Whether to bypass the page cache.
    """

    def __init__(
        self,
        disk: DiskIO,
        place: StorePlace,
        finder: ChunkFinder,
        counters: Counters,
        durability: Durability,
        *,
        direct: bool,
    ) -> None:
        self._disk = disk
        self._place = place
        self._finder = finder
        self._counters = counters
        self._durability = durability
        self._flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | (os.O_DIRECT if direct else 0)
        self._scratch = Scratch()
        self._known_leaves: set[str] = set()
        """Directories that were there a while ago, and no links (65,536 at most)."""

    def cost_bytes(self, chunk: ChunkFile) -> int:
        """What storing a chunk can take at most: the file, and the directories above it."""
        return chunk.file_bytes + 2 * DIRECTORY_BYTES

    def store(
        self, chunk: ChunkFile, row: memoryview, times_ns: tuple[int, int], is_void: Callable[[], bool]
    ) -> Written:
        """Write a chunk and give it its name.

        Args:
            chunk: Which one, and where.
            row: Payload and padding; not mutated.
            times_ns: When it was created (in its header) and last used (the file's time), since the epoch.
            is_void: Asked just before and just after it becomes visible; True takes it away again.
        """
        leaf = _parent(chunk.path)
        temp = f"{leaf}/{self._place.next_temp_name()}"
        made = _Made()
        try:
            fd = self._open(temp, leaf, made)
            self._fill(fd, chunk, row, times_ns)
            if is_void():
                return self._abandon(temp, chunk, WriteEnd.VOID, made.size_bytes)
            if self._finder.find(chunk).presence is Presence.PRESENT:
                # Another process was faster. Taking its file's place would count the bytes twice until the next walk.
                return self._abandon(temp, chunk, WriteEnd.THERE, made.size_bytes)
            self._publish(temp, chunk)
        except OSError as error:
            return self._abandon(temp, chunk, self._classify(error), made.size_bytes)
        end = WriteEnd.DONE
        added = chunk.file_bytes + made.size_bytes
        try:
            if is_void():
                end = WriteEnd.VOID
                self._disk.unlink(chunk.path)
                added = made.size_bytes
            elif self._durability is Durability.FULL:
                self._sync_directory(leaf)
        except OSError as error:
            self._counters.add_error("store", error)
            end = end if end is WriteEnd.VOID else WriteEnd.FAILED
        return Written(end, added)

    def _publish(self, temp: str, chunk: ChunkFile) -> None:
        try:
            self._disk.rename(temp, chunk.path)
        except FileNotFoundError:
            # Over NFS a repeated request says so when the first one had worked and only its answer was lost.
            if self._finder.find(chunk).presence is not Presence.PRESENT:
                raise

    def _fill(self, fd: int, chunk: ChunkFile, row: memoryview, times_ns: tuple[int, int]) -> None:
        try:
            self._write(fd, chunk, row, times_ns[0])
            self._disk.set_times(fd, times_ns[1])
            if self._durability is not Durability.NONE:
                self._disk.fsync(fd)
        except BaseException:
            with suppress(OSError):
                self._disk.close(fd)
            raise
        # Not in a `finally`: over NFS this is where a failed write is reported.
        self._disk.close(fd)

    def _write(self, fd: int, chunk: ChunkFile, row: memoryview, created_ns: int) -> None:
        form = chunk.form
        area = self._scratch.header(form.header_bytes)
        payload = row[: form.payload_bytes]
        encode_header(
            header_for(self._place.identity, chunk.key, payload, created_ns, form.piece_bytes), area
        )
        buffers = [area, row[: form.padded_bytes]]
        try:
            self._disk.write_from(fd, buffers)
        except OSError as error:
            if error.errno != errno.EINVAL or not self._flags & os.O_DIRECT:
                raise
            # This file system or this buffer does not suit O_DIRECT after all.
            self._counters.add("direct_io_fallbacks")
            self._disk.without_direct(fd)
            self._disk.write_from(fd, buffers)

    def _open(self, temp: str, leaf: str, made: _Made) -> int:
        """The temporary file, and the directories that had to be made for it."""
        for _ in range(_DIRECTORY_ATTEMPTS):
            if leaf not in self._known_leaves:
                with suppress(FileNotFoundError):
                    check_leaf(self._disk, leaf)
                self._make_directory(leaf, made)
                check_leaf(self._disk, leaf)
                self._known_leaves.add(leaf)
            try:
                return self._create(temp)
            except FileNotFoundError:
                # Somebody has removed it: evictions remove empty ones.
                self._known_leaves.discard(leaf)
        return self._create(temp)

    def _create(self, temp: str) -> int:
        try:
            return self._disk.open(temp, self._flags)
        except OSError as error:
            if error.errno != errno.EINVAL or not self._flags & os.O_DIRECT:
                raise
        self._counters.add("direct_io_fallbacks")
        return self._disk.open(temp, self._flags & ~os.O_DIRECT)

    def _make_directory(self, path: str, made: _Made) -> None:
        """Make a directory, and those above it."""
        try:
            self._disk.mkdir(path)
        except FileExistsError:
            return
        except FileNotFoundError:
            above = _parent(path)
            if not above:
                raise
            self._make_directory(above, made)
            self._make_directory(path, made)
            return
        made.size_bytes += DIRECTORY_BYTES
        if path == self._place.directory:
            self._describe(path)
        if self._durability is Durability.FULL:
            self._sync_directory(_parent(path))

    def _describe(self, directory: str) -> None:
        """A namespace directory that was made anew says what it is, like the first one."""
        try:
            write_namespace(self._disk, directory, self._place.namespace, self._place.next_temp_name())
        except OSError as error:
            self._counters.add_error("store", error)

    def _sync_directory(self, path: str) -> None:
        fd = self._disk.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._disk.fsync(fd)
        finally:
            self._disk.close(fd)

    def _abandon(self, temp: str, chunk: ChunkFile, end: WriteEnd, made: int) -> Written:
        try:
            self._disk.unlink(temp)
        except OSError as error:
            if error.errno not in GONE:
                # It may be there, so it counts; the next walk knows.
                self._counters.add("temps_left")
                return Written(end, chunk.file_bytes + made)
        return Written(end, made)

    def _classify(self, error: OSError) -> WriteEnd:
        self._counters.add_error("store", error)
        if error.errno in _NO_ROOM:
            return WriteEnd.NO_ROOM
        if error.errno in _NOT_WRITABLE:
            return WriteEnd.NOT_WRITABLE
        return WriteEnd.BLOCKED if error.errno in _BLOCKED else WriteEnd.FAILED


def _parent(path: str) -> str:
    return path.rpartition("/")[0]
