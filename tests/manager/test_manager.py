"""The manager, event by event: what it answers, what it orders, what it never does."""

from __future__ import annotations

import logging

import pytest
from scheduler_side import (
    PENDING_TIMEOUT_S,
    TRANSFER_TIMEOUT_S,
    SchedulerSide,
    keys_of,
    moves_of,
    run,
    slots_of,
)
from scripted_tier import ScriptedTier

from kvoffload.config.options import LaneOptions
from kvoffload.manager.lane import TierLane
from kvoffload.manager.request import GroupGeometry
from kvoffload.manager.settings import Below
from kvoffload.manager.staging import LoadPolicy, StagingConfig
from kvoffload.messages import NO_SLOT, JobOutcome, WorkerReport
from kvoffload.metrics import catalog as m
from kvoffload.policies.admission import SizeLimit
from kvoffload.types import Direction, JobId, RequestId


@pytest.fixture
def side() -> SchedulerSide:
    return SchedulerSide()


# -- store and hit ---------------------------------------------------------------------------------------------------


def test_what_was_stored_is_loaded_from_its_slots_into_the_new_blocks(side: SchedulerSide) -> None:
    store = side.store("a", "abc", [11, 12, 13])
    assert store.direction is Direction.STORE
    assert [block for block, _, _ in moves_of(store)] == [11, 12, 13]
    side.add("b", "abcd")
    assert side.match("b") == 12
    side.allocate("b", [21, 22, 23], load=12)
    message = side.step()
    (load,) = message.loads
    assert moves_of(load) == [
        (21, slots_of(store)[0], 0),
        (22, slots_of(store)[1], 0),
        (23, slots_of(store)[2], 0),
    ]
    assert side.tier.pinned_count == 3
    side.report(load)
    assert side.tier.pinned_count == 0
    assert side.count(m.HIT_TOKENS) == 12
    assert side.count(m.LOOKUP_TOKENS) == 12 + 16
    assert side.count(m.LOADED_CHUNKS) == 3


def test_a_load_goes_on_where_the_device_ends_even_inside_a_chunk() -> None:
    side = SchedulerSide(geometries=[GroupGeometry(0, 4, 2, 4)])
    side.add("a", "abcdef")
    side.allocate("a", [1, 2, 3, 4, 5, 6])
    (store,) = side.step(run("a", [1, 2, 3, 4, 5, 6], 24)).stores
    side.report(store)
    side.add("b", "abcdef")
    assert side.match("b", computed=12) == 12
    side.allocate("b", [1, 2, 3, 24, 25, 26], computed=12, load=12)
    (load,) = side.step().loads
    slots = slots_of(store)[::2]
    assert moves_of(load) == [(24, slots[1], 1), (25, slots[2], 0), (26, slots[2], 1)]


def test_a_match_may_be_asked_any_number_of_times_and_counts_once_when_admitted(side: SchedulerSide) -> None:
    side.store("a", "ab", [1, 2])
    side.add("b", "abc")
    before = side.count(m.LOOKUP_TOKENS)
    assert [side.match("b") for _ in range(5)] == [8] * 5
    assert side.count(m.LOOKUP_TOKENS) == before
    side.allocate("b", [3, 4, 5], load=8)
    assert side.count(m.LOOKUP_TOKENS) == before + 12
    assert side.count(m.HIT_TOKENS) == 8


def test_the_engine_may_accept_less_than_it_was_offered(side: SchedulerSide) -> None:
    side.store("a", "abc", [1, 2, 3])
    side.add("b", "abcd")
    assert side.match("b") == 12
    side.allocate("b", [5], load=4)
    (load,) = side.step().loads
    assert [block for block, _, _ in moves_of(load)] == [5]
    assert side.tier.pinned_count == 1


def test_nothing_is_offered_that_the_device_has(side: SchedulerSide) -> None:
    side.store("a", "abc", [1, 2, 3])
    side.add("b", "abcd")
    assert side.match("b", computed=12) == 0
    assert side.match("b", computed=8) == 4


