"""Leave to write: a share of the cap, space on the file system, and eviction where either is short."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from kvoffload.clock import Clock
from kvoffload.keys.offload_key import OffloadKey
from kvoffload.tiers.counters import Counters
from kvoffload.tiers.fs.disk import DiskIO
from kvoffload.tiers.fs.evictor import Evictor
from kvoffload.tiers.fs.share import UsageShare, grant_bytes_for

_ROUNDS = 4
"""How often room is made before others, who take it, have won."""
_WALK_PATIENCE_S = 1.0
"""How long stores wait for a walk: before the first one nothing can be evicted, and perhaps nothing promised."""
_ANSWER_AGE_S = 0.5
_DEFAULT_MIN_FREE_PART = 20
_DEFAULT_MIN_FREE_BYTES = 20 * 1024**3

IsKept = Callable[[OffloadKey], bool]


def default_min_free_bytes(total_bytes: int) -> int:
    """What stays free on a file system of this size if nothing else is said."""
    return min(_DEFAULT_MIN_FREE_BYTES, total_bytes // _DEFAULT_MIN_FREE_PART)


class FreeSpace:
    """How much of the file system may still be used. Asks it now and then, and reckons in between.

    Args:
        disk: The disk.
        root: A directory of the file system.
        min_free_bytes: What must stay free; None: 5 % of the file system, at most 20 GiB.
        clock: For how long an answer is believed.
    """

    def __init__(self, disk: DiskIO, root: str, min_free_bytes: int | None, clock: Clock) -> None:
        self._disk = disk
        self._root = root
        self._min_free_bytes = min_free_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._room_bytes = 0
        self._asked_s: float | None = None

    def missing_bytes(self, need_bytes: int, *, anew: bool = False) -> int:
        """How much must be deleted before `need_bytes` fit; 0 if they fit. `anew`: ask in any case. Raises OSError."""
        now_s = self._clock.now_s()
        with self._lock:
            is_fresh = self._asked_s is not None and now_s - self._asked_s < _ANSWER_AGE_S
        if anew or not is_fresh:
            found = self._disk.statvfs(self._root)
            block = found.f_frsize or found.f_bsize
            kept = self._min_free_bytes
            if kept is None:
                kept = default_min_free_bytes(found.f_blocks * block)
            with self._lock:
                self._room_bytes, self._asked_s = found.f_bavail * block - kept, now_s
        with self._lock:
            return max(0, need_bytes - self._room_bytes)

    def changed(self, more_bytes: int) -> None:
        """So much was freed (negative: written) since the file system was asked."""
        with self._lock:
            self._room_bytes += more_bytes


class Room:
    """Gives leave to write. Safe for threads.

    Args:
        cap_bytes: The cap of the directory; None: there is none.
        free_space: The other bound.
        share: This process's share of the cap.
        evictor: Makes room.
        counters: What is noteworthy.
    """

    def __init__(
        self,
        cap_bytes: int | None,
        free_space: FreeSpace,
        share: UsageShare,
        evictor: Evictor,
        counters: Counters,
    ) -> None:
        self._cap_bytes = cap_bytes
        self._free_space = free_space
        self._share = share
        self._evictor = evictor
        self._counters = counters
        self._batch_bytes = grant_bytes_for(cap_bytes)
        self.walked = threading.Event()
        """Set while a walk has been made and no other one is needed."""
        self.wants_walk = threading.Event()
        """Set to have one made soon."""
        self._waits_since_s: float | None = None

    def acquire(self, need_bytes: int, is_kept: IsKept) -> int | None:
        """Get leave to write `need_bytes`, evicting if need be, but never a chunk that `is_kept`.

        Returns:
            What was taken from the share and is to be settled (`settle`), None if there is no room.
        """
        if not self._has_free_space(need_bytes, is_kept):
            self._counters.add("rejected_min_free")
            return None
        try:
            if self._take(need_bytes, is_kept):
                return need_bytes
        except OSError as error:
            self._counters.add_error("usage", error)
            if self._cap_bytes is None:
                # Others may have a cap: what is written now is owed, and told when the record can be had again.
                return 0
            self._counters.add("rejected_usage_unknown")
        return None

    def settle(self, taken_bytes: int, added_bytes: int) -> None:
        """End what `acquire` began: so much is on the disk now."""
        self._share.settle(taken_bytes, added_bytes)
        self._free_space.changed(-added_bytes)

    def make_some(self, need_bytes: int, is_kept: IsKept) -> None:
        """The file system is full, or a quota is, whatever it says: shrink a little, so that there is turnover."""
        if self.walked.is_set():
            self._free_space.changed(self._evictor.evict(need_bytes, is_kept))

    def _has_free_space(self, need_bytes: int, is_kept: IsKept) -> bool:
        try:
            missing = self._free_space.missing_bytes(need_bytes)
            if missing:
                # Reckoning errs on the safe side.
                missing = self._free_space.missing_bytes(need_bytes, anew=True)
            if missing and self._wait_for_walk():
                self._free_space.changed(self._evictor.evict(missing, is_kept))
                missing = self._free_space.missing_bytes(need_bytes)
        except OSError as error:
            # The directory itself may be gone, and come back with the first chunk.
            self._counters.add_error("statvfs", error)
            return True
        return missing == 0

    def _take(self, need_bytes: int, is_kept: IsKept) -> bool:
        if self._cap_bytes is not None and need_bytes > self._cap_bytes:
            self._counters.add("rejected_larger_than_cap")
            return False
        freed = 1
        for _ in range(_ROUNDS):
            missing = self._share.take(need_bytes)
            if missing == 0:
                return True
            if missing is None:
                self.walked.clear()
            if freed == 0:
                break
            if not self._wait_for_walk():
                # Until then nobody knows what is old.
                self._counters.add("rejected_before_walk")
                return False
            if missing is None:
                continue
            freed = self._evictor.evict(missing + self._batch_bytes, is_kept)
            self._free_space.changed(freed)
            if self._evictor.needs_walk:
                self.wants_walk.set()
        self._counters.add("rejected_no_room")
        return False

    def _wait_for_walk(self) -> bool:
        if self.walked.is_set():
            self._waits_since_s = None
            return True
        self.wants_walk.set()
        now_s = time.monotonic()
        if self._waits_since_s is None:
            self._waits_since_s = now_s
        # Together and not each: on a large directory the first walk takes long, and jobs have deadlines.
        is_over = self.walked.wait(max(0.0, self._waits_since_s + _WALK_PATIENCE_S - now_s))
        if is_over:
            self._waits_since_s = None
        return is_over
