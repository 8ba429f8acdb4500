"""Writes one chunk: a temporary file in the same directory, then a rename. Never visible half-written.

`rename` and not `link`: it exists on every file system, is one call instead of two, and takes the place of a
damaged file at once. Two writers of one key write the same bytes, so it does not matter whose file stays.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import NamedTuple

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.layout.chunk_format import HEADER_BYTES, ChunkHeader, checksum, encode_header
from kvoffload.tiers.fs.counters import Counters
from kvoffload.tiers.fs.directory import DIRECTORY_BYTES, GONE
from kvoffload.tiers.fs.disk import DiskIO
from kvoffload.tiers.fs.finder import ChunkFinder, Presence
from kvoffload.tiers.fs.namespace_file import write_namespace
from kvoffload.tiers.fs.options import Durability
from kvoffload.tiers.fs.place import StorePlace
from kvoffload.tiers.fs.reader import HeaderPages

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_NOT_WRITABLE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_BLOCKED = frozenset({errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENOTEMPTY})


class WriteEnd(Enum):
    """What became of writing a chunk."""

    DONE = "done"
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
        self._local = HeaderPages()
        self._known_leaves: set[str] = set()

    def cost_bytes(self, key: OffloadKey) -> int:
        """What storing a chunk can take at most, its directories included."""
        leaf = _parent(self._place.path_of(key))
        known = leaf in self._known_leaves
        return self._place.file_bytes_of(key) + (0 if known else 2 * DIRECTORY_BYTES)

    def store(
        self, key: OffloadKey, row: memoryview, times_ns: tuple[int, int], is_void: Callable[[], bool]
    ) -> Written:
        """Write a chunk and give it its name.

        Args:
            key: Its key.
            row: Payload and padding; not mutated.
            times_ns: When it was created (in its header) and last used (the file's time), since the epoch.
            is_void: Asked just before and just after it becomes visible; True takes it away again.
        """
        path = self._place.path_of(key)
        leaf = _parent(path)
        temp = f"{leaf}/{self._place.next_temp_name()}"
        made = 0
        try:
            fd, made = self._open(temp, leaf)
            self._fill(fd, key, row, times_ns)
            if is_void():
                return self._abandon(temp, key, WriteEnd.VOID, made)
            self._publish(temp, path, key)
        except OSError as error:
            return self._abandon(temp, key, self._classify(error), made)
        end = WriteEnd.DONE
        added = self._place.file_bytes_of(key) + made
        try:
            if is_void():
                end = WriteEnd.VOID
                self._disk.unlink(path)
                added = made
            elif self._durability is Durability.FULL:
                self._sync_directory(leaf)
        except OSError as error:
            self._counters.add_error("store", error)
            end = end if end is WriteEnd.VOID else WriteEnd.FAILED
        return Written(end, added)

    def _publish(self, temp: str, path: str, key: OffloadKey) -> None:
        try:
            self._disk.rename(temp, path)
        except FileNotFoundError:
            # Over NFS a repeated request says so when the first one had worked and only its answer was lost.
            if self._finder.find(key).presence is not Presence.PRESENT:
                raise

    def _fill(self, fd: int, key: OffloadKey, row: memoryview, times_ns: tuple[int, int]) -> None:
        try:
            self._write(fd, key, row, times_ns[0])
            self._disk.set_times(fd, times_ns[1])
            if self._durability is not Durability.NONE:
                self._disk.fsync(fd)
        except BaseException:
            with suppress(OSError):
                self._disk.close(fd)
            raise
        # Not in a `finally`: over NFS this is where a failed write is reported.
        self._disk.close(fd)

    def _write(self, fd: int, key: OffloadKey, row: memoryview, created_ns: int) -> None:
        payload_bytes = self._place.payload_bytes_of(key)
        page = self._local.page
        header = ChunkHeader(
            self._place.identity, key, payload_bytes, checksum(row[:payload_bytes]), created_ns
        )
        encode_header(header, page)
        buffers = [page, row[: self._place.file_bytes_of(key) - HEADER_BYTES]]
        try:
            self._disk.write_from(fd, buffers)
        except OSError as error:
            if error.errno != errno.EINVAL or not self._flags & os.O_DIRECT:
                raise
            # This file system or this buffer does not suit O_DIRECT after all.
            self._counters.add("direct_io_fallbacks")
            self._disk.without_direct(fd)
            self._disk.write_from(fd, buffers)

    def _open(self, temp: str, leaf: str) -> tuple[int, int]:
        """The temporary file, and the bytes of the directories that had to be made for it."""
        made = 0
        for attempt in (0, 1):
            try:
                fd = self._create(temp)
                break
            except FileNotFoundError:
                # The first chunk of this directory, or somebody removed it under us.
                if attempt:
                    raise
                made = self._make_directory(leaf)
        self._known_leaves.add(leaf)
        return fd, made

    def _create(self, temp: str) -> int:
        try:
            return self._disk.open(temp, self._flags)
        except OSError as error:
            if error.errno != errno.EINVAL or not self._flags & os.O_DIRECT:
                raise
        self._counters.add("direct_io_fallbacks")
        return self._disk.open(temp, self._flags & ~os.O_DIRECT)

    def _make_directory(self, path: str) -> int:
        """Make a directory and those above it; returns the bytes of those that were not there."""
        try:
            self._disk.mkdir(path)
        except FileExistsError:
            return 0
        except FileNotFoundError:
            above = _parent(path)
            if not above:
                raise
            return self._make_directory(above) + self._make_directory(path)
        if path == self._place.directory:
            self._describe(path)
        if self._durability is Durability.FULL:
            self._sync_directory(_parent(path))
        return DIRECTORY_BYTES

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

    def _abandon(self, temp: str, key: OffloadKey, end: WriteEnd, made: int) -> Written:
        try:
            self._disk.unlink(temp)
        except OSError as error:
            if error.errno not in GONE:
                # It may be there, so it counts; the next walk knows.
                self._counters.add("temps_left")
                return Written(end, self._place.file_bytes_of(key) + made)
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
