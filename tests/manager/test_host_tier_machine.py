"""The host tier against a model of dictionaries and one sorted list, under any sequence of events."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.manager.host_tier import HostTier
from kvoffload.policies.admission import TouchFilter
from kvoffload.policies.lru import LRUPolicy
from kvoffload.testing.policy_tests import key
from kvoffload.types import LookupResult, SlotId

NUM_SLOTS = 4
ALL_KEYS = [key(number) for number in range(7)]
some_keys = st.lists(st.sampled_from(ALL_KEYS), unique=True, max_size=6)

Write = tuple[OffloadKey, SlotId]


class HostTierMachine(RuleBasedStateMachine):
    """Every rule does the same to the tier and to the model and compares the answers."""

    writes = Bundle("writes")
    loads = Bundle("loads")
    holds = Bundle("holds")

    def __init__(self) -> None:
        super().__init__()
        self.tier = HostTier(NUM_SLOTS, LRUPolicy(NUM_SLOTS), TouchFilter(0, 1))
        self.oldest_first: list[OffloadKey] = []
        self.slot_of: dict[OffloadKey, int] = {}
        self.writing: dict[OffloadKey, int] = {}
        self.written_slots: list[int] = []
        self.held: Counter[int] = Counter()
        self.loading: Counter[int] = Counter()

    # -- the model -----------------------------------------------------------------------------------------------

    def use(self, keys: list[OffloadKey]) -> None:
        for name in reversed(keys):
            if name in self.slot_of:
                self.oldest_first.remove(name)
                self.oldest_first.append(name)

    def free_slots(self) -> int:
        return NUM_SLOTS - len({*self.slot_of.values(), *self.written_slots, *self.held})

    def in_use(self) -> set[int]:
        return {*self.slot_of.values(), *self.written_slots, *(slot for slot in self.held if self.held[slot])}

    def forget(self, name: OffloadKey) -> None:
        del self.slot_of[name]
        self.oldest_first.remove(name)

    # -- stores --------------------------------------------------------------------------------------------------

    @rule(target=writes, keys=some_keys, protected=some_keys, from_below=st.booleans())
    def offer(self, keys: list[OffloadKey], protected: list[OffloadKey], from_below: bool):
        new = [name for name in keys if name not in self.slot_of and name not in self.writing]
        if len(new) < len(keys) and not from_below:
            self.use(keys)
        self.held = +self.held
        missing = max(0, len(new) - self.free_slots())
        victims = [
            name for name in self.oldest_first if not self.held[self.slot_of[name]] and name not in protected
        ][:missing]
        for name in victims:
            self.forget(name)
        room, before = self.free_slots(), self.in_use()
        verb = self.tier.reserve if from_below else self.tier.prepare_store
        prepared = verb(keys, protected=set(protected))
        assert list(prepared.evicted) == victims
        assert prepared.filtered == 0
        assert [name for name, _ in prepared.stored] == new[:room]
        assert prepared.rejected == len(new) - len(new[:room])
        slots = [slot for _, slot in prepared.stored]
        assert len(set(slots)) == len(slots)
        assert not set(slots) & before, "a slot in use was given away"
        self.writing.update(prepared.stored)
        self.written_slots += slots
        return multiple(*prepared.stored)

    @rule(write=consumes(writes))
    def commit(self, write: Write) -> None:
        name, slot = write
        published = self.writing.get(name) == slot
        assert self.tier.commit_store([write]) == ([name] if published else [])
        self.written_slots.remove(slot)
        if published:
            del self.writing[name]
            self.slot_of[name] = slot
            self.oldest_first.append(name)

    @rule(write=consumes(writes))
    def abort(self, write: Write) -> None:
        name, slot = write
        self.tier.abort_store([write])
        self.written_slots.remove(slot)
        if self.writing.get(name) == slot:
            del self.writing[name]

    @rule(write=writes)
    def give_up(self, write: Write) -> None:
        name, slot = write
        self.tier.forget_write(name, slot)
        if self.writing.get(name) == slot:
            del self.writing[name]

    # -- readers -------------------------------------------------------------------------------------------------

    @rule(target=loads, keys=some_keys)
    def load(self, keys: list[OffloadKey]) -> list[int]:
        slots = self.tier.prepare_load(keys)
        assert slots == [self.slot_of.get(name) for name in keys]
        self.use(keys)
        found = [slot for slot in slots if slot is not None]
        self.held.update(found)
        self.loading.update(found)
        return found

    @rule(slots=consumes(loads))
    def end_load(self, slots: list[SlotId]) -> None:
        self.tier.complete_load(slots)
        self.held.subtract(slots)
        self.loading.subtract(slots)

    @rule(target=holds, keys=some_keys)
    def hold(self, keys: list[OffloadKey]) -> list[int]:
        slots = self.tier.hold(keys)
        assert slots == [self.slot_of.get(name) for name in keys]
        found = [slot for slot in slots if slot is not None]
        self.held.update(found)
        return found

    @rule(slots=consumes(holds))
    def release(self, slots: list[SlotId]) -> None:
        self.tier.release(slots)
        self.held.subtract(slots)

    @rule(keys=some_keys)
    def touch(self, keys: list[OffloadKey]) -> None:
        self.tier.touch(keys)
        self.use(keys)

    # -- removal -------------------------------------------------------------------------------------------------

    @rule(keys=some_keys)
    def drop(self, keys: list[OffloadKey]) -> None:
        there = [name for name in keys if name in self.slot_of]
        assert self.tier.drop(keys) == len(there)
        for name in there:
            self.forget(name)

    @rule()
    def clear(self) -> None:
        assert self.tier.clear() == len(self.slot_of)
        self.slot_of.clear()
        self.writing.clear()
        self.oldest_first.clear()

    # -- what must always hold -----------------------------------------------------------------------------------

    @invariant()
    def slots_and_pins_are_as_in_the_model(self) -> None:
        self.held = +self.held
        self.tier.check(self.written_slots, list(self.held.elements()))
        assert self.tier.ready_count == len(self.slot_of)
        assert self.tier.pinned_count == len(self.held)

    @invariant()
    def queries_answer_as_the_model_and_change_nothing(self) -> None:
        before = repr(vars(self.tier))
        for name in ALL_KEYS:
            expected = LookupResult.MISS
            if name in self.writing:
                expected = LookupResult.HIT_PENDING
            if name in self.slot_of:
                expected = LookupResult.HIT
            assert self.tier.lookup(name) is expected
            assert self.tier.any_loading([name]) == (self.loading[self.slot_of.get(name, -1)] > 0)
        for first in range(len(ALL_KEYS)):
            keys = ALL_KEYS[first:]
            reach = next((i for i, name in enumerate(keys) if name not in self.slot_of), len(keys))
            pending = reach < len(keys) and keys[reach] in self.writing
            assert self.tier.lookup_prefix(keys) == (reach, pending)
        assert repr(vars(self.tier)) == before

    @invariant()
    def eviction_order_is_the_order_of_use(self) -> None:
        assert list(self.tier._policy.normal._order) == self.oldest_first  # type: ignore[attr-defined]


TestHostTier = HostTierMachine.TestCase
TestHostTier.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