def test_a_prefix_must_be_contiguous(side: SchedulerSide) -> None:
    side.store("a", "abc", [1, 2, 3])
    side.tier.drop([keys_of("abc")[1]])
    side.add("b", "abc")
    assert side.match("b") == 4


@pytest.mark.parametrize(("limit", "answer"), [(None, 12), (100, 12), (11, 8), (4, 4), (3, 0), (0, 0)])
def test_a_request_may_limit_what_is_loaded(side: SchedulerSide, limit: int | None, answer: int) -> None:
    side.store("a", "abc", [1, 2, 3])
    side.add("b", "abc", max_load_tokens=limit)
    assert side.match("b") == answer


def test_a_request_that_skips_the_cache_asks_for_nothing(side: SchedulerSide) -> None:
    side.store("a", "abc", [1, 2, 3])
    before = side.count(m.LOOKUP_TOKENS)
    side.add("b", "abc", skip_load=True)
    assert side.match("b") == 0
    side.allocate("b", [4, 5, 6])
    assert side.count(m.LOOKUP_TOKENS) == before


def test_unknown_requests_are_ignored(side: SchedulerSide) -> None:
    assert side.match("x") == 0
    side.allocate("x", [1])
    side.manager.finish_request(RequestId("x"), 4)
    message = side.step(run("x", [1], 4), preempted=["x", "y"], finished=["x", "z"])
    assert (message.loads, message.stores, message.flush) == ((), (), ())


# -- what may be stored ----------------------------------------------------------------------------------------------


def test_chunks_are_stored_as_they_are_completed_and_never_twice(side: SchedulerSide) -> None:
    side.add("a", "abc")
    (first,) = side.step(run("a", [1, 2], 6)).stores
    assert [block for block, _, _ in moves_of(first)] == [1]
    (second,) = side.step(run("a", [3], 6, computed=6, replaces=False)).stores
    assert [block for block, _, _ in moves_of(second)] == [2, 3]
    assert side.finish("a", 12).stores == ()


def test_of_an_answer_nothing_is_stored_unless_asked(side: SchedulerSide) -> None:
    side.add("a", "ab", answer="cd")
    (job,) = side.step(run("a", [1, 2, 3, 4], 16)).stores
    assert [block for block, _, _ in moves_of(job)] == [1, 2]
    assert side.finish("a", 16).stores == ()


def test_an_answer_is_stored_up_to_the_last_token_that_was_run() -> None:
    side = SchedulerSide(offload_prompt_only=False)
    hashes = side.add("a", "ab")
    side.step(run("a", [1, 2], 8))
    side.step(run("a", [3], 1, computed=8, replaces=False))
    from scheduler_side import hashes_of

    hashes.extend(hashes_of("abc")[2:])  # the sampled token completes the block: known, but not run
    assert side.step(run("a", None, 2, computed=9, replaces=False)).stores == ()
    assert side.finish("a", 11).stores == ()
    side.add("b", "ab", answer="c")
    side.step(run("b", [1, 2], 8))
    (job,) = side.step(run("b", [3], 4, computed=8, replaces=False)).stores
    assert [block for block, _, _ in moves_of(job)] == [3]


@pytest.mark.parametrize(("limit", "stored"), [(0, 0), (3, 0), (4, 1), (11, 2), (100, 3)])
def test_a_request_may_limit_what_is_stored(side: SchedulerSide, limit: int, stored: int) -> None:
    side.add("a", "abc", max_offload_tokens=limit)
    stores = side.step(run("a", [1, 2, 3], 12)).stores
    assert sum(len(moves_of(job)) for job in stores) == stored


def test_a_chunk_without_a_block_of_its_own_ends_what_is_stored(side: SchedulerSide) -> None:
    side.add("a", "abcd")
    (job,) = side.step(run("a", [1, 2, 0, 4], 16)).stores
    assert [block for block, _, _ in moves_of(job)] == [1, 2]


def test_of_an_aborted_request_only_what_was_computed_is_stored(side: SchedulerSide) -> None:
    side.add("a", "abcd")
    side.step(run("a", [1, 2, 3, 4], 6))
    (late,) = side.finish("a", 9).stores
    assert [block for block, _, _ in moves_of(late)] == [2]


