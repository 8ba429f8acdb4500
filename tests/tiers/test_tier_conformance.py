"""The memory tier, every wrapper around it, and all of them at once pass the shipped suite."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from tier_stacks import (
    BIG_BYTES,
    WRAPPERS,
    Wrap,
    checksummed,
    delayed,
    faulty,
    medium_of,
    memory,
    metered,
    retrying,
    stack,
    throttled,
)

from kvoffload.clock import ManualClock
from kvoffload.testing.tier_tests import TierTests
from kvoffload.tiers.base import Tier
from kvoffload.tiers.memory import MemoryMedium
from kvoffload.tiers.wrappers.sealing import SEAL_BYTES


class StackTests(TierTests):
    """A stack of wrappers around a memory tier with latency, on a clock that only `drain` moves."""

    wraps: Sequence[Wrap] = ()
    latency_s = 0.01
    refuses_after_jobs = 64
    overhead_bytes = 0
    patience_s = 10.0

    def open(self, medium: MemoryMedium) -> Tier:
        clock = ManualClock(1000.0)
        return stack(memory(clock, medium=medium, latency_s=self.latency_s), clock, self.wraps)

    def make(self) -> Tier:
        return self.open(MemoryMedium(BIG_BYTES))

    def make_small(self, chunks: int) -> Tier:
        return self.open(MemoryMedium(chunks * (self.payload_bytes[0] + self.overhead_bytes)))

    def reopen(self, tier: Tier) -> Tier:
        return self.open(medium_of(tier))


class TestMemory(StackTests):
    seeds = range(40)


class TestMemoryWithoutLatency(StackTests):
    latency_s = 0.0


class TestMetered(StackTests):
    wraps = (metered,)


class TestThrottled(StackTests):
    wraps = (throttled,)
    refuses_after_jobs = 40


class TestRetrying(StackTests):
    wraps = (retrying,)


class TestChecksummed(StackTests):
    wraps = (checksummed,)
    overhead_bytes = SEAL_BYTES


class TestDelayed(StackTests):
    wraps = (delayed,)


class TestFaulty(StackTests):
    wraps = (faulty,)


class TestAllWrappers(StackTests):
    wraps = (metered, throttled, retrying, checksummed, delayed, faulty)
    refuses_after_jobs = 40
    overhead_bytes = SEAL_BYTES


class TestAllWrappersTwiceInAnotherOrder(StackTests):
    wraps = (retrying, delayed, checksummed, throttled, retrying, metered, faulty, delayed, metered)
    refuses_after_jobs = 40
    overhead_bytes = SEAL_BYTES


@pytest.mark.parametrize("seed", range(6))
def test_any_order_of_wrappers_keeps_the_contract(seed: int) -> None:
    rng = random.Random(seed)
    chosen = tuple(rng.choices(list(WRAPPERS.values()), k=rng.randint(2, 6)))

    class Shuffled(StackTests):
        wraps = chosen
        seeds = (seed,)

    suite = Shuffled()
    for name in ("every_job_is_reported_exactly_once", "no_life_breaks_the_contract"):
        getattr(suite, f"test_{name}")()
