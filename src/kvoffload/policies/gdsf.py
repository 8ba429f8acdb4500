"""GreedyDual-Size-Frequency: what a chunk costs to compute again, per byte, times how often it was used, and ageing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.policies.base import EvictionPolicy
from kvoffload.policies.heap import RankedKeys


class GDSFPolicy(EvictionPolicy):
    """Ludmila Cherkasova: Improving WWW proxies performance with GreedyDual-Size-Frequency caching policy (HP Labs, 1998).

    Priority = L + uses × cost / size, where L is the priority of the last victim: what is not used ages.

    Variant: chunks of one tier are equally long, so the size is 1. The cost is that of prefilling the prompt, divided by
    its chunks: 1 + length / 128, as attention grows with what stands before. Not the cost of each chunk at its own
    depth: that prefers the end of a prompt to its beginning, and without the beginning the end is worth nothing. Lengths
    come from `chain` (the longest prompt counts); without it (the fs tier) this is LFU with dynamic ageing. Equal
    priorities: the one set first goes first.
    """

    chunks_that_double: ClassVar[int] = 64
    """Chunks before a chunk at which attention costs as much as all the rest of the model: 32 k tokens with chunks of
    512, about right for a model of 8 billion parameters. The order depends little on it."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._uses: dict[OffloadKey, int] = {}
        self._cost: dict[OffloadKey, float] = {}
        """Of known keys, and for a while of those that are to come."""
        self._queue = RankedKeys()
        self._floor = 0.0

    def chain(self, keys: Sequence[OffloadKey]) -> None:
        """See EvictionPolicy."""
        cost = self._cost
        shared = 1.0 + len(keys) / (2 * self.chunks_that_double)
        for key in keys:
            if shared > cost.get(key, 0.0):
                cost[key] = shared
        if len(cost) > 4 * self.capacity + len(keys):
            self._cost = {key: cost[key] for key in self._uses if key in cost}

    def insert(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        for key in keys:
            self._uses[key] = self._first_uses(key)
            self._rank(key)

    def touch(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        for key in keys:
            self._uses[key] += 1
            self._rank(key)

    def renew(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        for key in keys:
            self._rank(key)

    def remove(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        for key in keys:
            del self._uses[key]
            self._cost.pop(key, None)
            self._queue.discard(key)

    def evict(self, count: int, is_kept: Callable[[OffloadKey], bool]) -> list[OffloadKey]:
        """See EvictionPolicy."""
        victims: list[OffloadKey] = []
        kept: list[tuple[OffloadKey, float]] = []
        while len(victims) < count:
            first = self._queue.pop()
            if first is None:
                break
            if is_kept(first[0]):
                kept.append(first)
                continue
            victims.append(first[0])
            self._floor = max(self._floor, first[1])
        for key, rank in kept:
            self._queue.set(key, rank)
        self._evicted(victims)
        self.remove(victims)
        return victims

    def clear(self) -> None:
        """See EvictionPolicy."""
        for part in (self._uses, self._cost, self._queue):
            part.clear()
        self._floor = 0.0

    def __len__(self) -> int:
        """Number of known keys."""
        return len(self._uses)

    def _rank(self, key: OffloadKey) -> None:
        self._queue.set(key, self._floor + self._weight(self._uses[key]) * self._cost.get(key, 1.0))

    def _weight(self, uses: int) -> float:
        """What so many uses are worth. For variants."""
        return uses

    def _first_uses(self, key: OffloadKey) -> int:
        """The count with which a key comes in. For variants."""
        del key
        return 1

    def _evicted(self, keys: Sequence[OffloadKey]) -> None:
        """These go, and are still known. For variants."""
