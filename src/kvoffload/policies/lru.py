"""Least recently used."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import filterfalse, islice

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.policies.base import EvictionPolicy


class LRUPolicy(EvictionPolicy):
    """Evicts the key that was not used for the longest time.

    An OrderedDict and not a plain dict: the oldest entry of a plain dict is found by scanning the holes that
    earlier evictions left behind.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._order: OrderedDict[OffloadKey, None] = OrderedDict()

    def insert(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        order = self._order
        for key in keys:
            order[key] = None

    def touch(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        move_to_end = self._order.move_to_end
        for key in keys:
            move_to_end(key)

    def renew(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        self.touch(keys)

    def remove(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        for key in keys:
            del self._order[key]

    def evict(self, count: int, is_kept: Callable[[OffloadKey], bool]) -> list[OffloadKey]:
        """See EvictionPolicy."""
        order = self._order
        # The search runs in C; in this form it costs less than the iterators would for a single key.
        if count == 1:
            for key in order:
                if not is_kept(key):
                    del order[key]
                    return [key]
            return []
        victims = list(islice(filterfalse(is_kept, order), max(count, 0)))
        for key in victims:
            del order[key]
        return victims

    def clear(self) -> None:
        """See EvictionPolicy."""
        self._order.clear()

    def __len__(self) -> int:
        """Number of known keys."""
        return len(self._order)
