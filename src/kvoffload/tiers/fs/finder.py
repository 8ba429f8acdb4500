"""Looks at what stands at the path of a chunk, by one call and without opening it. Nothing else lives here."""

from __future__ import annotations

import errno
from enum import Enum
from typing import NamedTuple

from kvoffload.tiers.fs.directory import GONE
from kvoffload.tiers.fs.disk import DiskIO, is_plain_file
from kvoffload.tiers.fs.place import ChunkFile, StorePlace
from kvoffload.tiers.fs.solid import SolidDirectories


class Presence(Enum):
    """What stands where a chunk shall be stored."""

    ABSENT = "absent"
    PRESENT = "present"
    BLOCKED = "blocked"
    """Something that is no plain file, or lies behind a link. It is not ours, so it stays."""


class Found(NamedTuple):
    """What stands at the path of a chunk."""

    presence: Presence
    size_bytes: int = 0
    """Of a file that is there, also of an unusable one (ABSENT) that a store replaces."""
    mtime_ns: int = 0


class ChunkFinder:
    """Tells what is there.

    Args:
        disk: The disk.
        place: Names and lengths.
        solid: Which directories are no links.
    """

    def __init__(self, disk: DiskIO, place: StorePlace, solid: SolidDirectories) -> None:
        self._disk = disk
        self._solid = solid
        self._place = place

    def find(self, chunk: ChunkFile) -> Found:
        """What stands where the chunk shall be stored. Raises OSError."""
        try:
            found = self._disk.lstat(chunk.path)
            self._solid.check(chunk.path.rpartition("/")[0])
        except OSError as error:
            if error.errno in GONE:
                return Found(Presence.ABSENT)
            if error.errno == errno.ELOOP:
                return Found(Presence.BLOCKED)
            raise
        if not is_plain_file(found):
            return Found(Presence.BLOCKED)
        is_unusable = self._place.bad_files.has(chunk.key, found) or self._place.is_from_before(
            found.st_mtime_ns
        )
        if not chunk.form.has_length(found.st_size) or is_unusable:
            return Found(Presence.ABSENT, found.st_size)
        return Found(Presence.PRESENT, found.st_size, found.st_mtime_ns)
