"""Admission: which of the offered chunks are worth a slot at all."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from kvoffload.keys.offload_key import OffloadKey


class TouchFilter:
    """Admits a key when it was offered `threshold` times; remembers at most `max_keys` (the least recent go).

    With a threshold below 2 everything is admitted and nothing is remembered.
    """

    def __init__(self, threshold: int, max_keys: int) -> None:
        assert max_keys > 0, max_keys
        self._threshold = threshold
        self._max_keys = max_keys
        self._counts: OrderedDict[OffloadKey, int] = OrderedDict()

    def admit(self, keys: Iterable[OffloadKey]) -> list[OffloadKey]:
        """Count one offer of each key and return those that are admitted, in order."""
        if self._threshold < 2:
            return list(keys)
        admitted = []
        for key in keys:
            seen = self._counts.pop(key, 0) + 1
            if seen >= self._threshold:
                admitted.append(key)
            else:
                self._counts[key] = seen
        while len(self._counts) > self._max_keys:
            self._counts.popitem(last=False)
        return admitted

    def clear(self) -> None:
        """Forget all offers."""
        self._counts.clear()
