"""The faulty wrapper: every kind of fault, where it was ordered, as often as it was ordered, and again from its record."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tier_stacks import job, medium_of, memory, only, rows_of

from kvoffload.clock import ManualClock
from kvoffload.errors import ConfigError
from kvoffload.testing.tier_driver import make_keys
from kvoffload.tiers.base import Outcome, Verb
from kvoffload.tiers.wrappers.faults import POSSIBLE, Fault, FaultConfig, PlannedFault
from kvoffload.tiers.wrappers.faulty import FaultyTier
from kvoffload.types import LookupResult

DONE, FAILED, MISSING = Outcome.DONE, Outcome.FAILED, Outcome.MISSING
CORRUPT, REJECTED = Outcome.CORRUPT, Outcome.REJECTED
KEYS = make_keys(3)


def faulty(*schedule: PlannedFault, **config: Any) -> FaultyTier:
    inner = memory(ManualClock())
    return FaultyTier(inner, FaultConfig(schedule=schedule, **config), inner.medium)


def store(tier: FaultyTier, job_id: int = 1) -> list[Outcome]:
    assert tier.submit(job(job_id, Verb.STORE, KEYS, rows_of(b"aaaa", b"bbbb", b"cccc")))
    report = only(tier.poll())
    return [report.outcomes[key] for key in KEYS]


def load(tier: FaultyTier, job_id: int = 2) -> tuple[list[Outcome], list[bytes]]:
    target = rows_of(b"....", b"....", b"....")
    assert tier.submit(job(job_id, Verb.LOAD, KEYS, target))
    report = only(tier.poll())
    return [report.outcomes[key] for key in KEYS], [bytes(row) for row in target]


def test_without_faults_nothing_is_different() -> None:
    tier = faulty()
    assert store(tier) == [DONE] * 3
    assert load(tier) == ([DONE] * 3, [b"aaaa", b"bbbb", b"cccc"])
    assert tier.plan.history == []


@pytest.mark.parametrize(("fault", "outcome"), [(Fault.FAIL, FAILED), (Fault.REJECT, REJECTED)])
def test_a_store_can_be_answered_without_the_tier_inside(fault: Fault, outcome: Outcome) -> None:
    tier = faulty(PlannedFault(0, 1, fault))
    assert store(tier) == [DONE, outcome, DONE]
    assert load(tier)[0] == [DONE, MISSING, DONE]


@pytest.mark.parametrize(("fault", "outcome"), [(Fault.FAIL, FAILED), (Fault.MISS, MISSING)])
def test_a_load_can_be_answered_without_the_tier_inside(fault: Fault, outcome: Outcome) -> None:
    tier = faulty(PlannedFault(1, 0, fault))
    store(tier)
    assert load(tier) == ([outcome, DONE, DONE], [b"....", b"bbbb", b"cccc"])
    assert load(tier, 3)[0] == [DONE] * 3


def test_a_deletion_can_fail() -> None:
    tier = faulty(PlannedFault(1, 2, Fault.FAIL))
    store(tier)
    assert tier.submit(job(2, Verb.DELETE, KEYS))
    assert list(only(tier.poll()).outcomes.values()) == [DONE, DONE, FAILED]
    assert tier.lookup(KEYS) == [LookupResult.MISS] * 2 + [LookupResult.HIT]


def test_a_job_of_which_nothing_is_left_is_reported_like_any_other() -> None:
    tier = faulty(*[PlannedFault(0, place, Fault.FAIL) for place in range(3)])
    assert store(tier) == [FAILED] * 3


def test_a_refused_job_is_never_reported_and_counts_as_a_submission() -> None:
    tier = faulty(PlannedFault(0, 0, Fault.REFUSE), PlannedFault(1, 0, Fault.FAIL))
    assert not tier.submit(job(1, Verb.STORE, KEYS, rows_of(b"aaaa", b"bbbb", b"cccc")))
    assert tier.poll() == []
    assert store(tier, 2) == [FAILED, DONE, DONE]


def test_a_torn_store_says_done_and_leaves_half_of_the_bytes() -> None:
    tier = faulty(PlannedFault(0, 2, Fault.TORN_STORE))
    assert store(tier) == [DONE] * 3
    assert [chunk.size_bytes for chunk in sorted(tier.scan(), key=lambda c: KEYS.index(c.key))] == [4, 4, 2]
    assert load(tier) == ([DONE, DONE, CORRUPT], [b"aaaa", b"bbbb", b"...."])


@pytest.mark.parametrize("submission", [0, 1])
def test_damage_in_the_stored_bytes_is_for_the_tier_inside_to_find(submission: int) -> None:
    tier = faulty(PlannedFault(submission, 1, Fault.FLIP_STORED, 17))
    assert store(tier) == [DONE] * 3
    assert load(tier) == ([DONE, CORRUPT, DONE], [b"aaaa", b"....", b"cccc"])


def test_a_bit_that_flips_behind_the_verification_gets_through() -> None:
    tier = faulty(PlannedFault(1, 1, Fault.FLIP_LOADED, 8 * 2))
    store(tier)
    assert load(tier) == ([DONE] * 3, [b"aaaa", b"bb" + bytes([ord("b") ^ 1]) + b"b", b"cccc"])
    assert load(tier, 3) == ([DONE] * 3, [b"aaaa", b"bbbb", b"cccc"])


def test_a_flip_leaves_the_buffer_of_a_miss_alone() -> None:
    tier = faulty(PlannedFault(0, 1, Fault.FLIP_LOADED))
    assert load(tier) == ([MISSING] * 3, [b"...."] * 3)


@pytest.mark.parametrize("submission", [0, 1])
def test_a_chunk_can_vanish_after_a_store_and_between_lookup_and_load(submission: int) -> None:
    tier = faulty(PlannedFault(submission, 0, Fault.VANISH))
    assert store(tier) == [DONE] * 3
    assert tier.lookup(KEYS)[0] is (LookupResult.HIT if submission else LookupResult.MISS)
    assert load(tier)[0] == [MISSING, DONE, DONE]
    assert tier.lookup(KEYS) == [LookupResult.MISS] + [LookupResult.HIT] * 2


def random_run(tier: FaultyTier, seed: int) -> list[tuple]:
    rng = random.Random(seed)
    seen: list[tuple] = []
    for number in range(60):
        verb = rng.choice(tuple(Verb))
        target = rows_of(b"aaaa", b"bbbb", b"cccc") if verb is not Verb.DELETE else []
        seen.append((tier.submit(job(number, verb, KEYS, target)), [bytes(row) for row in target]))
        for report in tier.poll():
            seen.append((report.job_id, tuple(report.outcomes.values()), [bytes(row) for row in target]))
    return seen


RATES = {
    verb: {fault: 0.3 if fault is Fault.REFUSE else 0.08 for fault in sorted(faults, key=lambda f: f.value)}
    for verb, faults in POSSIBLE.items()
}


@pytest.mark.parametrize("seed", range(5))
def test_the_same_seed_or_the_record_of_a_run_makes_the_same_run(seed: int) -> None:
    first = faulty(seed=seed, rates=RATES)
    seen = random_run(first, seed)
    assert seen == random_run(faulty(seed=seed, rates=RATES), seed)
    assert seen != random_run(faulty(seed=seed + 1, rates=RATES), seed)
    text = first.plan.replay()
    assert text.endswith(f"came from seed {seed}")
    config = eval(text, {"FaultConfig": FaultConfig, "PlannedFault": PlannedFault, "Fault": Fault})
    inner = memory(ManualClock())
    again = FaultyTier(inner, config, inner.medium)
    assert random_run(again, seed) == seen
    assert again.plan.history == first.plan.history


def test_faults_come_as_often_as_they_should_and_are_counted() -> None:
    tier = faulty(seed=1, rates={Verb.DELETE: {Fault.REFUSE: 0.25, Fault.FAIL: 0.5}})
    for number in range(1000):
        tier.submit(job(number, Verb.DELETE, KEYS))
        tier.poll()
    counters = tier.stats().counters
    assert counters["faults_refuse"] == pytest.approx(250, rel=0.15)
    assert counters["faults_fail"] == pytest.approx(0.5 * 3 * 750, rel=0.1)
    assert len(tier.plan.history) == counters["faults_refuse"] + counters["faults_fail"]


@pytest.mark.parametrize("verb", Verb)
def test_every_possible_fault_happens_and_no_other_can_be_ordered(verb: Verb) -> None:
    tier = faulty(seed=2, rates={verb: RATES[verb]})
    random_run(tier, 3)
    random_run(tier, 4)
    assert {planned.fault for planned in tier.plan.history} == POSSIBLE[verb]
    for fault in set(Fault) - POSSIBLE[verb]:
        with pytest.raises(ConfigError, match=fault.value):
            FaultConfig(rates={verb: {fault: 0.1}})


@pytest.mark.parametrize(
    "rates", [{Fault.FAIL: -0.1}, {Fault.FAIL: 0.6, Fault.REJECT: 0.6}, {Fault.REFUSE: 1.1}]
)
def test_rates_out_of_range_are_an_error(rates: dict) -> None:
    with pytest.raises(ConfigError, match="rates of store"):
        FaultConfig(rates={Verb.STORE: rates})


def test_a_scheduled_fault_that_the_verb_cannot_meet_is_a_bug_of_the_test() -> None:
    tier = faulty(PlannedFault(0, 0, Fault.MISS))
    with pytest.raises(AssertionError, match="a store cannot"):
        store(tier)


def test_a_fault_on_the_medium_without_a_medium_is_a_bug_of_the_test() -> None:
    tier = FaultyTier(memory(ManualClock()), FaultConfig(schedule=(PlannedFault(0, 0, Fault.VANISH),)))
    tier.submit(job(1, Verb.STORE, KEYS, rows_of(b"a", b"b", b"c")))
    with pytest.raises(AssertionError, match="needs a medium"):
        tier.poll()
    assert len(medium_of(tier)) == 3
