"""The index of the fs tier against a plain model; a scheduler's step never waits for it."""

from __future__ import annotations

from fs_support import HIT, MISS, RETRY, make_keys
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvoffload.clock import ManualClock
from kvoffload.policies.lru import LRUPolicy
from kvoffload.tiers.fs.index import ChunkIndex

KEYS = make_keys(12)
TTL_S = 2.0
some_keys = st.lists(st.sampled_from(KEYS), max_size=6, unique=True)


class IndexMachine(RuleBasedStateMachine):
    """Everything that threads do to the index, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(100.0)
        self.index = ChunkIndex(lambda: LRUPolicy(100), len, self.clock, TTL_S)
        self.there: dict[bytes, float] = {}
        self.absent_until: dict[bytes, float] = {}
        self.asked: set[bytes] = set()
        self.walking: dict[bytes, float] | None = None
        self.stuck: set[bytes] = set()

    def now(self) -> float:
        self.clock.advance(0.25)
        return self.clock.now_s()

    def is_there(self, key: bytes, used_s: float) -> None:
        self.there[key] = used_s
        self.absent_until.pop(key, None)
        self.asked.discard(key)
        if self.walking is not None:
            self.walking[key] = used_s

    @rule(keys=some_keys)
    def add(self, keys: list) -> None:
        now = self.now()
        self.index.add([(key, now - i * 1e-6) for i, key in enumerate(keys)])
        for i, key in enumerate(keys):
            self.is_there(key, now - i * 1e-6)

    @rule(keys=some_keys)
    def use(self, keys: list) -> None:
        now = self.now()
        self.index.use([(key, now) for key in keys])
        touched = {key for key, _, _ in self.index.take_touched()}
        assert touched == {key for key in keys if key in self.there}
        for key in touched:
            self.there[key] = now

    @rule(keys=some_keys)
    def remove(self, keys: list) -> None:
        self.index.remove(keys)
        for key in keys:
            self.gone(key)

    def gone(self, key: bytes) -> None:
        self.there.pop(key, None)
        self.stuck.discard(key)
        if self.walking is not None:
            self.walking.pop(key, None)

    @rule(keys=some_keys)
    def set_absent(self, keys: list) -> None:
        now = self.clock.now_s()
        self.index.set_absent(keys)
        for key in keys:
            self.gone(key)
            self.absent_until[key] = now + TTL_S

    @rule(keys=some_keys)
    def lookup(self, keys: list) -> None:
        now = self.clock.now_s()
        answers, unknown = self.index.lookup(keys)
        expected = [
            HIT if key in self.there else MISS if self.absent_until.get(key, now) > now else RETRY
            for key in keys
        ]
        assert answers == expected
        assert unknown == [key for key, answer in zip(keys, answers, strict=True) if answer is RETRY]
        fresh = self.index.ask(unknown)
        assert fresh == [key for key in unknown if key not in self.asked]
        self.asked |= set(fresh)

    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        now = self.now()
        keys = data.draw(some_keys)
        there = {key: now for key in keys if data.draw(st.booleans())}
        self.index.answer(there, [key for key in keys if key not in there])
        for key in keys:
            # What was stored or cleared since it was asked is not changed by a late answer.
            if key in self.asked:
                self.asked.discard(key)
                if key in there:
                    self.is_there(key, now)
                else:
                    self.gone(key)
                    self.absent_until[key] = self.clock.now_s() + TTL_S

    @rule()
    def begin_walk(self) -> None:
        if self.walking is None:
            self.index.begin_walk()
            self.walking = {}

    @rule(
        found=st.dictionaries(st.sampled_from(KEYS), st.floats(0, 50), max_size=20),
        is_whole=st.booleans(),
        begins_now=st.booleans(),
    )
    def walk(self, found: dict, is_whole: bool, begins_now: bool) -> None:
        if begins_now:
            self.begin_walk()
        shards: dict[int, dict] = {number: {} for number in range(256)}
        for key, used_s in found.items():
            shards[key[0]][key] = used_s
        for number, chunks in shards.items():
            self.index.found(number, chunks, is_whole=is_whole)
        self.index.end_walk()
        if self.walking is None:
            return
        if is_whole:
            kept = {key: self.there[key] for key in self.walking if key in self.there}
            self.there = {k: max(t, self.there.get(k, t)) for k, t in found.items()} | kept
            self.stuck.clear()
        else:
            for key, used_s in found.items():
                self.there[key] = max(used_s, self.there.get(key, used_s))
        self.walking = None

    @rule()
    def clear(self) -> None:
        self.index.clear()
        self.there.clear()
        self.absent_until.clear()
        self.asked.clear()
        self.stuck.clear()
        self.walking = None

    @rule(kept=some_keys, end=st.sampled_from(["evict", "stuck", "used", "nothing"]))
    def take_victim(self, kept: list, end: str) -> None:
        victim = self.index.peek_victim(lambda key: key in kept)
        candidates = {
            key: used for key, used in self.there.items() if key not in kept and key not in self.stuck
        }
        assert (victim is None) == (not candidates)
        if victim is None:
            return
        assert victim.key in candidates
        assert victim.used_s == candidates[victim.key]
        if end == "evict":
            self.remove([victim.key])
        elif end == "stuck":
            self.index.set_stuck(victim.key)
            self.stuck.add(victim.key)
        elif end == "used":
            now = self.now()
            self.index.put_back(victim.key, now)
            self.there[victim.key] = now

    @invariant()
    def it_agrees_with_the_model(self) -> None:
        self.index.check()
        assert {k: t for shard in self.index._shards for k, t in shard.used_s.items()} == self.there
        assert self.index.count == len(self.there)
        assert self.index.size_bytes == sum(map(len, self.there))


IndexMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestIndexMachine = IndexMachine.TestCase


def test_victims_come_in_the_order_of_their_last_use_over_all_shards() -> None:
    index = ChunkIndex(lambda: LRUPolicy(100), len, ManualClock(), TTL_S)
    for number, key in enumerate(KEYS):
        index.add([(key, float(number))])
    index.use([(KEYS[3], 100.0)])
    order = []
    while (victim := index.peek_victim(lambda _key: False)) is not None:
        order.append(victim.key)
        index.remove([victim.key])
    assert order == [key for key in KEYS if key != KEYS[3]] + [KEYS[3]]


def test_what_a_walk_finds_is_ordered_by_its_time() -> None:
    index = ChunkIndex(lambda: LRUPolicy(100), len, ManualClock(), TTL_S)
    index.begin_walk()
    times = {key: float((number * 7) % 12) for number, key in enumerate(KEYS)}
    for number in range(256):
        index.found(number, {key: t for key, t in times.items() if key[0] == number}, is_whole=True)
    index.end_walk()
    order = []
    while (victim := index.peek_victim(lambda _key: False)) is not None:
        order.append(victim.used_s)
        index.remove([victim.key])
    assert order == sorted(times.values())


def test_the_memory_of_what_is_absent_is_bounded() -> None:
    clock = ManualClock()
    index = ChunkIndex(lambda: LRUPolicy(100), len, clock, TTL_S)
    same_shard = [b"\0" + str(number).encode() for number in range(5000)]
    for key in same_shard:
        index.set_absent([key])
    assert max(map(len, index._absent_until_s)) <= 1000
