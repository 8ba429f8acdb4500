"""Makes room: deletes the chunks that were not used for the longest time, of this namespace and of all others.

Others, too, because the cap is one of the whole directory: what a model left behind that nobody serves any more would
otherwise keep its place for ever. Only files with the name of a chunk, inside a directory that says it is a namespace of
this project, are ever deleted.
"""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.tiers.counters import Counters
from kvoffload.tiers.fs.directory import GONE, prune
from kvoffload.tiers.fs.disk import DiskIO, is_plain_file
from kvoffload.tiers.fs.index import ChunkIndex
from kvoffload.tiers.fs.place import StorePlace
from kvoffload.tiers.fs.share import UsageShare
from kvoffload.tiers.fs.solid import check_leaf

_NEWER_S = 1.0
"""A file must have been used by this much later than believed to be spared: clocks and time stamps are coarse."""
_NANOSECONDS = 1e9


class ForeignChunk(NamedTuple):
    """A chunk of another namespace."""

    used_s: float
    path: str


class Evictor:
    """Deletes chunks until enough is free. Safe for threads.

    Args:
        disk: The disk.
        place: Names and lengths.
        index: The chunks of this namespace.
        share: Is told what was freed.
        counters: What is noteworthy.
        prune: Whether a directory that has become empty goes, too.
    """

    def __init__(
        self,
        disk: DiskIO,
        place: StorePlace,
        index: ChunkIndex,
        *,
        share: UsageShare,
        counters: Counters,
        prune: bool,
    ) -> None:
        self._disk = disk
        self._place = place
        self._index = index
        self._share = share
        self._counters = counters
        self._prune = prune
        self._lock = threading.Lock()
        self._foreign: deque[ForeignChunk] = deque()
        self._has_more_foreign = False

    def set_foreign(self, oldest: Iterable[ForeignChunk], *, has_more: bool) -> None:
        """What a walk found in other namespaces: the oldest chunks, oldest first, and whether there are more."""
        with self._lock:
            self._foreign = deque(oldest)
            self._has_more_foreign = has_more

    @property
    def needs_walk(self) -> bool:
        """Whether other namespaces have chunks that only another walk would show."""
        return self._has_more_foreign and not self._foreign

    def evict(self, target_bytes: int, is_kept: Callable[[OffloadKey], bool]) -> int:
        """Delete chunks, the least recently used first; returns the bytes that were freed, 0 if nothing can go.

        One thread at a time evicts; another one that wants room waits for it, and often finds it made.
        """
        freed = 0
        with self._lock:
            while freed < target_bytes:
                victim = self._index.peek_victim(is_kept)
                if self._foreign and (victim is None or self._foreign[0].used_s < victim.used_s):
                    freed += self._evict_foreign(self._foreign.popleft())
                elif victim is not None:
                    freed += self._evict_own(victim.key, victim.used_s)
                else:
                    break
        return freed

    def _evict_own(self, key: OffloadKey, used_s: float) -> int:
        path = self._place.path_of(key)
        counts = self._share.counts
        try:
            found = self._disk.lstat(path)
            if found.st_mtime > used_s + _NEWER_S:
                # Another process has used it since.
                self._index.put_back(key, found.st_mtime)
                return 0
            if not is_plain_file(found):
                self._index.remove((key,))
                return 0
            self._disk.unlink(path)
        except OSError as error:
            if error.errno in GONE:
                self._index.remove((key,))
                return 0
            self._index.set_stuck(key)
            self._counters.add("undeletable")
            self._counters.add_error("evict", error)
            return 0
        self._index.remove((key,))
        self._counters.add("evicted")
        return self._freed(path, found.st_size, counts)

    def _evict_foreign(self, victim: ForeignChunk) -> int:
        counts = self._share.counts
        try:
            check_leaf(self._disk, victim.path.rpartition("/")[0])
            found = self._disk.lstat(victim.path)
            if found.st_mtime > victim.used_s + _NEWER_S or not is_plain_file(found):
                return 0
            self._disk.unlink(victim.path)
        except OSError as error:
            if error.errno == errno.ELOOP:
                # Swapped for a link since the walk: what is behind it is not ours.
                self._counters.add("foreign_entries")
            elif error.errno not in GONE:
                self._counters.add("undeletable")
                self._counters.add_error("evict", error)
            return 0
        self._counters.add("evicted_of_others")
        return self._freed(victim.path, found.st_size, counts)

    def _freed(self, path: str, size_bytes: int, counts: int) -> int:
        if self._prune:
            size_bytes += prune(self._disk, path.rpartition("/")[0])
        self._share.freed(size_bytes, counts)
        return size_bytes
