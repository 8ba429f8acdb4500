"""Ranks over every policy: the contract of a policy holds, lower ranks go first, what is kept stays."""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvoffload.policies.base import EvictionPolicy
from kvoffload.policies.factory import EVICTION_POLICIES
from kvoffload.policies.lru import LRUPolicy
from kvoffload.policies.ranked import Rank, RankedPolicy
from kvoffload.testing.policy_tests import PolicyTests, key

NAMES = EVICTION_POLICIES.names()


def nobody(_: object) -> bool:
    return False


def ranked(name: str, capacity: int = 12, max_high: int = 12) -> RankedPolicy:
    return RankedPolicy(EVICTION_POLICIES.resolve(name)(capacity), max_high)


class TestWithoutRanks(PolicyTests):
    seeds = range(5)

    def make(self, capacity: int) -> EvictionPolicy:
        return RankedPolicy(LRUPolicy(capacity), 1)


class _KeyedByNumber(RankedPolicy):
    """Every third key is of another rank, but none is kept."""

    ranks: ClassVar[tuple[Rank, ...]] = (Rank.LOW, Rank.NORMAL, Rank.HIGH)

    def insert(self, keys) -> None:
        keys = list(keys)
        for name in keys:
            self.assign(name, self.ranks[sum(name) % 3], is_known=False)
        super().insert(keys)


class TestWithRanks(PolicyTests):
    seeds = range(5)

    def make(self, capacity: int) -> EvictionPolicy:
        return _KeyedByNumber(LRUPolicy(capacity), 2)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=20, deadline=None)
@given(
    ranks=st.lists(st.sampled_from(Rank), min_size=1, max_size=10),
    known_first=st.booleans(),
    touched=st.lists(st.integers(0, 9), max_size=6),
    count=st.integers(0, 12),
)
def test_lower_ranks_go_first_and_what_is_kept_stays(
    name: str, ranks: list[Rank], known_first: bool, touched: list[int], count: int
) -> None:
    policy = ranked(name)
    keys = [key(number) for number in range(len(ranks))]
    rank_of = dict(zip(keys, ranks, strict=True))
    if known_first:
        policy.insert(keys)
    for one in keys:
        policy.assign(one, rank_of[one], is_known=known_first)
    if not known_first:
        policy.insert(keys)
    policy.touch([key(number) for number in touched if number < len(ranks)])
    assert len(policy) == len(keys)
    victims = list(policy.evict(count, nobody))
    assert len(victims) == min(count, sum(rank is not Rank.KEPT for rank in ranks))
    assert [rank_of[one] for one in victims] == sorted(rank_of[one] for one in victims)
    left = [rank_of[one] for one in keys if one not in victims and rank_of[one] is not Rank.KEPT]
    assert not victims or not left or max(rank_of[one] for one in victims) <= min(left)
    assert len(policy) == len(keys) - len(victims)
    policy.remove([one for one in keys if one not in victims])
    assert len(policy) == 0
    assert all(policy.rank_of(one) is Rank.NORMAL for one in keys)


@pytest.mark.parametrize("name", NAMES)
def test_of_too_many_high_ones_some_become_normal(name: str) -> None:
    policy = ranked(name, max_high=3)
    for number in range(8):
        policy.assign(key(number), Rank.HIGH, is_known=False)
        policy.insert([key(number)])
        high = sum(policy.rank_of(key(n)) is Rank.HIGH for n in range(number + 1))
        assert high == min(number + 1, 3)
    assert len(policy) == 8
    assert len(policy.evict(8, nobody)) == 8


def test_the_least_recently_used_of_the_high_ones_becomes_normal() -> None:
    policy = ranked("lru", max_high=2)
    for number in (0, 1):
        policy.assign(key(number), Rank.HIGH, is_known=False)
    policy.insert([key(0), key(1)])
    policy.touch([key(0)])
    policy.assign(key(2), Rank.HIGH, is_known=False)
    policy.insert([key(2)])
    assert [policy.rank_of(key(number)) for number in range(3)] == [Rank.HIGH, Rank.NORMAL, Rank.HIGH]


def test_a_key_that_does_not_come_leaves_no_rank() -> None:
    policy = ranked("lru")
    policy.assign(key(1), Rank.KEPT, is_known=False)
    policy.forget(key(1))
    policy.insert([key(1)])
    assert policy.evict(1, nobody) == [key(1)]


def test_no_policy_is_made_for_ranks_that_nobody_uses() -> None:
    policy = ranked("lru")
    policy.insert([key(1), key(2)])
    policy.assign(key(1), Rank.KEPT, is_known=True)
    policy.chain([key(1), key(2)])
    assert list(policy._parts) == [Rank.NORMAL]