def test_second_touch_stores_what_two_requests_have_offered() -> None:
    side = SchedulerSide(store_threshold=2)
    side.add("a", "ab")
    assert side.step(run("a", [1, 2], 8)).stores == ()
    assert side.count(m.STORE_FILTERED_CHUNKS) == 2
    side.add("b", "ac")
    (job,) = side.step(run("b", [3, 4], 8)).stores
    assert [block for block, _, _ in moves_of(job)] == [3]


def test_of_a_long_request_the_beginning_is_stored_and_of_a_short_one_nothing() -> None:
    side = SchedulerSide(size_limit=SizeLimit(min_prompt_tokens=8, max_tokens=9))
    side.add("short", "x")
    side.add("long", "abc")
    assert side.step(run("short", [1], 4)).stores == ()
    (job,) = side.step(run("long", [2, 3, 4], 12)).stores
    assert [block for block, _, _ in moves_of(job)] == [2, 3]


def test_a_chunk_that_is_there_or_on_its_way_is_not_stored_again(side: SchedulerSide) -> None:
    side.add("a", "ab")
    side.add("b", "abc")
    first = side.step(run("a", [1, 2], 8), run("b", [3, 4, 5], 12)).stores
    assert [[block for block, _, _ in moves_of(job)] for job in first] == [[1, 2], [5]]


# -- abort, preempt, resume ------------------------------------------------------------------------------------------


def test_an_abort_before_the_first_schedule_leaves_no_job_and_no_pin(side: SchedulerSide) -> None:
    side.store("a", "ab", [1, 2])
    side.add("b", "abc")
    assert side.match("b") == 8
    message = side.finish("b", 0)
    assert (message.loads, message.stores, message.flush) == ((), (), ())
    assert side.tier.pinned_count == 0
    assert not side.manager.has_pending_work()
    assert not side.manager._requests
    side.add("c", "abc")
    side.manager.finish_request(RequestId("c"), 0)
    assert side.match("c") == 8, "the engine may still ask before it tells"


def test_an_abort_while_loading_keeps_the_pins_until_the_workers_are_done(side: SchedulerSide) -> None:
    side.store("a", "ab", [1, 2])
    side.add("b", "abc")
    side.match("b")
    side.allocate("b", [3, 4], load=8)
    (load,) = side.step().loads
    # The engine counts tokens of a load as computed before they are there.
    assert side.finish("b", 8).stores == ()
    assert side.tier.pinned_count == 2
    side.report(load)
    assert side.tier.pinned_count == 0


def test_a_preempted_request_never_stores_from_blocks_that_it_lost() -> None:
    side = SchedulerSide(offload_prompt_only=False)
    side.add("a", "abc")
    side.step(run("a", [1, 2, 3], 10))
    side.step(run("b", [1, 2, 3], 12), preempted=["a"])
    assert side.finish("a", 12).stores == ()
    side.add("c", "xyz")
    side.step(run("c", [1, 2, 3], 10))
    (job,) = side.step(run("c", [7, 8, 9], 12, replaces=True), preempted=["c"]).stores
    assert [block for block, _, _ in moves_of(job)] == [9]


def test_a_known_id_starts_anew_and_its_old_load_ends_by_itself(side: SchedulerSide) -> None:
    side.store("a", "ab", [1, 2])
    side.add("b", "ab")
    side.match("b")
    side.allocate("b", [3, 4], load=8)
    (load,) = side.step().loads
    side.add("b", "abc")
    side.report(load)
    assert side.match("b") == 8
    assert side.tier.pinned_count == 0


def test_a_second_load_of_a_request_waits_for_its_first(side: SchedulerSide) -> None:
    side.store("a", "ab", [1, 2])
    side.add("b", "ab")
    side.match("b")
    side.allocate("b", [3, 4], load=8)
    (load,) = side.step().loads
    assert side.match("b") is None
    side.report(load)
    assert side.match("b") == 8


