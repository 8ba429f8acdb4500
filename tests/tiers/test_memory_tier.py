"""The memory tier beyond the shipped suite: virtual time, eviction order, damage, restarts, options."""

from __future__ import annotations

import random

import pytest
from tier_stacks import job, memory, only, rows_of

from kvoffload.clock import ManualClock
from kvoffload.config.parse import parse_dataclass
from kvoffload.errors import ConfigError
from kvoffload.keys.fingerprint import Namespace
from kvoffload.testing.tier_driver import make_keys
from kvoffload.tiers.base import Outcome, TierContext, Verb
from kvoffload.tiers.factory import TIERS
from kvoffload.tiers.memory import MemoryMedium, MemoryTier, MemoryTierConfig
from kvoffload.types import LookupResult

DONE, MISSING, CORRUPT, REJECTED = Outcome.DONE, Outcome.MISSING, Outcome.CORRUPT, Outcome.REJECTED


def outcomes(tier: MemoryTier, verb: Verb, keys: list, buffers: list) -> list[Outcome]:
    outcomes.next_id += 1
    assert tier.submit(job(outcomes.next_id, verb, keys, buffers))
    report = only(tier.poll())
    return [report.outcomes[key] for key in keys]


outcomes.next_id = 0


def test_a_job_ends_at_its_latency_and_moves_its_bytes_then() -> None:
    clock = ManualClock(5.0)
    tier = memory(clock, latency_s=2.0)
    (key,) = make_keys(1)
    rows = rows_of(b"old!")
    assert tier.submit(job(1, Verb.STORE, [key], rows))
    clock.advance(1.999)
    assert tier.poll() == []
    assert tier.lookup([key]) == [LookupResult.MISS]
    assert (tier.stats().queued_jobs, tier.stats().queued_bytes) == (1, 4)
    # Whoever reuses the row before the report stores the wrong bytes: that is what a double is for.
    rows[0][:] = b"new!"
    clock.advance(0.001)
    report = only(tier.poll())
    assert (report.outcomes, report.busy_s, report.moved_bytes) == ({key: DONE}, 2.0, 4)
    target = rows_of(b"....")
    assert tier.submit(job(2, Verb.LOAD, [key], target))
    clock.advance(1.0)
    tier.poll()
    assert bytes(target[0]) == b"...."
    clock.advance(1.0)
    assert only(tier.poll()).outcomes == {key: DONE}
    assert bytes(target[0]) == b"new!"


def test_drain_lets_virtual_time_go_by_but_no_more_than_it_may() -> None:
    clock = ManualClock()
    tier = memory(clock, latency_s=2.0)
    assert tier.submit(job(1, Verb.DELETE, make_keys(3)))
    assert not tier.drain(0.5)
    assert clock.now_s() == 0.5
    assert tier.drain(10.0)
    assert clock.now_s() == 2.0
    assert only(tier.poll()).job_id == 1


def test_a_store_of_what_is_there_moves_nothing() -> None:
    tier = memory(ManualClock())
    keys = make_keys(2)
    outcomes(tier, Verb.STORE, keys[:1], rows_of(b"1234"))
    assert tier.submit(job(99, Verb.STORE, keys, rows_of(b"1234", b"567")))
    assert only(tier.poll()).moved_bytes == 3


def test_drain_is_not_fooled_by_rounding() -> None:
    rng = random.Random(1)
    for number in range(300):
        tier = memory(ManualClock(rng.uniform(0, 1e6)), latency_s=rng.uniform(0, 3))
        assert tier.submit(job(number, Verb.DELETE, []))
        assert tier.drain(10.0)


def test_the_least_recently_used_goes_first_and_the_head_of_a_job_last() -> None:
    tier = memory(ManualClock(), max_bytes=4 * 8)
    keys = make_keys(6)
    rows = rows_of(*[bytes(8)] * 6)
    assert outcomes(tier, Verb.STORE, keys[:4], rows[:4]) == [DONE] * 4
    tier.touch([keys[3]])
    assert outcomes(tier, Verb.STORE, keys[4:], rows[4:]) == [DONE] * 2
    # Of the first job, the last key was touched; of the others, those further back in the job went.
    assert [chunk.key for chunk in tier.scan()] == [keys[0], keys[3], keys[5], keys[4]]
    assert tier.stats().counters == {"evicted": 2, "rejected": 0, "corrupt": 0}


def test_a_job_larger_than_the_tier_keeps_its_beginning() -> None:
    tier = memory(ManualClock(), max_bytes=3 * 8)
    keys = make_keys(5)
    assert outcomes(tier, Verb.STORE, keys, rows_of(*[bytes(8)] * 5)) == [DONE] * 3 + [REJECTED] * 2
    (big,) = make_keys(1, first=50)
    assert outcomes(tier, Verb.STORE, [big], rows_of(bytes(25))) == [REJECTED]
    # A chunk for which there is no room at all evicts nobody.
    assert tier.lookup(keys) == [LookupResult.HIT] * 3 + [LookupResult.MISS] * 2


