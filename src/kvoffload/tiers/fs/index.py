"""What this process knows of its namespace: which chunks are there, when each was used, and which should go first.

The scheduler's thread only reads dictionaries here, without a lock; threads of the tier change them under one.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from kvoffload.clock import Clock
from kvoffload.keys.offload_key import OffloadKey
from kvoffload.policies.base import EvictionPolicy
from kvoffload.tiers.fs.shard import Shard, Victim
from kvoffload.types import LookupResult

SHARDS = 256
Use = tuple[OffloadKey, float]
"""A chunk and when it was used, seconds since the epoch."""
_MAX_ABSENT_PER_SHARD = 1_000
_MAX_WAITING = 10_000
_MAX_TOUCHED = 100_000


class ChunkIndex:
    """The chunks of one namespace. Safe for threads.

    Args:
        make_policy: Makes the policy that orders the chunks of one shard.
        size_of: Bytes that a chunk occupies.
        clock: For how long "not there" is believed.
        negative_ttl_s: How long that is.
    """

    def __init__(
        self,
        make_policy: Callable[[], EvictionPolicy],
        size_of: Callable[[OffloadKey], int],
        clock: Clock,
        negative_ttl_s: float,
    ) -> None:
        self._size_of = size_of
        self._clock = clock
        self._ttl_s = negative_ttl_s
        self._lock = threading.Lock()
        self._shards = [Shard(make_policy()) for _ in range(SHARDS)]
        self._absent_until_s: list[dict[OffloadKey, float]] = [{} for _ in range(SHARDS)]
        self._count = 0
        self._bytes = 0
        self._fronts: list[tuple[float, int]] = []
        """A heap: when the first victim of each shard was used, or earlier. Put right when it is looked at."""
        self._in_fronts = [False] * SHARDS
        self._waiting: deque[Sequence[Use]] = deque()
        """Uses that were told and not applied yet."""
        self._touched: list[tuple[OffloadKey, float, float]] = []
        self._asked: set[OffloadKey] = set()
        """What is being found out."""
        self._added: set[OffloadKey] | None = None
        """While a walk goes on: what was added meanwhile, as the walk may have missed it."""

    def lookup(self, keys: Sequence[OffloadKey]) -> tuple[list[LookupResult], list[OffloadKey]]:
        """(an answer for each key, the keys that must be found out). Reads dictionaries and nothing else."""
        now_s = self._clock.now_s()
        used = [shard.used_s for shard in self._shards]
        absent = self._absent_until_s
        hit, miss, retry = LookupResult.HIT, LookupResult.MISS, LookupResult.RETRY
        answers = [
            hit if key in used[key[0]] else miss if absent[key[0]].get(key, now_s) > now_s else retry
            for key in keys
        ]
        return answers, [key for key, answer in zip(keys, answers, strict=True) if answer is retry]

    def ask(self, keys: Sequence[OffloadKey]) -> list[OffloadKey]:
        """Note that these are to be found out; returns those that were not noted yet. Takes no lock."""
        asked = self._asked
        fresh = [key for key in keys if key not in asked]
        asked.update(fresh)
        return fresh

    def answer(self, there: Mapping[OffloadKey, float], not_there: Iterable[OffloadKey]) -> None:
        """What was asked and found out: chunk → time of last use, and what is not there."""
        with self._lock:
            # What was stored, or cleared, since the disk was asked has left the set: the answer is too old.
            for key, used_s in there.items():
                if key in self._asked:
                    self._asked.discard(key)
                    self._insert_new(key, used_s)
            for key in not_there:
                if key in self._asked:
                    self._asked.discard(key)
                    self._set_absent(key)

    def confirm(self, uses: Sequence[Use]) -> None:
        """These were there already and were just used. In order: the first counts as the most recent."""
        with self._lock:
            for key, used_s in reversed(uses):
                self._asked.discard(key)
                self._note_use(key, self._shards[key[0]].used_s.get(key, 0.0), used_s)
                self._insert_new(key, used_s)

    def add(self, uses: Sequence[Use]) -> None:
        """These were just stored, with these times. In order: the first counts as the most recent."""
        with self._lock:
            for key, used_s in reversed(uses):
                self._asked.discard(key)
                self._insert_new(key, used_s)

    def use(self, uses: Sequence[Use]) -> None:
        """Those that are there were used, the first the most recently. Takes no lock; too many are dropped."""
        if len(self._waiting) < _MAX_WAITING:
            self._waiting.append(uses)

    def take_touched(self) -> list[tuple[OffloadKey, float, float]]:
        """(key, time of its use before, time of its use) of all that was used since the last call."""
        with self._lock:
            self._apply_uses()
            touched, self._touched = self._touched, []
            return touched

    def remove(self, keys: Iterable[OffloadKey]) -> None:
        """These are not there any more."""
        with self._lock:
            for key in keys:
                self._drop(key)

    def set_absent(self, keys: Iterable[OffloadKey]) -> None:
        """These are not there; believed for a while, as another process may store them."""
        with self._lock:
            for key in keys:
                self._set_absent(key)

    def begin_walk(self) -> None:
        """From now on, what is added is remembered until `end_walk`."""
        with self._lock:
            self._added = set()

    def found(self, number: int, chunks: Mapping[OffloadKey, float], *, is_whole: bool) -> None:
        """A walk has seen shard `number`: chunk → time of last use; not `is_whole`: there may be more."""
        shard = self._shards[number]
        with self._lock:
            if self._added is None:
                # Cleared since the walk began.
                return
            if not chunks and not shard.used_s:
                # Most parts of a small store. What follows looks through all of them each time.
                return
            if not is_whole:
                for key, used_s in chunks.items():
                    self._insert(key, max(used_s, shard.used_s.get(key, used_s)))
                return
            kept = [key for key in self._added if key[0] == number]
            before = len(shard.used_s), sum(map(self._size_of, shard.used_s))
            shard.replace(chunks, kept)
            self._count += len(shard.used_s) - before[0]
            self._bytes += sum(map(self._size_of, shard.used_s)) - before[1]
            # An older chunk may have come to its front, so its old place in the heap is wrong.
            self._fronts = [front for front in self._fronts if front[1] != number]
            heapq.heapify(self._fronts)
            self._in_fronts[number] = False
            self._queue(number)

    def end_walk(self) -> None:
        """The walk is over."""
        with self._lock:
            self._added = None

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            for number, shard in enumerate(self._shards):
                shard.clear()
                self._absent_until_s[number] = {}
            self._count = self._bytes = 0
            self._asked.clear()
            self._added = None

    def peek_victim(self, is_kept: Callable[[OffloadKey], bool]) -> Victim | None:
        """The chunk that should go first; it stays first in line until it is used, removed, or set aside."""
        passed_over: list[tuple[float, int]] = []
        with self._lock:
            self._apply_uses()
            victim = None
            while self._fronts and victim is None:
                used_s, number = self._fronts[0]
                found = self._shards[number].front(is_kept)
                if found is None:
                    front = heapq.heappop(self._fronts)
                    if self._shards[number].used_s:
                        # All that it has is kept this time; the next time something may not be.
                        passed_over.append(front)
                    else:
                        self._in_fronts[number] = False
                elif found.used_s == used_s:
                    victim = found
                else:
                    heapq.heapreplace(self._fronts, (found.used_s, number))
            for front in passed_over:
                heapq.heappush(self._fronts, front)
            return victim

    def put_back(self, key: OffloadKey, used_s: float) -> None:
        """A victim turned out to have been used by another process, at this time."""
        with self._lock:
            if key in self._shards[key[0]].used_s:
                self._insert(key, used_s)

    def set_stuck(self, key: OffloadKey) -> None:
        """A victim could not be deleted: it is not proposed again before the next walk."""
        with self._lock:
            self._shards[key[0]].set_stuck(key)

    @property
    def count(self) -> int:
        """How many chunks are known to be there."""
        return self._count

    @property
    def size_bytes(self) -> int:
        """What they occupy."""
        return self._bytes

    def check(self) -> None:
        """Every known chunk is in exactly one place, and all are counted. For tests."""
        with self._lock:
            for shard in self._shards:
                shard.check()
            known = [key for shard in self._shards for key in shard.used_s]
            assert self._count == len(known), (self._count, len(known))
            assert self._bytes == sum(map(self._size_of, known)), self._bytes

    def _insert_new(self, key: OffloadKey, used_s: float) -> None:
        self._absent_until_s[key[0]].pop(key, None)
        self._insert(key, used_s)
        if self._added is not None:
            self._added.add(key)

    def _insert(self, key: OffloadKey, used_s: float) -> None:
        number = key[0]
        if self._shards[number].insert(key, used_s):
            self._count += 1
            self._bytes += self._size_of(key)
        self._queue(number)

    def _apply_uses(self) -> None:
        while self._waiting:
            for key, used_s in reversed(self._waiting.popleft()):
                before_s = self._shards[key[0]].used_s.get(key)
                if before_s is not None:
                    self._insert(key, max(before_s, used_s))
                    self._note_use(key, before_s, used_s)

    def _note_use(self, key: OffloadKey, before_s: float, used_s: float) -> None:
        if len(self._touched) < _MAX_TOUCHED:
            self._touched.append((key, before_s, used_s))

    def _drop(self, key: OffloadKey) -> None:
        if self._shards[key[0]].remove(key):
            self._count -= 1
            self._bytes -= self._size_of(key)
        if self._added is not None:
            self._added.discard(key)

    def _set_absent(self, key: OffloadKey) -> None:
        self._drop(key)
        now_s = self._clock.now_s()
        absent = self._absent_until_s[key[0]]
        if len(absent) >= _MAX_ABSENT_PER_SHARD and key not in absent:
            absent = {k: until_s for k, until_s in absent.items() if until_s > now_s}
            if len(absent) >= _MAX_ABSENT_PER_SHARD:
                absent.clear()
            self._absent_until_s[key[0]] = absent
        absent[key] = now_s + self._ttl_s

    def _queue(self, number: int) -> None:
        if not self._in_fronts[number]:
            self._in_fronts[number] = True
            heapq.heappush(self._fronts, (float("-inf"), number))