def test_no_counter_falls_when_a_resumed_request_finds_less_on_the_device(side: SchedulerSide) -> None:
    side.store("a", "abcd", [1, 2, 3, 4])
    side.add("b", "abcd")
    side.recorder.take_changes()
    for computed in (12, 0, 8):
        load = side.match("b", computed)
        side.allocate("b", [5, 6, 7, 8], computed=computed, load=load or 0)
        message = side.step(preempted=["b"])
        side.report(*message.loads)
        changes = side.recorder.take_changes()
        assert all(value >= 0 for value in changes.values()), changes
    assert side.count(m.HIT_TOKENS) == 4 + 16 + 8


# -- fences ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["run", "replace", "load", "copy on write"])
def test_a_store_is_flushed_before_its_block_is_overwritten(how: str) -> None:
    side = SchedulerSide()
    side.store("s", "xy", [31, 32])
    side.add("a", "ab")
    (store,) = side.step(run("a", [1, 2], 8)).stores
    side.finish("a", 8)
    side.add("b", "xyz")
    if how == "run":
        side.step(run("b", [5], 4))
        message = side.step(run("b", [2], 4, computed=4, replaces=False))
    elif how == "replace":
        message = side.step(run("b", [5, 2], 8))
    elif how == "load":
        assert side.match("b") == 8
        side.allocate("b", [5, 2], load=8)
        message = side.step()
    else:
        message = side.step(overwritten=[2])
    assert message.flush == (store.job_id,)
    assert side.count(m.FENCED_JOBS) == 1


def test_a_late_store_whose_blocks_are_given_away_in_the_same_step_is_flushed_too(
    side: SchedulerSide,
) -> None:
    side.add("a", "abcd")
    side.step(run("a", [1, 2, 3, 4], 6))
    side.add("b", "x")
    side.manager.finish_request(RequestId("a"), 9)
    message = side.step(run("b", [2], 4), finished=["a"])
    (late,) = (job for job in message.stores if job.req_id == "a")
    assert message.flush == (late.job_id,)


def test_shared_blocks_of_the_devices_prefix_cache_are_no_reason_to_flush(side: SchedulerSide) -> None:
    side.add("a", "ab")
    side.step(run("a", [1, 2], 8))
    side.add("b", "abc")
    message = side.step(run("b", [1, 2, 3], 4, computed=8))
    assert message.flush == ()


def test_the_last_block_of_a_prefix_that_is_run_again_is_a_reason(side: SchedulerSide) -> None:
    side.add("a", "ab")
    (store,) = side.step(run("a", [1, 2], 8)).stores
    side.add("b", "ab")
    assert side.step(run("b", [1, 2], 1, computed=7)).flush == (store.job_id,)


def test_nothing_is_flushed_after_the_report(side: SchedulerSide) -> None:
    side.store("a", "ab", [1, 2])
    assert side.step(run("b", [1, 2], 8)).flush == ()


def test_the_null_block_is_never_fenced() -> None:
    side = SchedulerSide(null_block_id=9)
    side.add("a", "ab")
    side.step(run("a", [1, 9], 8))
    side.add("b", "xy")
    assert side.step(run("b", [9, 3], 8)).flush == ()


# -- outcomes --------------------------------------------------------------------------------------------------------


def test_a_chunk_is_published_when_all_workers_have_it_and_not_before() -> None:
    side = SchedulerSide(world_size=2)
    side.add("a", "ab")
    (store,) = side.step(run("a", [1, 2], 8)).stores
    side.report(store, workers=1)
    side.add("b", "ab")
    assert side.match("b") is None
    side.report(store, workers=1)
    assert side.match("b") == 8


def test_a_chunk_that_one_worker_could_not_copy_stays_a_miss() -> None:
    side = SchedulerSide(world_size=2)
    side.add("a", "abc")
    (store,) = side.step(run("a", [1, 2, 3], 12)).stores
    side.report(store, workers=1, failed=[(0, slots_of(store)[1])])
    side.report(store, workers=1)
    side.add("b", "abc")
    assert side.match("b") == 4
    assert side.count(m.STORE_FAILED_CHUNKS) == 1
    assert side.count(m.STORED_CHUNKS) == 2


