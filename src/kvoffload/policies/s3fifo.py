"""S3-FIFO: a small queue on probation, a main queue with second chances, and a queue of ghosts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.policies.base import EvictionPolicy
from kvoffload.policies.queues import Ghosts, Queue

_SMALL_SHARE = 0.1
_GHOST_SHARE = 0.9
_USES_TO_MOVE = 2
_MAX_USES = 3


class S3FIFOPolicy(EvictionPolicy):
    """Juncheng Yang, Yazhuo Zhang, Ziyue Qiu, Yao Yue, K. V. Rashmi: FIFO queues are all you need … (SOSP 2023).

        new ──> small (10 %) ── used twice ──> main (90 %) ──> out
                     └── else: out, its ghost (90 %) ── comes back ──> main

    Variant: that of the authors' simulator. A key moves from small to main if it was used twice there, and starts anew
    with its count. Before the first eviction ever, what does not fit into the small queue any more goes to main: so
    the cache fills up without losing the first 90 %.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._small_max = max(1, int(capacity * _SMALL_SHARE))
        self._small: Queue = OrderedDict()
        self._main: Queue = OrderedDict()
        self._uses: dict[OffloadKey, int] = {}
        self._ghosts = Ghosts()
        self._returning = Ghosts()
        """They were ghosts when they were expected, and have not come yet."""
        self._is_warm = False
        self._most = 0
        """So many keys were here at once."""

    @property
    def _size(self) -> int:
        """Of a tier that has no bound of its own, what it has held is all that is known."""
        return min(self.capacity, self._most)

    def expect(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        for key in keys:
            if self._ghosts.take(key):
                self._returning.add(key, self._size)

    def insert(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        for key in keys:
            self._uses[key] = 0
            is_back = self._returning.take(key) or self._ghosts.take(key)
            fills_up = not self._is_warm and len(self._small) >= self._small_max
            (self._main if is_back or fills_up else self._small)[key] = None
        self._most = max(self._most, len(self._uses))

    def touch(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        uses = self._uses
        for key in keys:
            if uses[key] < _MAX_USES:
                uses[key] += 1

    def remove(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        for key in keys:
            del self._uses[key]
            del (self._small if key in self._small else self._main)[key]

    def evict(self, count: int, is_kept: Callable[[OffloadKey], bool]) -> list[OffloadKey]:
        """See EvictionPolicy."""
        victims: list[OffloadKey] = []
        while len(victims) < count:
            key = self._evict_one(is_kept)
            if key is None:
                break
            victims.append(key)
            del self._uses[key]
        return victims

    def clear(self) -> None:
        """See EvictionPolicy."""
        for part in (self._small, self._main, self._uses, self._ghosts, self._returning):
            part.clear()
        self._is_warm = False

    def __len__(self) -> int:
        """Number of known keys."""
        return len(self._uses)

    def _evict_one(self, is_kept: Callable[[OffloadKey], bool]) -> OffloadKey | None:
        self._is_warm = True
        main_max = self._size - max(1, int(self._size * _SMALL_SHARE))
        from_main = len(self._main) > main_max or not self._small
        takers = (self._from_main, self._from_small) if from_main else (self._from_small, self._from_main)
        for take in takers:
            key = take(is_kept)
            if key is not None:
                return key
        # What was kept has moved from small to main, or all is kept.
        return self._from_main(is_kept)

    def _from_small(self, is_kept: Callable[[OffloadKey], bool]) -> OffloadKey | None:
        uses = self._uses
        moved: list[OffloadKey] = []
        victim = None
        for key in self._small:
            if uses[key] >= _USES_TO_MOVE:
                moved.append(key)
            elif not is_kept(key):
                victim = key
                break
        for key in moved:
            del self._small[key]
            self._main[key] = None
            uses[key] = 0
        if victim is not None:
            del self._small[victim]
            self._ghosts.add(victim, max(1, int(self._size * _GHOST_SHARE)))
        return victim

    def _from_main(self, is_kept: Callable[[OffloadKey], bool]) -> OffloadKey | None:
        # In the last of these passes nothing has a use left, so only what is kept survives it.
        for _ in range(_MAX_USES + 1):
            victim = self._pass_over_main(is_kept)
            if victim is not None:
                return victim
        return None

    def _pass_over_main(self, is_kept: Callable[[OffloadKey], bool]) -> OffloadKey | None:
        main, uses = self._main, self._uses
        reprieved: list[OffloadKey] = []
        victim = None
        for key in main:
            if uses[key]:
                reprieved.append(key)
            elif not is_kept(key):
                victim = key
                break
        for key in reprieved:
            uses[key] -= 1
            main.move_to_end(key)
        if victim is not None:
            del main[victim]
        return victim
