"""The retrying wrapper: FAILED keys get another try, pauses grow and are jittered, jobs are reported once and in full."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tier_stacks import job, medium_of, memory, only, rows_of

from kvoffload.clock import ManualClock
from kvoffload.errors import ConfigError
from kvoffload.testing.tier_driver import make_keys
from kvoffload.tiers.base import Outcome, TierJob, Verb
from kvoffload.tiers.memory import MemoryTier
from kvoffload.tiers.wrappers.faults import Fault, FaultConfig, PlannedFault
from kvoffload.tiers.wrappers.faulty import FaultyTier
from kvoffload.tiers.wrappers.retrying import RetryConfig, RetryingTier
from kvoffload.types import LookupResult

DONE, FAILED, MISSING = Outcome.DONE, Outcome.FAILED, Outcome.MISSING


class Recorder(MemoryTier):
    """Notes what it is asked to do, and when."""

    def submit(self, job: TierJob) -> bool:
        self.asked = [
            *getattr(self, "asked", []),
            (self._clock.now_s(), job.job_id, [e.key for e in job.entries]),
        ]
        return super().submit(job)


def failing(
    clock: ManualClock, faults: Sequence[tuple[int, int]], config: RetryConfig | None = None, seed: int = 0
) -> tuple[RetryingTier, Recorder]:
    """(submission, position) of what fails inside."""
    inner = memory(clock)
    recorder = Recorder(inner._config, clock, medium=inner.medium, pause=clock.advance)
    schedule = tuple(PlannedFault(number, place, Fault.FAIL) for number, place in faults)
    config = config or RetryConfig(max_retries=2, first_delay_s=1.0, max_delay_s=10.0, jitter=0.0)
    faulty = FaultyTier(recorder, FaultConfig(schedule=schedule))
    return RetryingTier(faulty, config, clock, random.Random(seed), clock.advance), recorder


def test_only_what_failed_is_tried_again_and_the_job_is_reported_once_in_full() -> None:
    clock = ManualClock()
    tier, inner = failing(clock, [(0, 1), (0, 2), (1, 1)])
    keys = make_keys(4)
    assert tier.submit(job(7, Verb.STORE, keys, rows_of(b"aa", b"bb", b"cc", b"dd")))
    assert tier.poll() == []
    clock.advance(0.999)
    assert tier.poll() == []
    clock.advance(0.001)
    tier.poll()
    assert tier.stats().queued_jobs == 1
    assert tier.poll() == []
    clock.advance(2.0)
    tier.poll()
    report = only(tier.poll())
    assert list(report.outcomes.items()) == [(key, DONE) for key in keys]
    assert (report.job_id, report.verb, report.moved_bytes) == (7, Verb.STORE, 8)
    # The faulty wrapper between has answered for those that failed.
    assert [(time, asked) for time, _, asked in inner.asked] == [
        (0.0, [keys[0], keys[3]]),
        (1.0, [keys[1]]),
        (3.0, [keys[2]]),
    ]
    assert len({job_id for _, job_id, _ in inner.asked}) == 3
    counters = tier.stats().counters
    assert (counters["retried_jobs"], counters["retried_chunks"]) == (2, 3)
    assert tier.poll() == []


def test_after_the_last_try_a_failure_is_a_failure() -> None:
    clock = ManualClock()
    tier, _ = failing(clock, [(number, 0) for number in range(9)])
    (key,) = make_keys(1)
    tier.submit(job(1, Verb.LOAD, [key], rows_of(b"..")))
    assert tier.drain(100.0)
    assert only(tier.poll()).outcomes == {key: FAILED}
    # 1 s and 2 s, in the steps of `drain`.
    assert 3.0 <= clock.now_s() < 6.0


@pytest.mark.parametrize("verb", [Verb.LOAD, Verb.DELETE])
def test_loads_and_deletions_are_tried_again_too(verb: Verb) -> None:
    clock = ManualClock()
    tier, _ = failing(clock, [(1, 0)])
    (key,) = make_keys(1)
    tier.submit(job(1, Verb.STORE, [key], rows_of(b"ab")))
    tier.poll()
    target = rows_of(b"..") if verb is Verb.LOAD else [memoryview(b"")]
    tier.submit(job(2, verb, [key], target))
    assert tier.poll() == []
    assert tier.drain(100.0)
    assert only(tier.poll()).outcomes == {key: DONE}
    assert verb is not Verb.LOAD or bytes(target[0]) == b"ab"
    assert (key in medium_of(tier)) == (verb is Verb.LOAD)


def test_what_did_not_fail_is_not_tried_again() -> None:
    clock = ManualClock()
    tier, inner = failing(clock, [])
    tier.submit(job(1, Verb.LOAD, make_keys(2), rows_of(b"..", b"..")))
    assert set(only(tier.poll()).outcomes.values()) == {MISSING}
    assert len(inner.asked) == 1


def test_pauses_are_shortened_at_random_and_never_longer_than_the_bound() -> None:
    config = RetryConfig(max_retries=4, first_delay_s=1.0, max_delay_s=3.0, jitter=0.5)

    def pauses(seed: int) -> list[float]:
        clock = ManualClock()
        tier, inner = failing(clock, [(number, 0) for number in range(4)], config, seed)
        tier.submit(job(1, Verb.DELETE, make_keys(2)))
        while tier.stats().queued_jobs:
            tier.poll()
            clock.advance(0.01)
        times = [time for time, _, _ in inner.asked]
        return [later - earlier for earlier, later in itertools.pairwise(times)]

    for seed in range(20):
        found = pauses(seed)
        assert found == pauses(seed)
        bounds = [(0.5, 1.0), (1.0, 2.0), (1.5, 3.0), (1.5, 3.0)]
        assert all(low <= pause <= high + 0.03 for pause, (low, high) in zip(found, bounds, strict=True)), (
            found
        )
    assert len({round(pauses(seed)[0], 2) for seed in range(20)}) > 5


def test_a_retry_that_is_refused_counts_as_a_failed_one() -> None:
    clock = ManualClock()
    inner = memory(clock)
    plan = (PlannedFault(0, 0, Fault.FAIL), PlannedFault(1, 0, Fault.REFUSE))
    config = RetryConfig(first_delay_s=1.0, jitter=0.0)
    (key,) = make_keys(1)
    for retries, outcome in ((1, FAILED), (2, DONE)):
        faulty = FaultyTier(inner, FaultConfig(schedule=plan))
        tier = RetryingTier(
            faulty, replace(config, max_retries=retries), clock, random.Random(0), clock.advance
        )
        tier.submit(job(1, Verb.STORE, [key], rows_of(b"aa")))
        assert tier.poll() == []
        clock.advance(1.0)
        first = tier.poll()
        clock.advance(2.0)
        tier.poll()
        report = only(first + tier.poll())
        assert report.outcomes == {key: outcome}


def test_jobs_that_wait_for_a_retry_are_bounded() -> None:
    clock = ManualClock()
    config = RetryConfig(first_delay_s=1.0, max_held_jobs=3)
    tier, _ = failing(clock, [(number, 0) for number in range(9)], config)
    taken = 0
    for number in range(9):
        taken += tier.submit(job(number, Verb.DELETE, make_keys(1)))
        tier.poll()
    assert taken == 3
    assert tier.stats().queued_jobs == 3


def test_a_store_that_waits_for_a_retry_does_not_come_back_after_clear() -> None:
    clock = ManualClock()
    tier, inner = failing(clock, [(0, 0), (1, 0)])
    keys = make_keys(2)
    tier.submit(job(1, Verb.STORE, keys[:1], rows_of(b"aa")))
    tier.poll()
    # One waits, the other is in flight and will fail.
    tier.submit(job(2, Verb.STORE, keys[1:], rows_of(b"bb")))
    assert tier.clear()
    assert tier.drain(100.0)
    reports = tier.poll()
    assert {report.job_id: set(report.outcomes.values()) for report in reports} == {1: {FAILED}, 2: {FAILED}}
    assert tier.lookup(keys) == [LookupResult.MISS] * 2
    assert len(inner.asked) == 2


def test_a_shutdown_ends_the_waiting() -> None:
    clock = ManualClock()
    tier, inner = failing(clock, [(0, 0)])
    tier.submit(job(1, Verb.STORE, make_keys(1), rows_of(b"aa")))
    tier.poll()
    tier.shutdown()
    assert set(only(tier.poll()).outcomes.values()) == {FAILED}
    assert len(inner.asked) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"max_retries": -1},
        {"max_retries": 101},
        {"first_delay_s": 0.0},
        {"max_delay_s": 0.01},
        {"jitter": 1.5},
    ],
)
def test_values_out_of_range_are_an_error(options: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        RetryConfig(**options)
