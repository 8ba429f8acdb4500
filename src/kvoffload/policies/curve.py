"""LRU's hit ratio at several sizes from one pass and a sample of the keys: what would more memory give, or less?

C. Waldspurger, N. Park, A. Garthwaite, I. Ahmad: Efficient MRC construction with SHARDS (FAST 2015). A key is in the sample or
not for good, by its hash; the stack distances within the sample, divided by its rate, are those of all keys. What
the sample lacks or has too much of accesses is taken to be hits (their SHARDS-adj): such are the popular keys.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf, sqrt

import xxhash

from kvoffload.keys.offload_key import OffloadKey

_PARTS = 16
"""Sub-samples, of whose disagreement the error is told."""
_DIGESTS = 1 << 64
_FEW = 8

Sampler = Callable[[Sequence[OffloadKey]], list[OffloadKey]]
"""Those keys that are in the sample, in their order: for the same key always the same answer."""
PlacesOf = Callable[[Sequence[OffloadKey], bytes | bytearray], Sequence[int]]
"""The places of those keys, ascending; the second argument is their `first_bytes`, and ends where the prompt does."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """One point of a curve."""

    capacity: int
    """In chunks."""
    hit_ratio: float
    """Share of the chunks asked for that LRU would have, each with all chunks before it."""
    error: float
    """Two standard errors of the sampling (not of the traffic); 0 if all keys are in the sample."""


def digest_sampler(rate: float) -> Sampler:
    """Takes this share of any keys."""
    limit = int(rate * _DIGESTS)
    digest = xxhash.xxh3_64_intdigest
    return list if rate >= 1 else lambda keys: [key for key in keys if digest(key) < limit]


def hash_sampler(rate: float) -> tuple[Sampler, float]:
    """As `digest_sampler`, faster, for keys of one length that begin with a good hash of at least two bytes.

    Returns:
        The sampler, and the rate that it really has.
    """
    places_of, real = hash_places(rate)
    return lambda keys: [keys[place] for place in places_of(keys, first_bytes(keys))], real


def first_bytes(keys: Sequence[OffloadKey]) -> bytes:
    """The first byte of each of these keys of one length."""
    return b"".join(keys)[:: len(keys[0])] if keys else b""


def hash_places(rate: float) -> tuple[PlacesOf, float]:
    """As `hash_sampler`, but says where the sampled keys are, and looks at few of them: mostly the first bytes suffice."""
    if rate >= 1:
        return lambda _keys, firsts: range(len(firsts)), 1.0
    first = max(1, min(256, round(rate * 256)))
    second = max(1, min(256, round(rate * 256 / first * 256)))
    real = first * second / 65_536
    if first > _FEW:
        return (
            lambda keys, firsts: [i for i, byte in enumerate(firsts) if byte < first and keys[i][1] < second],
            real,
        )
    return lambda keys, firsts: [i for i in _below(firsts, first) if keys[i][1] < second], real


def _below(column: bytes | bytearray, first: int) -> list[int]:
    """Where a byte is below `first`, without looking at each from Python: few are, and this runs always."""
    places = []
    for value in range(first):
        place = column.find(value)
        while place >= 0:
            places.append(place)
            place = column.find(value, place + 1)
    return sorted(places)


class SampledCurve:
    """Follows the prompts of an engine; memory is bounded by `rate` times the largest capacity.

    Args:
        capacities: In chunks, at least one, ascending.
        sampler: Which keys are in the sample.
        rate: Which share of all keys that is, above 0 and up to 1.
        window: Once so many chunks were asked for, what was counted before counts half; None: all counts the same.
    """

    def __init__(
        self, capacities: Sequence[int], sampler: Sampler, rate: float, window: int | None = None
    ) -> None:
        assert list(capacities) == sorted(capacities), capacities
        assert 0 < rate <= 1, rate
        self._capacities = tuple(capacities)
        self._rate = rate
        self._sampler = sampler
        self._window = window
        self._depths = sorted(depth for capacity in capacities for depth in self._depths_of(capacity))
        self._max_depth = int(self._depths[-1]) + 1
        # The stack: keys by last use, and these times again, sorted, to count those after a given one.
        self._last: OrderedDict[OffloadKey, int] = OrderedDict()
        self._times: list[int] = []
        self._now = 0
        self._asked = 0.0
        self._reached = [[0.0] * _PARTS for _ in range(len(self._depths) + 1)]
        """What was asked for, by how many of the depths it lies beyond, and by sub-sample."""

    def use(self, keys: Sequence[OffloadKey], last_weight: float = 1.0) -> None:
        """A prompt was looked up as a whole, then used from its tail to its head.

        Args:
            keys: Its chunks, from the first.
            last_weight: What the last one counts, if it is not full.
        """
        if not keys:
            return
        self._asked += len(keys) - 1 + last_weight
        sampled = self._sampler(keys)
        if sampled:
            self._ask(sampled, keys[-1], last_weight)
            self._push(reversed(sampled))
        self._fade()

    def use_sampled(self, count: int, sampled: Sequence[OffloadKey]) -> None:
        """As `use` of a prompt of `count` full chunks, of which these are in the sample, in order."""
        self._asked += count
        if sampled:
            self._ask(sampled, None, 1.0)
            self._push(reversed(sampled))
        self._fade()

    def _fade(self) -> None:
        if self._window is not None and self._asked > self._window:
            self._asked /= 2
            self._reached = [[count / 2 for count in parts] for parts in self._reached]

    def estimates(self) -> list[Estimate]:
        """The curve so far."""
        return [self._estimate(capacity) for capacity in self._capacities]

    def clear(self) -> None:
        """All chunks are gone: nothing of before is a hit. What was counted stays."""
        self._last.clear()
        self._times.clear()

    def __len__(self) -> int:
        """Keys that it remembers."""
        return len(self._last)

    def _ask(self, sampled: Sequence[OffloadKey], final: OffloadKey | None, last_weight: float) -> None:
        times, depths = self._times, self._depths
        reach: float = 0
        for key in sampled:
            time = self._last.get(key)
            # What is behind a chunk that is not there is of no use either.
            reach = inf if time is None else max(reach, len(times) - bisect_right(times, time))
            beyond = bisect_right(depths, reach)
            if beyond:
                part = xxhash.xxh3_64_intdigest(key, 1) % _PARTS
                self._reached[beyond][part] += last_weight if key is final else 1.0

    def _push(self, keys: Iterable[OffloadKey]) -> None:
        last, times = self._last, self._times
        for key in keys:
            time = last.pop(key, None)
            if time is not None:
                del times[bisect_right(times, time) - 1]
            self._now += 1
            last[key] = self._now
            times.append(self._now)
        while len(last) > self._max_depth:
            last.popitem(last=False)
            del times[0]

    def _estimate(self, capacity: int) -> Estimate:
        """The two errors: which keys are in the sample, and how its depths stand for those of all keys."""
        expected = self._asked * self._rate / _PARTS
        if not expected:
            return Estimate(capacity, 0.0, 0.0)
        near, middle, far = self._depths_of(capacity)
        ratios = [misses / expected for misses in self._misses_beyond(middle)]
        mean = sum(ratios) / _PARTS
        of_keys = sum((ratio - mean) ** 2 for ratio in ratios) / (_PARTS - 1) / _PARTS * (1 - self._rate)
        more, less = (sum(self._misses_beyond(depth)) / expected / _PARTS for depth in (near, far))
        error = 2 * sqrt(of_keys + ((more - less) / 2) ** 2)
        return Estimate(capacity, max(0.0, 1 - mean), error)

    def _depths_of(self, capacity: int) -> tuple[float, float, float]:
        """Where a capacity lies in the stack of the sample, between a standard error before and one behind."""
        middle = capacity * self._rate
        step = sqrt(middle * (1 - self._rate))
        return max(0.0, middle - step), middle, middle + step

    def _misses_beyond(self, depth: float) -> list[float]:
        """By sub-sample; `depth` is one of those that are counted."""
        first = bisect_left(self._depths, depth) + 1
        return [sum(counts) for counts in zip(*self._reached[first:], strict=True)]
