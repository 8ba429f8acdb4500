"""LRU against the shipped suite, and against a list that is sorted by hand."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.policies.base import EvictionPolicy
from kvoffload.policies.factory import EVICTION_POLICIES
from kvoffload.policies.lru import LRUPolicy
from kvoffload.testing.policy_tests import PolicyTests, key

numbers = st.integers(min_value=0, max_value=9)
actions = st.lists(
    st.tuples(
        st.sampled_from(["insert", "touch", "remove", "evict"]),
        st.lists(numbers, unique=True, max_size=5),
        numbers,
    ),
    max_size=30,
)


class TestLRU(PolicyTests):
    def make(self, capacity: int) -> EvictionPolicy:
        return LRUPolicy(capacity)


@settings(max_examples=150, deadline=None)
@given(actions)
def test_the_victim_is_always_the_key_that_was_not_used_for_the_longest_time(
    history: list[tuple[str, list[int], int]],
) -> None:
    policy = LRUPolicy(10)
    oldest_first: list[OffloadKey] = []
    for verb, chosen, count in history:
        keys = [key(number) for number in chosen]
        known = [name for name in keys if name in oldest_first]
        if verb == "insert":
            new = [name for name in keys if name not in oldest_first]
            policy.insert(new)
            oldest_first += new
        elif verb == "touch":
            policy.touch(known)
            oldest_first = [name for name in oldest_first if name not in known] + known
        elif verb == "remove":
            policy.remove(known)
            oldest_first = [name for name in oldest_first if name not in known]
        else:
            right = [name for name in oldest_first if name not in keys][:count]
            assert policy.evict(count, keys.__contains__) == right
            oldest_first = [name for name in oldest_first if name not in right]
        assert len(policy) == len(oldest_first)
    assert policy.evict(99, lambda _: False) == oldest_first


def test_the_last_of_a_batch_is_the_most_recent() -> None:
    policy = LRUPolicy(4)
    policy.insert([key(0), key(1), key(2)])
    policy.touch([key(1), key(0)])
    assert policy.evict(3, lambda _: False) == [key(2), key(1), key(0)]


def test_lru_is_what_its_name_resolves_to() -> None:
    assert EVICTION_POLICIES.resolve("lru") is LRUPolicy