def test_a_chunk_that_could_not_be_loaded_is_never_offered_again_and_the_rest_is(side: SchedulerSide) -> None:
    store = side.store("a", "abcd", [1, 2, 3, 4])
    side.add("b", "abcd")
    assert side.match("b") == 16
    side.allocate("b", [5, 6, 7, 8], load=16)
    (load,) = side.step().loads
    side.report(load, failed=[(0, slots_of(store)[2])])
    assert side.count(m.LOAD_FAILED_CHUNKS) == 1
    side.add("c", "abcd")
    assert side.match("c") == 8
    (again,) = side.step(run("b", [5, 6, 7, 8], 8, computed=8)).stores
    assert [block for block, _, _ in moves_of(again)] == [7], "stored anew when it was computed anew"


def test_a_chunk_that_vanished_before_the_load_is_marked_for_the_workers(side: SchedulerSide) -> None:
    store = side.store("a", "abc", [1, 2, 3])
    side.add("b", "abc")
    assert side.match("b") == 12
    side.tier.drop([keys_of("abc")[1]])
    side.allocate("b", [5, 6, 7], load=12)
    (load,) = side.step().loads
    assert moves_of(load) == [(5, slots_of(store)[0], 0), (6, NO_SLOT, 0), (7, slots_of(store)[2], 0)]
    side.report(load)
    assert side.tier.pinned_count == 0


def test_a_report_of_an_unknown_job_is_counted_and_dropped(side: SchedulerSide) -> None:
    side.manager.report(WorkerReport({JobId(99): JobOutcome(workers=1)}))
    assert side.count(m.LATE_JOBS) == 1


