"""Least frequently used; among equals the one that was not used for the longest time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.policies.base import EvictionPolicy
from kvoffload.policies.queues import Queue


class LFUPolicy(EvictionPolicy):
    """Perfect counts while a key is here, none of them afterwards ("in-cache LFU"); constant time per use.

    After Ketan Shah, Anirban Mitra and Dhruv Matani: An O(1) algorithm for implementing the LFU cache eviction scheme
    (2010). Variant: one queue per count, in the order of the last use. Counts do not age: what was popular once
    stays for ever, which is what makes LFU a bad choice where the load changes.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._count: dict[OffloadKey, int] = {}
        self._queues: dict[int, Queue] = {}

    def insert(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        for key in keys:
            self._set(key, 1)

    def touch(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        for key in keys:
            count = self._count[key]
            self._leave(key, count)
            self._set(key, count + 1)

    def renew(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        for key in keys:
            count = self._count[key]
            self._leave(key, count)
            self._set(key, count)

    def remove(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        for key in keys:
            self._leave(key, self._count.pop(key))

    def evict(self, count: int, is_kept: Callable[[OffloadKey], bool]) -> list[OffloadKey]:
        """See EvictionPolicy."""
        victims: list[OffloadKey] = []
        # As many different counts as there are, and those are few: most keys were used once or twice.
        for uses in sorted(self._queues):
            for key in self._queues[uses]:
                if len(victims) >= count:
                    break
                if not is_kept(key):
                    victims.append(key)
            if len(victims) >= count:
                break
        self.remove(victims)
        return victims

    def clear(self) -> None:
        """See EvictionPolicy."""
        self._count.clear()
        self._queues.clear()

    def __len__(self) -> int:
        """Number of known keys."""
        return len(self._count)

    def _set(self, key: OffloadKey, count: int) -> None:
        self._count[key] = count
        self._queues.setdefault(count, OrderedDict())[key] = None

    def _leave(self, key: OffloadKey, count: int) -> None:
        queue = self._queues[count]
        del queue[key]
        if not queue:
            del self._queues[count]
