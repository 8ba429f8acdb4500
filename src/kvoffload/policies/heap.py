"""A queue by rank whose ranks may change: what policies with computed priorities are made of."""

from __future__ import annotations

import heapq
from collections.abc import KeysView
from typing import Any

from kvoffload.keys.offload_key import OffloadKey

_SPARE = 64


class RankedKeys:
    """Keys, the lowest rank first; among equals the one whose rank was set first.

    A changed rank leaves the old entry behind; it is passed over later, and swept out when there are too many.
    """

    def __init__(self) -> None:
        self._entry: dict[OffloadKey, tuple[Any, int]] = {}
        self._heap: list[tuple[Any, int, OffloadKey]] = []
        self._turn = 0

    def set(self, key: OffloadKey, rank: Any) -> None:
        """Add the key, or change its rank."""
        self._turn += 1
        self._entry[key] = (rank, self._turn)
        heapq.heappush(self._heap, (rank, self._turn, key))
        if len(self._heap) > 2 * len(self._entry) + _SPARE:
            self._heap = [(rank, turn, key) for key, (rank, turn) in self._entry.items()]
            heapq.heapify(self._heap)

    def discard(self, key: OffloadKey) -> None:
        """It is no longer in the queue."""
        self._entry.pop(key, None)

    def pop(self) -> tuple[OffloadKey, Any] | None:
        """Take the first key out; with its rank."""
        while self._heap:
            rank, turn, key = heapq.heappop(self._heap)
            if self._entry.get(key) == (rank, turn):
                del self._entry[key]
                return key, rank
        return None

    def first(self) -> tuple[OffloadKey, Any] | None:
        """The key that `pop` would take, with its rank."""
        while self._heap:
            rank, turn, key = self._heap[0]
            if self._entry.get(key) == (rank, turn):
                return key, rank
            heapq.heappop(self._heap)
        return None

    def rank_of(self, key: OffloadKey) -> Any:
        """Its rank, None if it is not in the queue."""
        entry = self._entry.get(key)
        return None if entry is None else entry[0]

    def keys(self) -> KeysView[OffloadKey]:
        """All keys, in no order."""
        return self._entry.keys()

    def clear(self) -> None:
        """Forget all."""
        self._entry.clear()
        self._heap.clear()

    def __contains__(self, key: OffloadKey) -> bool:
        """Whether it is in the queue."""
        return key in self._entry

    def __len__(self) -> int:
        """How many keys there are."""
        return len(self._entry)
