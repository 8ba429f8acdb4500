"""Bounds that refuse and never wait; delays in virtual time; a silent tier (field cases e and k)."""

from __future__ import annotations

import random

import pytest
from tier_stacks import job, memory, only, rows_of

from kvoffload.clock import ManualClock
from kvoffload.errors import ConfigError
from kvoffload.testing.tier_driver import make_keys
from kvoffload.tiers.base import Outcome, Verb
from kvoffload.tiers.wrappers.delayed import DelayConfig, DelayedTier, Distribution
from kvoffload.tiers.wrappers.throttled import ThrottleConfig, ThrottledTier
from kvoffload.types import LookupResult


def store(job_id: int, size_bytes: int = 10):
    return job(job_id, Verb.STORE, make_keys(1, first=job_id), rows_of(bytes(size_bytes)))


# -- throttled --------------------------------------------------------------------------------------------------


def test_jobs_and_bytes_in_flight_are_bounded_and_polling_makes_room() -> None:
    clock = ManualClock()
    tier = ThrottledTier(memory(clock), ThrottleConfig(max_jobs=3, max_bytes=50), clock)
    assert [tier.submit(store(n, 20)) for n in range(4)] == [True, True, False, False]
    assert tier.submit(job(8, Verb.DELETE, make_keys(1)))
    assert not tier.submit(job(9, Verb.DELETE, make_keys(1)))
    assert tier.stats().counters["throttled_jobs"] == 3
    assert len(tier.poll()) == 3
    assert [tier.submit(store(n, 20)) for n in range(10, 13)] == [True, True, False]


def test_one_job_alone_is_taken_whatever_its_size() -> None:
    clock = ManualClock()
    config = ThrottleConfig(max_bytes=50, bytes_per_s=10.0, burst_bytes=40)
    tier = ThrottledTier(memory(clock), config, clock)
    assert tier.submit(store(1, 100))
    tier.poll()
    # It is paid off at the rate: 60 bytes are owed, and a full bucket is needed for the next large one.
    clock.advance(9.9)
    assert not tier.submit(store(2, 100))
    clock.advance(0.1)
    assert tier.submit(store(3, 100))


def test_the_bandwidth_is_bounded_in_the_long_run_and_never_while_there_is_none() -> None:
    clock = ManualClock()
    config = ThrottleConfig(max_jobs=1000, bytes_per_s=100.0, burst_bytes=50)
    tier = ThrottledTier(memory(clock, max_pending_jobs=1000), config, clock)
    taken = 0
    for number in range(1000):
        taken += 10 * tier.submit(store(number))
        tier.poll()
        clock.advance(0.01)
    assert 1000 <= taken <= 1060
    free = ThrottledTier(
        memory(clock, max_pending_jobs=1000), ThrottleConfig(burst_bytes=1, max_jobs=1000), clock
    )
    assert all(free.submit(store(number)) for number in range(500))


def test_what_the_tier_inside_refuses_costs_nothing() -> None:
    clock = ManualClock()
    tier = ThrottledTier(
        memory(clock, max_pending_jobs=1), ThrottleConfig(bytes_per_s=1.0, burst_bytes=30), clock
    )
    assert tier.submit(store(1))
    assert not tier.submit(store(2, 20))
    tier.poll()
    assert tier.submit(store(2, 20))
    tier.poll()
    assert not tier.submit(store(3, 1))


def test_a_slow_tier_bounds_what_is_in_flight_and_recovers() -> None:
    clock = ManualClock()
    tier = ThrottledTier(memory(clock, latency_s=2.0), ThrottleConfig(max_jobs=8, max_bytes=64), clock)
    taken = refused = ended = 0
    for number in range(200):
        if tier.submit(store(number, 16)):
            taken += 1
        else:
            refused += 1
        assert tier.stats().queued_bytes <= 64
        clock.advance(0.1)
        ended += len(tier.poll())
    assert refused > 100
    assert tier.stats().counters["throttled_jobs"] == refused
    assert tier.drain(10.0)
    assert ended + len(tier.poll()) == taken
    assert tier.stats().queued_jobs == 0
    assert tier.submit(store(999, 16))


