"""Properties of the host tier that users rely on, one by one. (The state machine beside this has the rest.)"""

from __future__ import annotations

import pytest

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.manager.host_tier import HostTier, PreparedStore
from kvoffload.policies.admission import TouchFilter
from kvoffload.policies.lru import LRUPolicy
from kvoffload.testing.policy_tests import key
from kvoffload.types import SlotId


def make_tier(num_slots: int = 4, threshold: int = 0) -> HostTier:
    return HostTier(num_slots, LRUPolicy(num_slots), TouchFilter(threshold, 100))


def keys(*numbers: int) -> list[OffloadKey]:
    return [key(number) for number in numbers]


def put(tier: HostTier, *numbers: int) -> PreparedStore:
    prepared = tier.prepare_store(keys(*numbers))
    tier.commit_store(prepared.stored)
    return prepared


def test_neighbours_in_a_prompt_get_neighbouring_slots_while_the_tier_is_young() -> None:
    prepared = put(make_tier(8), 3, 1, 4, 2)
    assert [slot for _, slot in prepared.stored] == [0, 1, 2, 3]


def test_partial_acceptance_keeps_the_head_of_the_offer() -> None:
    prepared = put(make_tier(2), 1, 2, 3, 4)
    assert [name for name, _ in prepared.stored] == keys(1, 2)
    assert prepared.rejected == 2


def test_the_head_of_a_prompt_is_not_evicted_for_its_end() -> None:
    tier = make_tier(3)
    put(tier, 1, 2, 3)
    prepared = tier.prepare_store(keys(4, 5), protected=set(keys(1, 2, 3, 4, 5)))
    assert (prepared.stored, prepared.evicted, prepared.rejected) == ((), (), 2)
    assert tier.lookup_prefix(keys(1, 2, 3)) == (3, False)


def test_the_deepest_chunk_of_a_prompt_is_evicted_first() -> None:
    tier = make_tier(3)
    put(tier, 1, 2, 3)
    assert put(tier, 9).evicted == (key(3),)
    assert put(tier, 8).evicted == (key(2),)


def test_an_offer_counts_what_is_there_as_used() -> None:
    tier = make_tier(4)
    put(tier, 1, 2)
    put(tier, 3, 4)
    put(tier, 1, 2)
    assert put(tier, 9).evicted == (key(4),)


def test_a_load_counts_as_use_and_protects() -> None:
    tier = make_tier(2)
    put(tier, 1)
    put(tier, 2)
    slots = tier.prepare_load(keys(1))
    assert put(tier, 8, 9).evicted == (key(2),)
    tier.complete_load([slot for slot in slots if slot is not None])
    assert put(tier, 7).evicted == (key(1),)


def test_two_loads_of_one_chunk_need_two_ends() -> None:
    tier = make_tier(1)
    ((_, slot),) = put(tier, 1).stored
    assert tier.prepare_load(keys(1)) == tier.prepare_load(keys(1)) == [slot]
    tier.complete_load([slot])
    assert put(tier, 2).stored == ()
    tier.complete_load([slot])
    assert [name for name, _ in put(tier, 2).stored] == keys(2)


def test_a_slot_is_unpinned_as_often_as_it_was_pinned_and_no_more() -> None:
    tier = make_tier()
    put(tier, 1)
    with pytest.raises(KeyError):
        tier.complete_load([SlotId(0)])
    tier.hold(keys(1))
    tier.release([SlotId(0)])
    with pytest.raises(KeyError):
        tier.release([SlotId(0)])


def test_a_held_chunk_that_nobody_loads_keeps_nobody_waiting() -> None:
    tier = make_tier()
    put(tier, 1)
    tier.hold(keys(1))
    assert not tier.any_loading(keys(1))
    tier.prepare_load(keys(1))
    assert tier.any_loading(keys(0, 1))


def test_a_pinned_chunk_that_is_dropped_keeps_its_slot_until_its_readers_are_done() -> None:
    tier = make_tier(1)
    ((_, slot),) = put(tier, 1).stored
    tier.prepare_load(keys(1))
    tier.drop(keys(1))
    tier.check([], [slot])
    assert put(tier, 1).rejected == 1
    tier.complete_load([slot])
    assert [name for name, _ in put(tier, 1).stored] == keys(1)


def test_a_clear_with_stores_and_loads_in_flight_brings_nothing_back() -> None:
    tier = make_tier(3)
    ((_, loading),) = put(tier, 1).stored
    tier.prepare_load(keys(1))
    late = tier.prepare_store(keys(2)).stored
    assert tier.clear() == 1
    again = tier.prepare_store(keys(2)).stored
    assert not {slot for _, slot in again} & {loading, late[0][1]}
    assert tier.commit_store(late) == []
    assert tier.commit_store(again) == keys(2)
    tier.complete_load([loading])
    tier.check([], [])
    assert tier.lookup_prefix(keys(1)) == (0, False)


def test_admission_is_asked_about_new_chunks_only() -> None:
    tier = make_tier(4, threshold=2)
    assert put(tier, 1).filtered == 1
    assert put(tier, 1).filtered == 0
    assert put(tier, 1).stored == ()
    tier.drop(keys(1))
    assert put(tier, 1).filtered == 1


def test_chunks_from_a_lower_tier_need_no_admission() -> None:
    tier = make_tier(4, threshold=2)
    assert [name for name, _ in tier.reserve(keys(1, 2)).stored] == keys(1, 2)


@pytest.mark.parametrize("broken", ["_free", "_ready", "_writing", "_pins", "_orphans", "_loading"])
def test_check_sees_a_slot_in_two_states_or_in_none(broken: str) -> None:
    tier = make_tier(4)
    put(tier, 1)
    prepared = tier.prepare_store(keys(2))
    slots = tier.prepare_load(keys(1))
    tier.check([slot for _, slot in prepared.stored], slots)  # type: ignore[misc]
    state = getattr(tier, broken)
    if isinstance(state, list):
        state.pop()
    elif isinstance(state, set):
        state.add(3)
    elif broken in {"_pins", "_loading"}:
        state[0] += 1
    else:
        state[key(9)] = 3
    with pytest.raises(AssertionError):
        tier.check([slot for _, slot in prepared.stored], slots)  # type: ignore[misc]


def test_the_policy_hears_of_prompts_and_of_what_is_to_come_before_room_is_made() -> None:
    class Listening(LRUPolicy):
        def __init__(self) -> None:
            super().__init__(2)
            self.heard: list[object] = []

        def chain(self, keys):
            self.heard.append(("chain", list(keys)))

        def expect(self, keys):
            self.heard.append(("expect", list(keys)))

        def evict(self, count, is_kept):
            self.heard.append(("evict", count))
            return super().evict(count, is_kept)

    policy = Listening()
    tier = HostTier(2, policy, TouchFilter(0, 100))
    put(tier, 1, 2)
    policy.heard.clear()
    put(tier, 1, 3)
    offer = ("chain", keys(1, 3))
    assert policy.heard == [offer, ("expect", keys(3)), ("evict", 1)]
    policy.heard.clear()
    assert len(tier.reserve(keys(4, 5)).stored) == 2
    assert policy.heard == [("chain", keys(4, 5)), ("expect", keys(4, 5)), ("evict", 2)]
