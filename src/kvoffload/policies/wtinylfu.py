"""W-TinyLFU: a small window for what is new, and a main part into which only what is used more often comes."""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.policies.base import EvictionPolicy
from kvoffload.policies.queues import Queue, first_free

_WINDOW_SHARE = 0.01
_PROTECTED_SHARE = 0.8
_SAMPLES_PER_KEY = 10
_MAX_COUNT = 15
_MIN_WIDTH = 64
_MULTIPLIERS = (0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35, 0x27D4EB2F)
"""Odd, so that each row of the sketch sees other collisions."""


class FrequencySketch:
    """About how often a key was seen lately: a count-min sketch of 4 rows, halved every 10 × width sightings."""

    def __init__(self) -> None:
        self._rows = [bytearray(_MIN_WIDTH) for _ in _MULTIPLIERS]
        self._samples = 0

    def fit(self, keys: int) -> None:
        """Be as wide as this number of keys needs. Widening loses nothing: a spot's count goes to both of its heirs."""
        while len(self._rows[0]) < keys:
            self._rows = [row + row for row in self._rows]

    def add(self, key: OffloadKey) -> None:
        """It was seen once more."""
        spots = self._spots(key)
        least = min(row[spot] for row, spot in zip(self._rows, spots, strict=True))
        if least < _MAX_COUNT:
            # Only the lowest are raised: fewer collisions count.
            for row, spot in zip(self._rows, spots, strict=True):
                if row[spot] == least:
                    row[spot] += 1
        self._samples += 1
        if self._samples >= _SAMPLES_PER_KEY * len(self._rows[0]):
            self._samples //= 2
            self._rows = [bytearray(count >> 1 for count in row) for row in self._rows]

    def count(self, key: OffloadKey) -> int:
        """About how often it was seen, 0 to 15. Does not mutate."""
        return min(row[spot] for row, spot in zip(self._rows, self._spots(key), strict=True))

    def clear(self) -> None:
        """Forget all."""
        self._rows = [bytearray(len(row)) for row in self._rows]
        self._samples = 0

    def _spots(self, key: OffloadKey) -> list[int]:
        # Not hash(): it differs from process to process, and simulations must be repeatable.
        digest, mask = zlib.crc32(key), len(self._rows[0]) - 1
        products = [(digest * factor) & 0xFFFFFFFF for factor in _MULTIPLIERS]
        # The upper bits too: the lower ones of a product depend on nothing else than the lower ones of the digest.
        return [(product >> 15 ^ product) & mask for product in products]


class WTinyLFUPolicy(EvictionPolicy):
    """Gil Einziger, Roy Friedman, Ben Manes: TinyLFU, a highly efficient cache admission policy (ACM ToS 2017).

        new ──> window (1 %, LRU) ── seen more often than the other? ──> main: probation ⇄ protected (80 %)

    Variant: fixed window, segmented LRU, and the sketch above without a doorkeeper. Who loses the comparison of the
    window's last with probation's last goes; a tie is lost by the newcomer.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._window_max = max(1, int(capacity * _WINDOW_SHARE))
        self._protected_max = int((capacity - self._window_max) * _PROTECTED_SHARE)
        self._window: Queue = OrderedDict()
        self._probation: Queue = OrderedDict()
        self._protected: Queue = OrderedDict()
        self._sketch = FrequencySketch()

    def insert(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        for key in keys:
            self._sketch.add(key)
            self._window[key] = None
            if len(self._window) > self._window_max:
                oldest, _ = self._window.popitem(last=False)
                self._probation[oldest] = None
        self._sketch.fit(len(self))

    def touch(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        for key in keys:
            self._sketch.add(key)
            if key in self._window:
                self._window.move_to_end(key)
            elif key in self._protected:
                self._protected.move_to_end(key)
            else:
                del self._probation[key]
                self._protected[key] = None
                if len(self._protected) > self._protected_max:
                    oldest, _ = self._protected.popitem(last=False)
                    self._probation[oldest] = None

    def remove(self, keys: Iterable[OffloadKey]) -> None:
        """See EvictionPolicy."""
        for key in keys:
            for part in (self._window, self._probation, self._protected):
                part.pop(key, None)

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
        for part in (self._window, self._probation, self._protected, self._sketch):
            part.clear()

    def __len__(self) -> int:
        """Number of known keys."""
        return len(self._window) + len(self._probation) + len(self._protected)

    def _evict_one(self, is_kept: Callable[[OffloadKey], bool]) -> OffloadKey | None:
        resident = first_free(self._probation, is_kept)
        if resident is None:
            resident = first_free(self._protected, is_kept)
        newcomer = None
        if resident is None or len(self._window) >= self._window_max:
            newcomer = first_free(self._window, is_kept)
        victim = self._loser(newcomer, resident)
        if victim is not None:
            self.remove((victim,))
            if newcomer is not None and victim == resident:
                del self._window[newcomer]
                self._probation[newcomer] = None
        return victim

    def _loser(self, newcomer: OffloadKey | None, resident: OffloadKey | None) -> OffloadKey | None:
        if newcomer is None or resident is None:
            return resident if newcomer is None else newcomer
        wins = self._sketch.count(newcomer) > self._sketch.count(resident)
        return resident if wins else newcomer
