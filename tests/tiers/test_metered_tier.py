"""The metered wrapper: counts, queue depth, and estimates that follow what was measured."""

from __future__ import annotations

import random

import pytest
from tier_stacks import delayed, job, memory, metered, rows_of

from kvoffload.clock import ManualClock
from kvoffload.errors import ConfigError
from kvoffload.testing.tier_driver import make_keys
from kvoffload.tiers.base import Verb
from kvoffload.tiers.wrappers.delayed import DelayConfig, DelayedTier
from kvoffload.tiers.wrappers.metered import MeterConfig, MeteredTier
from kvoffload.tiers.wrappers.speed import SpeedMeter


def test_jobs_chunks_bytes_refusals_and_lookups_are_counted_by_verb_and_outcome() -> None:
    clock = ManualClock()
    tier = metered(memory(clock, latency_s=0.25, max_pending_jobs=2), clock)
    keys = make_keys(3)
    assert tier.submit(job(1, Verb.STORE, keys[:2], rows_of(b"12345", b"12345")))
    assert tier.submit(job(2, Verb.LOAD, keys, rows_of(b".....", b".....", b".....")))
    assert not tier.submit(job(3, Verb.DELETE, keys))
    clock.advance(1.0)
    assert len(tier.poll()) == 2
    tier.lookup(keys)
    counters = tier.stats().counters
    expected = {
        "store_jobs": 1,
        "store_done_chunks": 2,
        "store_moved_bytes": 10,
        "store_busy_us": 250_000,
        "store_elapsed_us": 1_000_000,
        "load_jobs": 1,
        "load_done_chunks": 2,
        "load_missing_chunks": 1,
        "load_moved_bytes": 10,
        "delete_refused_jobs": 1,
        "lookup_hit_keys": 2,
        "lookup_miss_keys": 1,
        "evicted": 0,
    }
    assert {name: counters.get(name) for name in expected} == expected


def test_the_depth_of_the_queue_is_what_was_taken_and_not_polled() -> None:
    clock = ManualClock()
    tier = metered(memory(clock), clock)
    for number, key in enumerate(make_keys(3)):
        tier.submit(job(number, Verb.STORE, [key], rows_of(b"1234")))
    assert tier.queued(Verb.STORE) == (3, 12)
    assert tier.queued(Verb.LOAD) == (0, 0)
    tier.poll()
    assert tier.queued(Verb.STORE) == (0, 0)


def test_latency_and_bandwidth_are_learnt_from_jobs_of_several_sizes() -> None:
    clock = ManualClock()
    slow = DelayedTier(
        memory(clock), DelayConfig(mean_s=0.5, bytes_per_s=1000.0), clock, random.Random(1), clock.advance
    )
    tier = MeteredTier(slow, MeterConfig(), clock)
    assert tier.estimate(Verb.STORE, 100) is None
    for number, key in enumerate(make_keys(12)):
        assert tier.submit(job(number, Verb.STORE, [key], rows_of(bytes(100 + 50 * (number % 4)))))
        assert tier.drain(10.0)
        tier.poll()
    latency_s, bytes_per_s = tier.speeds[Verb.STORE].line or (0.0, 0.0)
    assert (latency_s, bytes_per_s) == pytest.approx((0.5, 1000.0))
    assert tier.estimate(Verb.STORE, 2000) == pytest.approx(2.5)
    assert tier.estimate(Verb.LOAD, 2000) is None
    # What is queued comes first.
    (key,) = make_keys(1, first=99)
    tier.submit(job(99, Verb.STORE, [key], rows_of(bytes(3000))))
    assert tier.estimate(Verb.STORE, 2000) == pytest.approx(5.5)


def test_with_one_size_only_small_jobs_take_as_long_and_large_ones_proportionally() -> None:
    meter = SpeedMeter(0.1)
    for _ in range(20):
        meter.add(1000, 2.0)
    assert meter.line is None
    assert meter.seconds_for(10) == pytest.approx(2.0)
    assert meter.seconds_for(3000) == pytest.approx(6.0)


@pytest.mark.parametrize("seed", range(5))
def test_estimates_follow_a_change_of_speed(seed: int) -> None:
    rng, meter = random.Random(seed), SpeedMeter(0.1)
    for bytes_per_s in (1e6, 1e5):
        for _ in range(100):
            size = rng.randint(10_000, 500_000)
            meter.add(size, (0.01 + size / bytes_per_s) * rng.uniform(0.9, 1.1))
        assert meter.seconds_for(300_000) == pytest.approx(0.01 + 300_000 / bytes_per_s, rel=0.15)


@pytest.mark.parametrize(
    "points", [[(100, 5.0), (1000, 1.0)], [(100, 0.001), (1000, 1.0)], [(1, 1e-9), (2**50, 1e6)]]
)
def test_estimates_are_never_negative_and_grow_with_the_size(points: list[tuple[int, float]]) -> None:
    meter = SpeedMeter(0.3)
    for size, seconds in points * 3:
        meter.add(size, seconds)
    estimates = [meter.seconds_for(size) for size in (1, 50, 500, 5000, 2**40)]
    assert all(value is not None and value > 0 for value in estimates)
    assert estimates == sorted(estimates, key=float)


def test_jobs_that_moved_nothing_or_took_no_time_say_nothing() -> None:
    meter = SpeedMeter(0.1)
    meter.add(0, 1.0)
    meter.add(10, 0.0)
    assert meter.seconds_for(10) is None


def test_delays_count_as_time_that_the_tier_was_busy() -> None:
    clock = ManualClock()
    tier = metered(delayed(memory(clock), clock), clock)
    (key,) = make_keys(1)
    tier.submit(job(1, Verb.STORE, [key], rows_of(b"1234")))
    assert tier.drain(100.0)
    (report,) = tier.poll()
    assert report.busy_s > 0
    assert tier.estimate(Verb.STORE, 4) == pytest.approx(report.busy_s)


@pytest.mark.parametrize("weight", [0.0, -1.0, 1.5, float("nan")])
def test_a_weight_out_of_range_is_an_error(weight: float) -> None:
    with pytest.raises(ConfigError, match="weight"):
        MeterConfig(weight=weight)