def test_damage_of_the_same_length_is_corrupt_once_then_missing_and_shows_no_byte() -> None:
    tier = memory(ManualClock())
    (key,) = make_keys(1)
    outcomes(tier, Verb.STORE, [key], rows_of(b"payload!"))
    assert tier.medium.flip_bit(key, 8 * 8 + 3)
    target = rows_of(b"........")
    assert outcomes(tier, Verb.LOAD, [key], target) == [CORRUPT]
    assert bytes(target[0]) == b"........"
    assert tier.stats().counters["corrupt"] == 1
    assert tier.stats().stored_bytes == 0
    assert outcomes(tier, Verb.LOAD, [key], target) == [MISSING]
    assert outcomes(tier, Verb.STORE, [key], rows_of(b"payload!")) == [DONE]
    assert outcomes(tier, Verb.LOAD, [key], target) == [DONE]


def test_a_chunk_of_another_length_is_not_what_was_asked_for() -> None:
    tier = memory(ManualClock())
    (key,) = make_keys(1)
    outcomes(tier, Verb.STORE, [key], rows_of(b"half"))
    target = rows_of(b"........")
    assert outcomes(tier, Verb.LOAD, [key], target) == [CORRUPT]
    outcomes(tier, Verb.STORE, [key], rows_of(b"half"))
    # A store of the right length takes its place: otherwise the key would be lost for ever.
    assert outcomes(tier, Verb.STORE, [key], rows_of(b"complete")) == [DONE]
    assert outcomes(tier, Verb.LOAD, [key], target) == [DONE]
    assert (tier.stats().stored_bytes, tier.stats().counters["evicted"]) == (8, 0)


def test_vanished_chunks_are_missing_and_the_others_are_there() -> None:
    tier = memory(ManualClock())
    keys = make_keys(4)
    outcomes(tier, Verb.STORE, keys, rows_of(*[bytes(8)] * 4))
    assert tier.medium.remove(keys[2])
    assert not tier.medium.remove(keys[2])
    assert not tier.medium.flip_bit(keys[2], 0)
    assert outcomes(tier, Verb.LOAD, keys, rows_of(*[b"........"] * 4)) == [DONE, DONE, MISSING, DONE]


def test_a_store_in_flight_at_another_instances_clear_does_not_come_back() -> None:
    clock, medium = ManualClock(), MemoryMedium(1000)
    one, two = (memory(clock, medium=medium, latency_s=1.0) for _ in range(2))
    keys = make_keys(2)
    assert one.submit(job(1, Verb.STORE, keys, rows_of(b"a", b"b")))
    assert two.clear()
    clock.advance(1.0)
    assert set(only(one.poll()).outcomes.values()) == {REJECTED}
    assert len(medium) == 0


def test_reports_that_nobody_fetches_are_bounded_too() -> None:
    tier = memory(ManualClock(), max_pending_jobs=3)
    for number in range(3):
        assert tier.submit(job(number, Verb.DELETE, []))
        assert tier.drain(1.0)
    assert not tier.submit(job(9, Verb.DELETE, []))
    assert len(tier.poll()) == 3
    assert tier.submit(job(9, Verb.DELETE, []))


def test_times_of_use_are_seconds_since_the_epoch() -> None:
    clock = ManualClock(10.0)
    tier = MemoryTier(MemoryTierConfig(max_bytes=100), clock, epoch_s=1e9)
    (key,) = make_keys(1)
    outcomes(tier, Verb.STORE, [key], rows_of(b"x"))
    clock.advance(5.0)
    assert next(tier.scan()).last_used_s == 1e9 + 10
    outcomes(tier, Verb.LOAD, [key], rows_of(b"."))
    assert next(tier.scan()).last_used_s == 1e9 + 15


def test_it_is_opened_by_name_with_sizes_as_people_write_them() -> None:
    options = parse_dataclass(MemoryTierConfig, {"max_bytes": "1MiB", "name": "attic"}, "here")
    tier = TIERS.resolve("memory").open(options, TierContext(Namespace("model", "{}"), (4096,)))
    assert tier.name == "attic"
    assert tier.stats().capacity_bytes == 2**20
    assert "1.00 MiB" in tier.describe()


@pytest.mark.parametrize(
    "options", [{"max_bytes": 0}, {"max_pending_jobs": 0}, {"latency_s": -1.0}, {"latency_s": float("nan")}]
)
def test_values_out_of_range_are_an_error_that_names_them(options: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        MemoryTierConfig(**{"max_bytes": 10, **options})
