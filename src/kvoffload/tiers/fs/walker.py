"""One walk over a root, and all that is learnt by it.

What is there and how old (for the index), what it occupies (for the usage record), what can be evicted of other
namespaces, and which temporary files nobody will ever finish.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.tiers.counters import Counters
from kvoffload.tiers.fs.directory import (
    DIRECTORY_BYTES,
    GONE,
    NAMESPACE_BYTES,
    ROOT_BYTES,
    FoundFile,
    Leaf,
    key_of_chunk_name,
    namespaces_in,
    walk_namespace,
)
from kvoffload.tiers.fs.disk import DiskIO
from kvoffload.tiers.fs.evictor import Evictor, ForeignChunk
from kvoffload.tiers.fs.index import SHARDS, ChunkIndex
from kvoffload.tiers.fs.liveness import has_died, is_orphan
from kvoffload.tiers.fs.place import StorePlace
from kvoffload.tiers.fs.share import Baseline, UsageShare
from kvoffload.tiers.fs.store_root import NamespaceState, describe
from kvoffload.tiers.fs.usage import WriterUsage

logger = logging.getLogger(__name__)

_MAX_FOREIGN = 20_000
_NANOSECONDS = 1e9


class WalkStoppedError(Exception):
    """The tier is shutting down."""


@dataclass(slots=True)
class _Walk:
    """What one walk has found so far."""

    now_s: float
    counts: bool
    """Whether it sets the usage record right, and may sweep."""
    live_writers: frozenset[str] = frozenset()
    """Those that the record has heard of lately."""
    total_bytes: int = ROOT_BYTES
    files: int = 0
    errors: int = 0
    youngest_others: list[tuple[float, str]] = field(default_factory=list)
    """A heap of (-time of use, path): the oldest chunks of others, the youngest of them on top."""
    others: int = 0


class Walker:
    """Walks.

    Args:
        disk: The disk.
        place: Names and lengths.
        index: Is told what is there.
        share: Is told what it occupies.
        evictor: Is told what others have.
        counters: What is noteworthy.
    """

    def __init__(
        self,
        disk: DiskIO,
        place: StorePlace,
        index: ChunkIndex,
        *,
        share: UsageShare,
        evictor: Evictor,
        counters: Counters,
    ) -> None:
        self._disk = disk
        self._place = place
        self._index = index
        self._share = share
        self._evictor = evictor
        self._counters = counters

    def walk(self, now_s: float, pause: Callable[[], None], *, counts: bool) -> None:
        """Walk once.

        Args:
            now_s: Seconds since the epoch.
            pause: Called often; may sleep, and raises WalkStoppedError to end the walk.
            counts: Whether the usage record is set right and temporary files of the dead are swept (else only the
                index is filled).

        Raises:
            WalkStoppedError: from `pause`. The index keeps what it has, the record stays as it was.
            OSError: the usage record cannot be used; the index is filled all the same.
        """
        walk = _Walk(now_s, counts)
        self._index.begin_walk()
        try:
            baseline, error = self._begin_count(walk)
            for name in namespaces_in(self._disk, self._place.root, self._on_error(walk)):
                walk.total_bytes += NAMESPACE_BYTES
                path = f"{self._place.root}/{name}"
                if path != self._place.directory:
                    self._walk_guarded(walk, path, pause)
            self._walk_own(walk, pause)
        finally:
            self._index.end_walk()
        oldest = [ForeignChunk(-negative, path) for negative, path in walk.youngest_others]
        self._evictor.set_foreign(sorted(oldest), has_more=walk.others > len(oldest))
        self._counters.add("walks")
        if error is not None:
            raise error
        if baseline is not None:
            self._share.end_count(baseline, walk.total_bytes, is_whole=walk.errors == 0)

    def _begin_count(self, walk: _Walk) -> tuple[Baseline | None, OSError | None]:
        if not walk.counts:
            return None, None

        def is_dead(name: str, entry: WriterUsage) -> bool:
            return has_died(name, entry, self._place.writer, walk.now_s)

        try:
            usage, baseline = self._share.begin_count(is_dead)
        except OSError as error:
            return None, error
        walk.live_writers = frozenset(usage.writers)
        return baseline, None

    def _walk_own(self, walk: _Walk, pause: Callable[[], None]) -> None:
        shards: dict[int, dict[OffloadKey, float]] = {number: {} for number in range(SHARDS)}
        current: str | None = None
        errors = walk.errors
        for leaf in walk_namespace(self._disk, self._place.directory, self._on_error(walk)):
            first = leaf.path[:2]
            if first and first != current:
                if current is not None:
                    self._hand_over(int(current, 16), shards, is_whole=walk.errors == errors)
                    errors = walk.errors
                current = first
            self._count_leaf(walk, self._place.directory, leaf)
            for file in leaf.chunks:
                key = key_of_chunk_name(file.name)
                assert key is not None, file
                if self._is_usable(key, file):
                    shards[key[0]][key] = file.mtime_ns / _NANOSECONDS
                else:
                    # Damaged, or of a version or shape that this engine cannot use: it can only be evicted.
                    self._note_other(walk, f"{self._place.directory}/{leaf.path}", file)
            pause()
        # The last one, and those that have no directory.
        for number in list(shards):
            self._hand_over(number, shards, is_whole=walk.errors == errors)

    def _is_usable(self, key: OffloadKey, file: FoundFile) -> bool:
        if not self._place.has_group_of(key) or not self._place.has_length(key, file.size_bytes):
            return False
        if self._place.is_from_before(file.mtime_ns):
            return False
        if not self._place.bad_files.has_any(key):
            return True
        try:
            return not self._place.bad_files.has(key, self._disk.lstat(self._place.path_of(key)))
        except OSError:
            return False

    def _hand_over(self, number: int, shards: dict[int, dict[OffloadKey, float]], *, is_whole: bool) -> None:
        self._index.found(number, shards.pop(number), is_whole=is_whole)

    def _walk_guarded(self, walk: _Walk, path: str, pause: Callable[[], None]) -> None:
        """Nothing that stands in somebody else's directory may end the walk: without one nothing is stored."""
        try:
            self._walk_other(walk, path, pause)
        except WalkStoppedError:
            raise
        except Exception:
            logger.exception("fs tier: internal error while walking %s", path)
            self._counters.add("internal_errors")
            walk.errors += 1

    def _walk_other(self, walk: _Walk, path: str, pause: Callable[[], None]) -> None:
        # Counted in any case, but only what is in a directory that proves to be ours may be deleted.
        info = describe(self._disk, self._place.root, path.rpartition("/")[2])
        is_ours = info.is_ours
        if info.state is NamespaceState.UNREADABLE:
            self._counters.add("unreadable_namespaces")
        for leaf in walk_namespace(self._disk, path, self._on_error(walk)):
            self._count_leaf(walk, path, leaf, may_sweep=is_ours)
            if is_ours:
                for file in leaf.chunks:
                    self._note_other(walk, f"{path}/{leaf.path}", file)
            pause()

    def _count_leaf(self, walk: _Walk, namespace_path: str, leaf: Leaf, *, may_sweep: bool = True) -> None:
        walk.files += len(leaf.chunks)
        walk.total_bytes += sum(file.size_bytes for file in leaf.chunks)
        walk.total_bytes += DIRECTORY_BYTES if leaf.path else 0
        for file in leaf.temps:
            directory = f"{namespace_path}/{leaf.path}".rstrip("/")
            if not (may_sweep and self._sweep(walk, directory, file)):
                walk.total_bytes += file.size_bytes

    def _note_other(self, walk: _Walk, directory: str, file: FoundFile) -> None:
        walk.others += 1
        entry = (-file.mtime_ns / _NANOSECONDS, f"{directory}/{file.name}")
        if len(walk.youngest_others) < _MAX_FOREIGN:
            heapq.heappush(walk.youngest_others, entry)
        else:
            heapq.heappushpop(walk.youngest_others, entry)

    def _sweep(self, walk: _Walk, directory: str, file: FoundFile) -> bool:
        """Delete a temporary file whose writer is dead; returns whether it is gone."""
        if not walk.counts or not is_orphan(file, self._place.writer, walk.now_s, walk.live_writers):
            return False
        try:
            self._disk.unlink(f"{directory}/{file.name}")
        except OSError as error:
            if error.errno in GONE:
                return True
            self._counters.add_error("sweep", error)
            return False
        self._counters.add("swept_temps")
        return True

    def _on_error(self, walk: _Walk) -> Callable[[str, OSError], None]:
        def note(_path: str, error: OSError) -> None:
            walk.errors += 1
            self._counters.add_error("walk", error)

        return note
