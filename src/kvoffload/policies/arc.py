"""Adaptive replacement: recency and frequency, and the share of each learned from what was evicted too early."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.policies.base import EvictionPolicy
from kvoffload.policies.queues import Ghosts, Queue, first_free


class ARCPolicy(EvictionPolicy):
    """Nimrod Megiddo and Dharmendra Modha: ARC, a self-tuning, low overhead replacement cache (FAST 2003), figure 4.

        used once:   ghosts B1 <── T1        │ target size p of T1: grows with a hit in B1,
        used again:  ghosts B2 <── T2        │ shrinks with a hit in B2

    Variant: the paper's, with a real-valued p. What the paper does in one step happens in two here, as room is made
    before the key comes: `expect` learns from the ghosts, `insert` trims them. One key at a time this gives the
    paper's victims, also in the tie that depends on who comes.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._once: Queue = OrderedDict()
        self._again: Queue = OrderedDict()
        self._once_ghosts = Ghosts()
        self._again_ghosts = Ghosts()
        self._returning = Ghosts()
        """They were ghosts when they were expected, and have not come yet."""
        self._target = 0.0
        self._is_for_again_ghost = False
        """Whether the room that will be made next is for a key of B2."""
        self._most = 0
        """So many keys were here at once: of a tier that has no bound of its own, all that is known of its size."""

    @property
    def _size(self) -> int:
        return min(self.capacity, self._most)

    def expect(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        self._is_for_again_ghost = False
        for key in keys:
            self._recall(key)

    def insert(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        for key in keys:
            self._recall(key)
            (self._again if self._returning.take(key) else self._once)[key] = None
            self._most = max(self._most, len(self))
            self._trim()

    def touch(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        once, again = self._once, self._again
        for key in keys:
            if key in once:
                del once[key]
                again[key] = None
            else:
                again.move_to_end(key)

    def renew(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        for key in keys:
            (self._once if key in self._once else self._again).move_to_end(key)

    def remove(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        for key in keys:
            del (self._once if key in self._once else self._again)[key]

    def evict(self, count: int, is_kept: Callable[[OffloadKey], bool]) -> list[OffloadKey]:
        """See EvictionPolicy."""
        victims: list[OffloadKey] = []
        while len(victims) < count:
            key = self._evict_one(is_kept)
            if key is None:
                break
            victims.append(key)
        return victims

    def clear(self) -> None:
        """See EvictionPolicy."""
        for part in (self._once, self._again, self._once_ghosts, self._again_ghosts, self._returning):
            part.clear()
        self._target = 0.0
        self._is_for_again_ghost = False

    def __len__(self) -> int:
        """Number of known keys."""
        return len(self._once) + len(self._again)

    def _evict_one(self, is_kept: Callable[[OffloadKey], bool]) -> OffloadKey | None:
        is_tie = self._is_for_again_ghost and len(self._once) == self._target
        sides = [(self._once, self._once_ghosts), (self._again, self._again_ghosts)]
        if not (len(self._once) > self._target or is_tie):
            sides.reverse()
        for queue, ghosts in sides:
            key = first_free(queue, is_kept)
            if key is not None:
                del queue[key]
                ghosts.add(key, 2 * self._size)
                return key
        return None

    def _recall(self, key: OffloadKey) -> None:
        """Learn from a key that comes back, once."""
        ours, others = len(self._once_ghosts), len(self._again_ghosts)
        if self._once_ghosts.take(key):
            self._target = min(float(self._size), self._target + max(1.0, others / ours))
        elif self._again_ghosts.take(key):
            self._target = max(0.0, self._target - max(1.0, ours / others))
            self._is_for_again_ghost = True
        else:
            return
        self._returning.add(key, 2 * self._size)

    def _trim(self) -> None:
        """T1 and B1 together are at most the capacity, everything at most twice of it."""
        if len(self._once) + len(self._once_ghosts) > self._size and self._once_ghosts:
            self._once_ghosts.forget_oldest()
        total = len(self) + len(self._once_ghosts) + len(self._again_ghosts)
        if total > 2 * self._size and self._again_ghosts:
            self._again_ghosts.forget_oldest()
