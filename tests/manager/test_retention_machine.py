"""Priorities, pins for a time and times to live in the host tier, under any sequence of events and with several policies."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.manager import host_tier
from kvoffload.manager.host_tier import HostTier
from kvoffload.manager.retention import MAX_EXPIRED, Shares
from kvoffload.manager.wishes import Priority, Stay
from kvoffload.policies.admission import TouchFilter
from kvoffload.policies.factory import EVICTION_POLICIES
from kvoffload.policies.ranked import Rank
from kvoffload.testing.policy_tests import key
from kvoffload.types import LookupResult, SlotId

NUM_SLOTS = 6
MAX_KEPT, MAX_HIGH = 3, 2
ALL_KEYS = [key(number) for number in range(9)]
some_keys = st.lists(st.sampled_from(ALL_KEYS), unique=True, min_size=1, max_size=4)
stays = st.builds(
    Stay,
    st.sampled_from(Priority),
    keep_s=st.sampled_from([None, 1.0, 5.0]),
    ttl_s=st.sampled_from([None, None, 1.0, 8.0]),
)
Write = tuple[OffloadKey, SlotId]


class RetentionMachine(RuleBasedStateMachine):
    """The model knows until when each chunk is kept and lives, and nothing of policies."""

    policy = "lru"
    writes = Bundle("writes")
    holds = Bundle("holds")

    def __init__(self) -> None:
        super().__init__()
        made = EVICTION_POLICIES.resolve(self.policy)(NUM_SLOTS)
        self.tier = HostTier(
            NUM_SLOTS, made, TouchFilter(0, 1), Shares(kept=MAX_KEPT / NUM_SLOTS, high=MAX_HIGH / NUM_SLOTS)
        )
        self.now_s = 100.0
        self.written: list[SlotId] = []
        self.held: list[SlotId] = []
        self.kept_until: dict[OffloadKey, float] = {}
        self.ends_at: dict[OffloadKey, float] = {}

    def there(self) -> set[OffloadKey]:
        return {name for name in ALL_KEYS if self.tier.lookup(name) is not LookupResult.MISS}

    def forget(self, names: set[OffloadKey]) -> None:
        for name in names:
            self.kept_until.pop(name, None)
            self.ends_at.pop(name, None)

    @rule(target=writes, keys=some_keys, stay=stays, from_below=st.booleans())
    def offer(self, keys: list[OffloadKey], stay: Stay, from_below: bool):
        before = self.there()
        ranks = {name: self.tier._policy.rank_of(name) for name in before}
        pinned = {name for name in before if self.tier._ready.get(name) in self.tier._pins}
        free = len(self.tier._free)
        verb = self.tier.reserve if from_below else self.tier.prepare_store
        prepared = verb(keys, protected=set(keys))
        victims = set(prepared.evicted)
        assert not victims & {name for name, until_s in self.kept_until.items() if until_s > self.now_s}
        assert len(victims) == max(0, min(len(victims), len(prepared.stored) + prepared.rejected - free))
        spared = {
            ranks[name]
            for name in before - victims - pinned - set(keys)
            if self.tier.lookup(name) is LookupResult.HIT and ranks[name] is not Rank.KEPT
        }
        assert not victims or not spared or max(ranks[name] for name in victims) <= min(spared)
        self.forget(victims)
        if not from_below:
            self.retain(keys, dict(prepared.stored), stay)
        self.written += [slot for _, slot in prepared.stored]
        return multiple(*prepared.stored)

    def retain(self, keys: list[OffloadKey], new: dict[OffloadKey, SlotId], stay: Stay) -> None:
        refused = 0
        for name in keys:
            if name not in self.there():
                continue
            if stay.keep_s is not None:
                if name in self.kept_until or len(self.kept_until) < MAX_KEPT:
                    until_s = self.now_s + stay.keep_s
                    self.kept_until[name] = max(until_s, self.kept_until.get(name, 0.0))
                else:
                    refused += 1
            before_s = 0.0 if name in new else self.ends_at.get(name, math.inf)
            end_s = max(before_s, math.inf if stay.ttl_s is None else self.now_s + stay.ttl_s)
            self.ends_at.pop(name, None)
            if end_s < math.inf:
                self.ends_at[name] = end_s
        assert self.tier.retain(keys, new, stay, self.now_s) == refused

    @rule(write=consumes(writes))
    def commit(self, write: Write) -> None:
        self.tier.commit_store([write])
        self.written.remove(write[1])

    @rule(write=consumes(writes), give_up_first=st.booleans())
    def abort(self, write: Write, give_up_first: bool) -> None:
        if self.tier._writing.get(write[0]) == write[1]:
            self.forget({write[0]})
        if give_up_first:
            self.tier.forget_write(*write)
        self.tier.abort_store([write])
        self.written.remove(write[1])

    @rule(target=holds, keys=some_keys)
    def load(self, keys: list[OffloadKey]) -> list[SlotId]:
        slots = [slot for slot in self.tier.prepare_load(keys) if slot is not None]
        self.held += slots
        return slots

    @rule(slots=consumes(holds))
    def end_load(self, slots: list[SlotId]) -> None:
        self.tier.complete_load(slots)
        for slot in slots:
            self.held.remove(slot)

    @rule(keys=some_keys)
    def drop(self, keys: list[OffloadKey]) -> None:
        self.forget({name for name in keys if self.tier.lookup(name) is LookupResult.HIT})
        self.tier.drop(keys)

    @rule()
    def clear(self) -> None:
        self.tier.clear()
        self.forget(set(ALL_KEYS))

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0, 9.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        over = {name for name, end_s in self.ends_at.items() if end_s <= self.now_s}
        before = self.there()
        assert over <= before
        assert self.tier.pass_time(self.now_s) == len(over)
        assert self.there() == before - over
        self.forget(over)
        self.kept_until = {name: until for name, until in self.kept_until.items() if until > self.now_s}

    @invariant()
    def slots_add_up_and_shares_are_kept(self) -> None:
        self.tier.check(self.written, self.held)
        assert self.tier.kept_count == len(self.kept_until) <= MAX_KEPT
        high = [name for name in self.tier._ready if self.tier._policy.rank_of(name) is Rank.HIGH]
        assert len(high) <= MAX_HIGH


@pytest.mark.parametrize("policy", ["lru", "s3fifo", "arc", "prefix"])
def test_no_life_breaks_the_terms_of_a_chunk(policy: str) -> None:
    machine = type("Machine", (RetentionMachine,), {"policy": policy})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=12, stateful_step_count=30, deadline=None)
    )


@st.composite
def events(draw: st.DrawFn) -> list[tuple[str, list[OffloadKey], float | None]]:
    kinds = st.sampled_from(["store", "store", "reserve", "look", "load", "commit", "wait", "wait", "clear"])
    one = st.tuples(kinds, some_keys, st.sampled_from([None, 1.0, 1.0, 2.0]))
    return draw(st.lists(one, max_size=40))


class Driven:
    """A tier, what it is writing, and what it has answered."""

    def __init__(self) -> None:
        self.tier = HostTier(NUM_SLOTS, EVICTION_POLICIES.resolve("lru")(NUM_SLOTS), TouchFilter(0, 1))
        self.writes: list[dict[OffloadKey, SlotId]] = []
        self.loads: list[list[SlotId]] = []

    def answer(self, kind: str, keys: list[OffloadKey], ttl_s: float | None, now_s: float) -> object:
        tier = self.tier
        if kind in ("store", "reserve"):
            prepared = (tier.prepare_store if kind == "store" else tier.reserve)(keys, keys)
            tier.retain(keys, prepared.slots, Stay(ttl_s=ttl_s), now_s)
            self.writes.append(prepared.slots)
            return list(prepared.slots), prepared.evicted, prepared.rejected
        if kind == "commit" and self.writes:
            return tier.commit_store(self.writes.pop(0))
        if kind == "load" and len(self.loads) < 2:
            slots = tier.prepare_load(keys)
            self.loads.append([slot for slot in slots if slot is not None])
            return [slot is None for slot in slots]
        if kind == "load":
            tier.complete_load(self.loads.pop(0))
        elif kind == "look":
            return (
                tier.lookup(keys[0]),
                tier.lookup_prefix(keys),
                tier.lookup_all(keys),
                tier.has_none_of(keys),
            )
        elif kind == "clear":
            tier.clear()
        return None


@settings(max_examples=150, deadline=None)
@given(events())
def test_that_few_chunks_expire_in_one_call_changes_no_answer(found: list) -> None:
    """One tier forgets all at once, the other one chunk a call: whoever asks sees no difference, and all are counted."""
    eager, slow = Driven(), Driven()
    now_s, expired = 0.0, [0, 0]
    with pytest.MonkeyPatch.context() as patch:
        for kind, keys, seconds in [*found, *[("wait", [], 9.0)] * 2 * NUM_SLOTS]:
            if kind == "wait":
                now_s += seconds or 0.5
                for index, (side, most) in enumerate(((eager, 100), (slow, 1))):
                    patch.setattr(host_tier, "MAX_EXPIRED", most)
                    expired[index] += side.tier.pass_time(now_s)
                continue
            assert eager.answer(kind, keys, seconds, now_s) == slow.answer(kind, keys, seconds, now_s)
    # A reset forgets those that were left, and they do not count as expired.
    assert expired[1] <= expired[0] if "clear" in [kind for kind, *_ in found] else expired[1] == expired[0]
    assert [eager.tier.lookup_all(ALL_KEYS)] == [slow.tier.lookup_all(ALL_KEYS)]
    assert eager.tier.ready_count == slow.tier.ready_count
    for side in (eager, slow):
        held = [slot for slots in side.loads for slot in slots]
        side.tier.check([slot for slots in side.writes for slot in slots.values()], held)


def test_of_many_chunks_that_expire_at_one_moment_a_call_forgets_a_bounded_number() -> None:
    count = 3 * MAX_EXPIRED
    tier = HostTier(count, EVICTION_POLICIES.resolve("lru")(count), TouchFilter(0, 1))
    keys = [key(number) for number in range(count)]
    prepared = tier.prepare_store(keys)
    tier.retain(keys, prepared.slots, Stay(ttl_s=1.0), 0.0)
    tier.commit_store(prepared.slots)
    assert [tier.pass_time(1.0) for _ in range(4)] == [MAX_EXPIRED, MAX_EXPIRED, MAX_EXPIRED, 0]
