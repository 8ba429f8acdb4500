"""The checksummed wrapper: no damaged byte gets out, whatever the tier inside does and whoever stored it."""

from __future__ import annotations

import random

import pytest
from tier_stacks import checksummed, job, medium_of, memory, only, rows_of

from kvoffload.clock import ManualClock
from kvoffload.testing.tier_driver import make_keys
from kvoffload.tiers.base import Outcome, Tier, Verb
from kvoffload.tiers.memory import MemoryMedium
from kvoffload.tiers.wrappers.checksummed import ChecksumConfig, ChecksummedTier
from kvoffload.tiers.wrappers.faults import Fault, FaultConfig, PlannedFault
from kvoffload.tiers.wrappers.faulty import FaultyTier
from kvoffload.tiers.wrappers.sealing import SEAL_BYTES
from kvoffload.types import LookupResult

DONE, CORRUPT, MISSING = Outcome.DONE, Outcome.CORRUPT, Outcome.MISSING


def with_faults(*faults: PlannedFault) -> tuple[ChecksummedTier, FaultyTier]:
    clock = ManualClock()
    inner = FaultyTier(memory(clock), FaultConfig(schedule=faults))
    return checksummed(inner, clock), inner


def run(tier: Tier, job_id: int, verb: Verb, keys: list, buffers: list) -> list[Outcome]:
    assert tier.submit(job(job_id, verb, keys, buffers))
    assert tier.drain(10.0)
    report = only(tier.poll())
    return [report.outcomes[key] for key in keys]


def test_a_bit_that_flips_on_the_way_is_corrupt_once_then_missing() -> None:
    tier, _ = with_faults(PlannedFault(1, 1, Fault.FLIP_LOADED, 13))
    keys = make_keys(3)
    run(tier, 1, Verb.STORE, keys, rows_of(b"one!", b"two!", b"tri!"))
    target = rows_of(b"....", b"....", b"....")
    assert run(tier, 2, Verb.LOAD, keys, target) == [DONE, CORRUPT, DONE]
    assert [bytes(row) for row in target] == [b"one!", b"....", b"tri!"]
    assert tier.stats().counters["checksum_errors"] == 1
    assert tier.lookup(keys) == [LookupResult.HIT, LookupResult.MISS, LookupResult.HIT]
    assert run(tier, 3, Verb.LOAD, keys, target) == [DONE, MISSING, DONE]
    assert run(tier, 4, Verb.STORE, keys, rows_of(b"one!", b"two!", b"tri!")) == [DONE] * 3
    assert run(tier, 5, Verb.LOAD, keys, target) == [DONE] * 3


@pytest.mark.parametrize("seed", range(3))
def test_any_flipped_bit_is_found_in_payload_and_seal(seed: int) -> None:
    rng = random.Random(seed)
    (key,) = make_keys(1)
    # The payload, the digest, and the zeros behind it.
    for bit in (
        0,
        8 * 5 - 1,
        8 * 5,
        8 * 5 + 127,
        8 * (5 + SEAL_BYTES) - 1,
        *rng.choices(range(8 * 5 + 128), k=20),
    ):
        tier, _ = with_faults(PlannedFault(1, 0, Fault.FLIP_LOADED, bit))
        run(tier, 1, Verb.STORE, [key], rows_of(b"bytes"))
        target = rows_of(b".....")
        assert run(tier, 2, Verb.LOAD, [key], target) == [CORRUPT], bit
        assert bytes(target[0]) == b".....", bit


def test_the_bytes_of_another_key_are_not_this_keys() -> None:
    tier, _ = with_faults()
    one, two = make_keys(2)
    run(tier, 1, Verb.STORE, [one, two], rows_of(b"same", b"size"))
    medium = medium_of(tier)
    medium._chunks[one], medium._chunks[two] = medium._chunks[two], medium._chunks[one]
    assert run(tier, 2, Verb.LOAD, [one, two], rows_of(b"....", b"....")) == [CORRUPT, CORRUPT]
    assert len(medium) == 0


def test_a_block_of_zeros_is_nobodys_chunk() -> None:
    clock = ManualClock()
    tier, (key,) = checksummed(memory(clock), clock), make_keys(1)
    medium_of(tier).put(key, memoryview(bytes(8 + SEAL_BYTES)), 0.0, ())
    assert run(tier, 1, Verb.LOAD, [key], rows_of(b"........")) == [CORRUPT]


def test_a_torn_store_is_not_served() -> None:
    tier, _ = with_faults(PlannedFault(0, 0, Fault.TORN_STORE))
    (key,) = make_keys(1)
    run(tier, 1, Verb.STORE, [key], rows_of(b"whole chunk"))
    assert run(tier, 2, Verb.LOAD, [key], rows_of(bytes(11))) == [CORRUPT]
    assert run(tier, 3, Verb.LOAD, [key], rows_of(bytes(11))) == [MISSING]


