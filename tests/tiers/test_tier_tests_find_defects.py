"""The shipped suite is worth something: each of a zoo of broken tiers fails, at the test that is meant for it."""

from __future__ import annotations

import inspect
from unittest import SkipTest

import broken_tiers
import pytest
from broken_tiers import FOUND_BY, Broken
from tier_stacks import BIG_BYTES

from kvoffload.clock import ManualClock
from kvoffload.testing.tier_tests import TierTests
from kvoffload.tiers.base import Tier
from kvoffload.tiers.memory import MemoryMedium

ALL_TESTS = [name for name in vars(TierTests) if name.startswith("test_")]


def suite_of(kind: type[Broken]) -> TierTests:
    class Suite(TierTests):
        refuses_after_jobs = 64
        patience_s = 0.05

        def open(self, medium: MemoryMedium) -> Tier:
            return kind(medium, ManualClock())

        def make(self) -> Tier:
            return self.open(MemoryMedium(BIG_BYTES))

        def make_small(self, chunks: int) -> Tier:
            return self.open(MemoryMedium(chunks * self.payload_bytes[0]))

        def reopen(self, tier: Tier) -> Tier:
            assert isinstance(tier, Broken)
            return self.open(tier.medium)

    return Suite()


@pytest.mark.parametrize("kind", FOUND_BY, ids=lambda kind: kind.__name__)
def test_a_defect_is_found(kind: type[Broken]) -> None:
    with pytest.raises(AssertionError) as caught:
        getattr(suite_of(kind), f"test_{FOUND_BY[kind]}")()
    assert str(caught.value), "says nothing about what is wrong"


@pytest.mark.parametrize("name", ALL_TESTS)
def test_the_tier_that_the_broken_ones_derive_from_is_sound(name: str) -> None:
    suite = suite_of(Broken)
    suite.patience_s = 10.0
    getattr(suite, name)()


def test_every_broken_tier_is_tried() -> None:
    kinds = {
        kind
        for _, kind in inspect.getmembers(broken_tiers, inspect.isclass)
        if issubclass(kind, Broken) and kind is not Broken
    }
    assert kinds == set(FOUND_BY)


def test_a_failing_life_says_how_it_is_replayed() -> None:
    suite = suite_of(broken_tiers.FailsOnceInAWhile)
    suite.seeds = (4,)
    with pytest.raises(AssertionError, match=r"seed 4 \(replay with `seeds = \(4,\)`\)"):
        suite.test_no_life_breaks_the_contract()


def test_what_does_not_apply_is_skipped_and_not_passed() -> None:
    class Volatile(TierTests):
        evicts_by_recency = False

        def make(self) -> Tier:
            return Broken(MemoryMedium(BIG_BYTES), ManualClock())

    suite = Volatile()
    for test in (
        suite.test_a_restart_keeps_the_content,
        suite.test_two_instances_see_each_others_chunks,
        suite.test_the_capacity_is_never_exceeded,
        suite.test_use_protects_from_eviction,
    ):
        with pytest.raises(SkipTest):
            test()