def test_a_transfer_that_nobody_reports_is_given_up_and_its_slots_are_not_used_until_it_is(
    side: SchedulerSide, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    side.add("a", "ab")
    (store,) = side.step(run("a", [1, 2], 8)).stores
    side.clock.advance(TRANSFER_TIMEOUT_S + 1)
    side.step()
    assert side.count(m.LOST_JOBS) == 1
    assert not side.manager.has_pending_work()
    side.add("b", "ab")
    assert side.match("b") == 0
    (again,) = side.step(run("b", [3, 4], 8)).stores
    assert not set(slots_of(again)) & set(slots_of(store))
    assert side.step(overwritten=[1]).flush == (store.job_id,), "its copy may still read"
    side.report(again)
    side.report(store)
    side.add("c", "ab")
    assert side.match("c") == 8
    assert len(side.tier._free) == side.tier.num_slots - 2


# -- waiting ---------------------------------------------------------------------------------------------------------


def test_a_request_waits_for_a_chunk_that_is_just_being_written_but_not_for_ever(side: SchedulerSide) -> None:
    side.add("a", "ab")
    side.step(run("a", [1, 2], 8))
    side.add("b", "abc")
    assert side.match("b") is None
    side.clock.advance(PENDING_TIMEOUT_S - 0.1)
    assert side.match("b") is None
    side.clock.advance(0.2)
    assert side.match("b") == 0
    assert side.count(m.PENDING_TIMEOUTS) == 1


@pytest.mark.parametrize("waits", [True, False])
def test_two_requests_share_one_load_where_the_device_has_a_prefix_cache(waits: bool) -> None:
    side = SchedulerSide(wait_for_loads=waits)
    side.store("a", "ab", [1, 2])
    for req_id in ("b", "c"):
        side.add(req_id, "ab")
    assert side.match("b") == 8
    side.allocate("b", [3, 4], load=8)
    (load,) = side.step().loads
    assert side.match("c") == (None if waits else 8)
    side.report(load)
    assert side.match("c") == 8


# -- eviction --------------------------------------------------------------------------------------------------------


def test_a_request_never_evicts_its_own_head() -> None:
    side = SchedulerSide(num_slots=3)
    side.add("a", "abcdef")
    blocks = list(range(1, 7))
    for step, block in enumerate(blocks):
        message = side.step(run("a", [block], 4, computed=4 * step, replaces=step == 0))
        side.report(*message.stores)
    assert side.count(m.STORE_REJECTED_CHUNKS) == 3
    side.add("b", "abcdef")
    assert side.match("b") == 12


def test_a_request_never_evicts_its_own_head_to_bring_its_end_from_a_tier_below() -> None:
    disk = ScriptedTier()
    disk.has = set(keys_of("abcd")[2:])
    lane = TierLane(disk, LaneOptions(), lambda group, slot: memoryview(bytearray(8)))
    side = SchedulerSide(num_slots=2, below=Below((lane,), StagingConfig(LoadPolicy.ALWAYS), (8,)))
    side.store("a", "ab", [1, 2])
    side.add("b", "abcd")
    assert side.manager.match(RequestId("b"), 0) == 8
    assert side.tier.lookup_prefix(keys_of("ab")) == (2, False)


def test_a_prompt_that_does_not_fit_keeps_its_head() -> None:
    side = SchedulerSide(num_slots=2)
    side.add("a", "abcd")
    (store,) = side.step(run("a", [1, 2, 3, 4], 16)).stores
    assert [block for block, _, _ in moves_of(store)] == [1, 2]
    assert side.count(m.STORE_REJECTED_CHUNKS) == 2


def test_the_end_of_an_old_prompt_goes_first() -> None:
    side = SchedulerSide(num_slots=5)
    side.add("a", "abc")
    for step, block in enumerate([1, 2, 3]):  # in pieces: the head was stored first
        message = side.step(run("a", [block], 4, computed=4 * step, replaces=step == 0))
        side.report(*message.stores)
    side.finish("a", 12)
    side.store("b", "wxyz", [4, 5, 6, 7])
    assert side.count(m.EVICTED_CHUNKS) == 2
    side.add("c", "abc")
    assert side.match("c") == 4


def test_chunks_that_a_load_reads_are_never_evicted() -> None:
    side = SchedulerSide(num_slots=2)
    side.store("a", "ab", [1, 2])
    side.add("b", "ab")
    side.match("b")
    side.allocate("b", [3, 4], load=8)
    (load,) = side.step().loads
    side.add("c", "xy")
    assert side.step(run("c", [5, 6], 8)).stores == ()
    assert side.count(m.STORE_REJECTED_CHUNKS) == 2
    side.report(load)
    assert side.match("b") == 8


# -- reset -----------------------------------------------------------------------------------------------------------


def test_a_reset_with_a_store_in_flight_leaves_nothing_that_comes_back(side: SchedulerSide) -> None:
    side.store("a", "ab", [1, 2])
    side.add("b", "xy")
    (store,) = side.step(run("b", [3, 4], 8)).stores
    assert dict(side.manager.reset()) == {"host": True}
    side.report(store)
    assert side.count(m.LATE_JOBS) == 1
    assert side.count(m.RESETS) == 1
    for req_id, text in (("c", "ab"), ("d", "xy")):
        side.add(req_id, text)
        assert side.match(req_id) == 0
    assert side.tier.ready_count == 0
    assert len(side.tier._free) == side.tier.num_slots


def test_a_reset_lets_loads_end_and_then_frees_their_slots(side: SchedulerSide) -> None:
    side.store("a", "ab", [1, 2])
    side.add("b", "abc")
    side.match("b")
    side.allocate("b", [3, 4], load=8)
    (load,) = side.step().loads
    side.manager.reset()
    side.manager.check()
    assert side.tier.pinned_count == 2
    side.report(load)
    assert side.tier.pinned_count == 0
    assert len(side.tier._free) == side.tier.num_slots


@pytest.mark.parametrize("state", ["running", "finished", "loading", "loaded"])
def test_kv_that_was_computed_before_a_reset_does_not_come_back(state: str) -> None:
    side = SchedulerSide()
    side.store("s", "a", [9])
    side.add("r", "abc")
    assert side.match("r") == 4
    computed = 4 if state in {"loading", "loaded"} else 0
    side.allocate("r", [1], load=computed)
    loads = side.step(*([run("r", [1, 2], 6)] if not computed else [])).loads
    if state == "loaded":
        side.report(*loads)
    if state == "finished":
        side.manager.finish_request(RequestId("r"), 12)
    side.manager.reset()
    if state == "loading":
        side.report(*loads)
    if state == "finished":
        message = side.step(finished=["r"])
    else:
        message = side.step(run("r", [1, 2, 3], 12 - computed, computed=computed))
    assert message.stores == ()
    assert side.tier.ready_count == 0


def test_what_is_computed_anew_after_a_reset_is_stored(side: SchedulerSide) -> None:
    side.add("r", "abc")
    side.step(run("r", [1, 2, 3], 12))
    side.manager.reset()
    (store,) = side.step(run("r", [4, 5, 6], 12), preempted=["r"]).stores
    assert [block for block, _, _ in moves_of(store)] == [4, 5, 6]


def test_admission_forgets_at_a_reset() -> None:
    side = SchedulerSide(store_threshold=2)
    side.add("a", "a")
    side.step(run("a", [1], 4))
    side.manager.reset()
    side.add("b", "a")
    assert side.step(run("b", [2], 4)).stores == ()


# -- several groups --------------------------------------------------------------------------------------------------


def groups_of(*tokens_per_block: int) -> list[GroupGeometry]:
    return [GroupGeometry(group, tokens, 1, 1) for group, tokens in enumerate(tokens_per_block)]


def store_in_groups(side: SchedulerSide, text: str, tables: list[list[int]]) -> None:
    side.add("s", text, num_prompt_tokens=len(text))
    new = run("s", [], len(text))
    from dataclasses import replace

    (store,) = side.step(replace(new, new_block_ids=tuple(tables))).stores  # type: ignore[arg-type]
    side.report(store)


def test_a_load_ends_on_a_chunks_edge_in_every_group() -> None:
    side = SchedulerSide(geometries=groups_of(2, 3))
    store_in_groups(side, "abcdefghij", [[1, 2, 3, 4, 5], [6, 7, 8]])
    side.add("b", "abcdefghij", num_prompt_tokens=10)
    # 10 tokens are in one group and 9 in the other: 6 is the largest common edge.
    assert side.match("b") == 6
    side.manager.allocated(RequestId("b"), [[11, 12, 13], [14, 15]], 0, 6)  # type: ignore[list-item]
    (load,) = side.step().loads
    assert [part.block_ids.tolist() for part in load.parts] == [[11, 12, 13], [14, 15]]
    assert side.count(m.LOOKUP_TOKENS) == 10


def test_the_answer_is_what_all_groups_can_serve() -> None:
    side = SchedulerSide(geometries=groups_of(2, 2))
    store_in_groups(side, "abcdef", [[1, 2, 3], [4, 5, 6]])
    side.tiers[1].drop([keys_of("abcdef", group_id=1)[3]])
    side.add("b", "abcdef", num_prompt_tokens=6)
    assert side.match("b") == 2


def test_a_chunk_that_fails_in_one_group_stays_in_the_other() -> None:
    side = SchedulerSide(geometries=groups_of(2, 2))
    side.add("s", "abcd", num_prompt_tokens=4)
    from dataclasses import replace

    (store,) = side.step(replace(run("s", [], 4), new_block_ids=([1, 2], [3, 4]))).stores  # type: ignore[arg-type]
    side.report(store, failed=[(1, int(store.parts[1].slots[1]))])
    assert [tier.ready_count for tier in side.tiers] == [2, 1]


def test_gauges_show_what_is_there() -> None:
    side = SchedulerSide(geometries=groups_of(2, 2), num_slots=6)
    assert side.count(m.CAPACITY_CHUNKS) == 12
    store_in_groups(side, "abcd", [[1, 2], [3, 4]])
    assert side.count(m.RESIDENT_CHUNKS) == 4
    assert side.count(m.PINNED_CHUNKS) == 0