@pytest.mark.parametrize("name", ["max_jobs", "max_bytes", "bytes_per_s", "burst_bytes"])
def test_bounds_out_of_range_are_an_error(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        ThrottleConfig(**{name: 0})


# -- delayed ----------------------------------------------------------------------------------------------------


def delayed(clock: ManualClock, seed: int = 0, **config) -> DelayedTier:
    return DelayedTier(memory(clock), DelayConfig(**config), clock, random.Random(seed), clock.advance)


def test_a_report_comes_at_its_time_and_not_before() -> None:
    clock = ManualClock()
    tier = delayed(clock, mean_s=1.0, bytes_per_s=10.0)
    assert tier.submit(store(1, 20))
    clock.advance(2.999)
    assert tier.poll() == []
    assert tier.stats().queued_jobs == 1
    clock.advance(0.001)
    report = only(tier.poll())
    assert report.busy_s == pytest.approx(3.0)
    assert tier.stats().queued_jobs == 0


def test_a_short_job_overtakes_a_long_one() -> None:
    clock = ManualClock()
    tier = delayed(clock, bytes_per_s=10.0)
    tier.submit(store(1, 50))
    tier.submit(store(2, 10))
    clock.advance(1.0)
    assert only(tier.poll()).job_id == 2
    clock.advance(4.0)
    assert only(tier.poll()).job_id == 1


@pytest.mark.parametrize("distribution", Distribution)
def test_delays_have_their_mean_and_repeat_with_their_seed(distribution: Distribution) -> None:
    def run(seed: int) -> list[float]:
        clock = ManualClock()
        tier = delayed(clock, seed, mean_s=2.0, distribution=distribution)
        busy = []
        for number in range(400):
            tier.submit(store(number))
            clock.advance(1000.0)
            busy.append(only(tier.poll()).busy_s)
        return busy

    first = run(7)
    assert first == run(7)
    assert sum(first) / len(first) == pytest.approx(2.0, rel=0.15)
    if distribution is Distribution.FIXED:
        assert set(first) == {2.0}
    else:
        assert first != run(8)


def test_a_stalled_tier_says_and_moves_nothing_until_it_is_released() -> None:
    clock = ManualClock()
    tier = delayed(clock)
    (key,) = make_keys(1)
    tier.stall()
    assert tier.submit(job(1, Verb.STORE, [key], rows_of(b"data")))
    for _ in range(5):
        clock.advance(1e6)
        assert tier.poll() == []
    assert not tier.drain(3.0)
    assert tier.lookup([key]) == [LookupResult.MISS]
    assert tier.stats().queued_jobs == 1
    tier.release()
    assert only(tier.poll()).outcomes == {key: Outcome.DONE}
    assert tier.lookup([key]) == [LookupResult.HIT]


def test_a_stall_is_bounded_and_outlives_the_shutdown() -> None:
    clock = ManualClock()
    tier = delayed(clock, max_held_jobs=5)
    tier.stall()
    assert sum(tier.submit(store(number)) for number in range(9)) == 5
    tier.shutdown()
    assert tier.poll() == []
    tier.release()
    assert {report.job_id for report in tier.poll()} == set(range(5))


def test_a_shutdown_ends_delays() -> None:
    clock = ManualClock()
    tier = delayed(clock, mean_s=1e9)
    tier.submit(store(1))
    assert tier.poll() == []
    tier.shutdown()
    # The tier inside had done it; only its report was held back.
    assert only(tier.poll()).outcomes == {make_keys(1, first=1)[0]: Outcome.DONE}


def test_a_long_wait_has_few_steps_and_a_short_one_is_noticed_soon() -> None:
    for mean_s, timeout_s in ((1e9, 1e5), (0.01, 1e5)):
        clock, steps = ManualClock(), []

        def pause(step_s: float, clock: ManualClock = clock, steps: list[float] = steps) -> None:
            steps.append(step_s)
            clock.advance(step_s)

        tier = DelayedTier(memory(clock), DelayConfig(mean_s=mean_s), clock, random.Random(0), pause)
        tier.submit(store(1))
        assert tier.drain(timeout_s) == (mean_s < timeout_s)
        assert len(steps) < 200
        assert clock.now_s() <= max(2 * mean_s, 1.0001 * timeout_s * (mean_s > timeout_s))


@pytest.mark.parametrize("options", [{"mean_s": -1.0}, {"mean_s": float("inf")}, {"bytes_per_s": 0.0}])
def test_delays_out_of_range_are_an_error(options: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        DelayConfig(**options)