def test_digests_hold_in_a_later_process_and_in_another_one() -> None:
    medium, keys = MemoryMedium(2**20), make_keys(4)
    clock = ManualClock()
    first = checksummed(memory(clock, medium=medium), clock)
    run(first, 1, Verb.STORE, keys, rows_of(*[b"data"] * 4))
    later = checksummed(memory(clock, medium=medium), clock)
    target = rows_of(*[b"...."] * 4)
    assert run(later, 1, Verb.LOAD, keys, target) == [DONE] * 4
    assert {bytes(row) for row in target} == {b"data"}


def test_a_load_is_reported_when_what_was_bad_is_gone() -> None:
    clock = ManualClock()
    inner = FaultyTier(
        memory(clock),
        FaultConfig(
            schedule=(
                PlannedFault(1, 0, Fault.FLIP_LOADED),
                *[PlannedFault(n, 0, Fault.REFUSE) for n in (2, 3)],
            )
        ),
    )
    tier, (key,) = checksummed(inner, clock), make_keys(1)
    run(tier, 1, Verb.STORE, [key], rows_of(b"data"))
    assert tier.submit(job(2, Verb.LOAD, [key], rows_of(b"....")))
    # The deletion is refused twice, taken, and carried out.
    assert [tier.poll() for _ in range(3)] == [[], [], []]
    assert tier.stats().queued_jobs == 1
    assert only(tier.poll()).outcomes == {key: CORRUPT}
    assert key not in medium_of(tier)


def test_a_deletion_that_fails_is_no_reason_to_hide_the_report_or_to_serve_the_bytes() -> None:
    tier, _ = with_faults(
        PlannedFault(1, 0, Fault.FLIP_LOADED),
        PlannedFault(2, 0, Fault.FAIL),
        PlannedFault(3, 0, Fault.FLIP_LOADED),
    )
    (key,) = make_keys(1)
    run(tier, 1, Verb.STORE, [key], rows_of(b"data"))
    for number in (2, 3):
        assert run(tier, number, Verb.LOAD, [key], rows_of(b"....")) == [CORRUPT]
    assert key not in medium_of(tier)


def test_a_shutdown_ends_a_deletion_that_nobody_takes() -> None:
    refusals = [PlannedFault(number, 0, Fault.REFUSE) for number in range(2, 50)]
    tier, _ = with_faults(PlannedFault(1, 0, Fault.FLIP_LOADED), *refusals)
    (key,) = make_keys(1)
    run(tier, 1, Verb.STORE, [key], rows_of(b"data"))
    tier.submit(job(2, Verb.LOAD, [key], rows_of(b"....")))
    assert tier.poll() == tier.poll() == []
    tier.shutdown()
    assert only(tier.poll()).outcomes == {key: CORRUPT}


def test_bytes_moved_are_those_of_the_payloads() -> None:
    tier, _ = with_faults(PlannedFault(1, 0, Fault.FLIP_LOADED))
    keys = make_keys(3)
    buffers = rows_of(bytes(10), bytes(20), bytes(30))
    assert tier.submit(job(1, Verb.STORE, keys, buffers))
    assert only(tier.poll()).moved_bytes == 60
    assert tier.submit(job(2, Verb.LOAD, keys, buffers))
    assert tier.drain(1.0)
    assert only(tier.poll()).moved_bytes == 50


def test_under_pressure_nothing_is_copied_before_something_has_ended() -> None:
    clock = ManualClock()
    inner = memory(clock, max_pending_jobs=1)
    tier = ChecksummedTier(inner, ChecksumConfig(), clock.advance)
    keys = make_keys(3)
    asked: list[int] = []
    submit = inner.submit
    inner.submit = lambda wanted: asked.append(wanted.job_id) or submit(wanted)
    assert tier.submit(job(1, Verb.STORE, keys[:1], rows_of(b"a")))
    assert [tier.submit(job(2, Verb.STORE, keys[1:2], rows_of(b"b"))) for _ in range(5)] == [False] * 5
    assert len(asked) == 2
    assert only(tier.poll()).job_id == 1
    assert tier.submit(job(2, Verb.STORE, keys[1:2], rows_of(b"b")))


def test_a_refusal_by_an_idle_tier_is_no_reason_never_to_ask_again() -> None:
    tier, _ = with_faults(PlannedFault(0, 0, Fault.REFUSE))
    assert [tier.submit(job(1, Verb.STORE, make_keys(1), rows_of(b"a"))) for _ in range(2)] == [False, True]


def test_copies_in_flight_are_bounded() -> None:
    clock = ManualClock()
    tier = ChecksummedTier(memory(clock), ChecksumConfig(max_held_jobs=2), clock.advance)
    assert [tier.submit(job(n, Verb.DELETE, make_keys(1))) for n in range(3)] == [True, True, False]
