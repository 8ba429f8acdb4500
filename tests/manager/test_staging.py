"""What users need of the way between host memory and the tiers below it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import pytest
from scripted_tier import ScriptedTier

from kvoffload.config.options import LaneOptions
from kvoffload.keys.offload_key import OffloadKey, make_offload_key
from kvoffload.manager.estimates import PrefillMeter
from kvoffload.manager.health import BreakerState
from kvoffload.manager.host_tier import HostTier
from kvoffload.manager.lane import TierLane
from kvoffload.manager.request import GroupGeometry
from kvoffload.manager.staging import LoadPolicy, Staging, StagingConfig, Want
from kvoffload.metrics import catalog as m
from kvoffload.metrics.recorder import Recorder
from kvoffload.policies.admission import TouchFilter
from kvoffload.policies.lru import LRUPolicy
from kvoffload.tiers.base import Outcome, Verb
from kvoffload.types import LookupResult, RequestId, SlotId

ROW = 4096
A, B = RequestId("a"), RequestId("b")


def keys(count: int, salt: str = "") -> list[OffloadKey]:
    return [make_offload_key(hashlib.sha256(f"{salt}{i}".encode()).digest(), 0) for i in range(count)]


@dataclass
class Bench:
    """One host tier over scripted tiers, under a clock that the test moves."""

    slots: int = 8
    tiers: list[ScriptedTier] = field(default_factory=lambda: [ScriptedTier()])
    lane: LaneOptions = field(
        default_factory=lambda: LaneOptions(deadline_s=5, retry_after_s=30, batch_bytes=2 * ROW)
    )
    config: StagingConfig = field(default_factory=lambda: StagingConfig(deadline_s=8, hold_s=20))
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.memory = bytearray(self.slots * ROW)
        self.host = HostTier(self.slots, LRUPolicy(self.slots), TouchFilter(0, 1))
        self.recorder = Recorder()
        self.prefill = PrefillMeter()
        self.lanes = [TierLane(tier, self.lane, self._row) for tier in self.tiers]
        self.staging = Staging([self.host], self.lanes, self.config, self.recorder, self.prefill)

    @property
    def tier(self) -> ScriptedTier:
        return self.tiers[0]

    def _row(self, group: int, slot: SlotId) -> memoryview:
        assert group == 0
        return memoryview(self.memory)[slot * ROW : (slot + 1) * ROW]

    def store(self, wanted: list[OffloadKey]) -> None:
        """As if the device had stored these chunks."""
        ready = self.host.commit_store(self.host.prepare_store(wanted).stored)
        self.staging.cascade(0, ready, self.now_s)

    def fetch(self, req_id: RequestId, wanted: list[OffloadKey]) -> bool:
        there = self.host.lookup_prefix(wanted)[0]
        head, missing = wanted[:there], wanted[there:]
        waiting = self.staging.fetch(
            req_id, [Want(0, missing, GroupGeometry(0, 16, 1, 16), ROW, head=head)], self.now_s
        )
        self.check()
        return waiting

    def tick(self, seconds: float = 0.0) -> None:
        self.now_s += seconds
        self.staging.tick(self.now_s)
        self.check()

    def check(self) -> None:
        self.host.check(*self.staging.in_use(0))

    def hits(self, wanted: list[OffloadKey]) -> int:
        return self.host.lookup_prefix(wanted)[0]


def test_a_stored_chunk_goes_down_to_every_tier_in_batches() -> None:
    bench = Bench(tiers=[ScriptedTier("disk"), ScriptedTier("bucket")])
    bench.store(keys(3))
    for tier in bench.tiers:
        assert [len(job.entries) for job in tier.pending(Verb.STORE)] == [2, 1]


def test_a_chunk_is_not_evicted_while_a_tier_reads_it() -> None:
    bench = Bench(slots=2)
    bench.store(keys(2))
    assert bench.host.prepare_store(keys(2, "other")).stored == ()
    bench.tier.finish(Verb.STORE)
    bench.tick()
    assert len(bench.host.prepare_store(keys(2, "other")).stored) == 2


def test_what_the_host_lost_comes_back_from_a_tier() -> None:
    bench = Bench()
    wanted = keys(4)
    bench.tier.has.update(wanted[:3])
    assert bench.fetch(A, wanted), "it is worth waiting"
    bench.tier.finish(Verb.LOAD)
    bench.tick()
    assert not bench.fetch(A, wanted)
    assert bench.hits(wanted) == 3


def test_a_lookup_that_is_not_answered_yet_is_waited_for() -> None:
    bench = Bench()
    wanted = keys(2)
    bench.tier.has.update(wanted)
    bench.tier.unsure.update(wanted)
    assert bench.fetch(A, wanted)
    assert not bench.tier.jobs
    bench.tier.unsure.clear()
    assert bench.fetch(A, wanted)
    assert len(bench.tier.pending(Verb.LOAD)) == 1


def test_the_request_is_settled_after_its_deadline_and_stays_so() -> None:
    bench = Bench()
    wanted = keys(2)
    bench.tier.has.update(wanted)
    assert bench.fetch(A, wanted)
    bench.tick(8)
    assert not bench.fetch(A, wanted), "the deadline has passed: a miss"
    assert not bench.fetch(A, wanted), "no second try for this admission"
    assert bench.recorder.value(m.PROMOTION_TIMEOUTS) <= 1


def test_a_tier_that_never_answers_lookups_is_switched_off() -> None:
    bench = Bench()
    wanted = keys(2)
    bench.tier.unsure.update(wanted)
    assert bench.fetch(A, wanted)
    bench.tick(8)
    assert not bench.fetch(A, wanted)
    asked = bench.tier.lookups
    assert not bench.fetch(B, wanted), "the next request does not wait"
    assert bench.tier.lookups == asked


def test_a_stuck_tier_costs_its_deadline_once_then_nothing_and_recovers() -> None:
    bench = Bench()
    wanted = keys(2)
    bench.tier.has.update(wanted)
    assert bench.fetch(A, wanted)
    bench.tick(5)
    assert not bench.fetch(A, wanted), "its load was given up"
    assert not bench.fetch(B, wanted), "nobody else waits"
    bench.store(keys(1, "new"))
    bench.tick(1)
    assert len(bench.tier.jobs) == 1, "stores are kept away, too"
    bench.tier.finish(Verb.LOAD)
    bench.tick(31)
    bench.store(keys(1, "probe"))
    bench.tick()
    assert bench.lanes[0].breaker.state is BreakerState.HALF_OPEN
    bench.tier.finish(Verb.STORE)
    bench.tick()
    assert bench.lanes[0].breaker.state is BreakerState.CLOSED
    bench.staging.forget(B)
    assert bench.fetch(B, wanted), "it serves again"


def test_the_slot_of_a_load_that_was_given_up_is_not_used_until_the_tier_lets_go() -> None:
    bench = Bench(slots=2)
    wanted = keys(2)
    bench.tier.has.update(wanted)
    bench.fetch(A, wanted)
    bench.tick(5)
    assert bench.host.prepare_store(keys(2, "other")).stored == (), "the tier may still write there"
    bench.tier.finish(Verb.LOAD)
    bench.tick()
    assert bench.hits(wanted) == 0, "a late load is not published"
    assert len(bench.host.prepare_store(keys(2, "other")).stored) == 2


def test_two_requests_share_one_promotion() -> None:
    bench = Bench()
    wanted = keys(3)
    bench.tier.has.update(wanted)
    assert bench.fetch(A, wanted)
    assert bench.fetch(B, wanted)
    assert len(bench.tier.pending(Verb.LOAD)) == 1
    bench.tier.finish(Verb.LOAD)
    bench.tick()
    assert not bench.fetch(B, wanted)
    assert not bench.fetch(A, wanted)


def test_a_promotion_does_not_evict_what_another_waiting_request_has_just_got() -> None:
    bench = Bench(slots=4)
    first, second = keys(4, "first"), keys(4, "second")
    bench.tier.has.update(first + second)
    bench.fetch(A, first)
    bench.tier.finish(Verb.LOAD)
    bench.tick()
    assert not bench.fetch(B, second), "there is no room that nobody needs"
    assert bench.hits(first) == 4
    bench.staging.forget(A)
    bench.staging.forget(B)
    assert bench.fetch(B, second)


def test_what_is_held_for_a_request_that_never_comes_is_let_go_after_a_while() -> None:
    bench = Bench(slots=2)
    wanted = keys(2)
    bench.tier.has.update(wanted)
    bench.fetch(A, wanted)
    bench.tier.finish(Verb.LOAD)
    bench.tick()
    assert bench.host.pinned_count == 2
    bench.tick(20)
    assert bench.host.pinned_count == 0


def test_a_prefix_that_does_not_fit_is_promoted_from_its_beginning() -> None:
    bench = Bench(slots=2)
    wanted = keys(5)
    bench.tier.has.update(wanted)
    assert bench.fetch(A, wanted)
    (job,) = bench.tier.pending(Verb.LOAD)
    assert [entry.key for entry in job.entries] == wanted[:2]


def test_the_promotion_ends_at_the_first_chunk_that_no_tier_has() -> None:
    bench = Bench()
    wanted = keys(5)
    bench.tier.has.update(wanted[:2] + wanted[3:])
    assert bench.fetch(A, wanted)
    (job,) = bench.tier.pending(Verb.LOAD)
    assert [entry.key for entry in job.entries] == wanted[:2]


def test_each_chunk_comes_from_the_first_tier_that_has_it() -> None:
    disk, bucket = ScriptedTier("disk"), ScriptedTier("bucket")
    bench = Bench(tiers=[disk, bucket])
    wanted = keys(3)
    disk.has.update(wanted[:1])
    bucket.has.update(wanted)
    assert bench.fetch(A, wanted)
    assert [e.key for e in disk.pending(Verb.LOAD)[0].entries] == wanted[:1]
    assert [e.key for e in bucket.pending(Verb.LOAD)[0].entries] == wanted[1:]


def test_what_comes_from_a_slower_tier_is_offered_to_the_faster_ones() -> None:
    near, far, farther = (ScriptedTier(name) for name in ("disk", "bucket", "tape"))
    bench = Bench(tiers=[near, far, farther])
    wanted = keys(4)
    near.has.update(wanted[:1])
    far.has.update(wanted[1:3])
    far.has.update(wanted[3:])
    bench.fetch(A, wanted)
    near.finish(Verb.LOAD)
    far.finish(Verb.LOAD, {wanted[3]: Outcome.CORRUPT})
    bench.tick()
    bench.tick()
    offered = [entry.key for job in near.pending(Verb.STORE) for entry in job.entries]
    assert sorted(offered) == sorted(wanted[1:3])
    assert not far.pending(Verb.STORE)
    assert not farther.pending(Verb.STORE)
    assert bench.recorder.value(m.READ_THROUGH_CHUNKS, tier="disk") == 2
    near.finish(Verb.STORE)
    bench.tick()
    bench.staging.forget(A)
    assert near.has >= set(wanted[:3])
    assert bench.host.prepare_store(keys(8, "other")).stored, "slots of what was offered are free again"


def test_a_faster_tier_under_pressure_is_not_offered_what_comes_from_a_slower_one() -> None:
    near, far = ScriptedTier("disk"), ScriptedTier("bucket")
    bench = Bench(
        tiers=[near, far],
        lane=LaneOptions(deadline_s=5, retry_after_s=30, batch_bytes=ROW, max_queued_bytes=ROW),
    )
    near.refuses = True
    wanted = keys(4)
    far.has.update(wanted)
    bench.fetch(A, wanted)
    far.finish(Verb.LOAD)
    bench.tick()
    assert bench.recorder.value(m.READ_THROUGH_CHUNKS, tier="disk") == 1
    bench.staging.forget(A)
    assert bench.hits(wanted) == 4


@pytest.mark.parametrize("outcome", [Outcome.MISSING, Outcome.CORRUPT, Outcome.FAILED])
def test_a_chunk_that_does_not_come_is_a_miss_and_its_slot_is_free(outcome: Outcome) -> None:
    bench = Bench(slots=4)
    wanted = keys(4)
    bench.tier.has.update(wanted)
    bench.fetch(A, wanted)
    bench.tier.finish(Verb.LOAD, {wanted[2]: outcome})
    bench.tick()
    assert not bench.fetch(A, wanted)
    assert bench.hits(wanted) == 2
    bench.staging.forget(A)
    assert bench.host.lookup(wanted[2]) is LookupResult.MISS
    assert len(bench.host.prepare_store(keys(1, "x")).stored) == 1


def test_a_refused_load_is_a_miss_at_once() -> None:
    bench = Bench()
    wanted = keys(2)
    bench.tier.has.update(wanted)
    bench.tier.refuses = True
    assert not bench.fetch(A, wanted)
    assert bench.hits(wanted) == 0


def test_failures_in_a_row_open_the_breaker_and_queued_stores_are_dropped_and_counted() -> None:
    bench = Bench(
        slots=64, lane=LaneOptions(failures_to_open=3, batch_bytes=ROW, max_store_bytes_in_flight=ROW)
    )
    bench.store(keys(10))
    for _ in range(3):
        bench.tier.finish(Verb.STORE, Outcome.FAILED)
        bench.tick()
    assert bench.lanes[0].breaker.state is BreakerState.OPEN
    assert bench.recorder.value(m.CASCADE_DROPPED_CHUNKS, tier="disk") >= 6
    assert bench.host.pinned_count == 0
    assert bench.recorder.value(m.TIER_CHUNKS, tier="disk", verb="store", outcome="failed") == 3


def test_the_queue_of_a_slow_tier_is_bounded_and_what_does_not_fit_is_counted() -> None:
    lane = LaneOptions(batch_bytes=ROW, max_store_bytes_in_flight=ROW, max_queued_bytes=4 * ROW)
    bench = Bench(slots=200, lane=lane)
    bench.store(keys(200))
    assert bench.lanes[0].queued_bytes <= 4 * ROW
    dropped = bench.recorder.value(m.CASCADE_DROPPED_CHUNKS, tier="disk")
    assert dropped == 200 - 4
    assert bench.host.pinned_count == 4, "the rest may be evicted"
    while bench.staging.busy:
        bench.tier.finish(Verb.STORE)
        bench.tick(2)
    assert len(bench.tier.has) == 4
    assert bench.host.pinned_count == 0
    bench.store(keys(1, "later"))
    assert len(bench.tier.pending(Verb.STORE)) == 1, "it has recovered"


def test_a_load_does_not_wait_behind_queued_stores() -> None:
    bench = Bench(slots=64, lane=LaneOptions(batch_bytes=ROW, max_store_bytes_in_flight=ROW))
    bench.store(keys(10, "s"))
    wanted = keys(1)
    bench.tier.has.update(wanted)
    assert bench.fetch(A, wanted)
    assert len(bench.tier.pending(Verb.LOAD)) == 1


def test_what_takes_longer_than_recomputing_is_not_loaded_and_is_measured_again_later() -> None:
    bench = Bench(config=StagingConfig(deadline_s=8, remeasure_s=60))
    bench.prefill.step(0.0, 1000)
    bench.prefill.step(1.0, 0)  # 1000 tokens a second: a chunk of 16 takes 16 ms
    first, second, third = keys(1, "1"), keys(1, "2"), keys(1, "3")
    bench.tier.has.update(first + second + third)
    assert bench.fetch(A, first), "nothing is known yet: try"
    bench.tick(1)
    bench.tier.finish(Verb.LOAD)
    bench.tick()
    assert not bench.fetch(B, second), "a second for what takes 16 ms to compute"
    assert bench.recorder.value(m.PROMOTION_SKIPPED_CHUNKS) == 1
    bench.tick(60)
    assert bench.fetch(RequestId("c"), third), "it may have become faster"


@pytest.mark.parametrize(("policy", "expected"), [(LoadPolicy.ALWAYS, True), (LoadPolicy.NEVER, False)])
def test_the_choice_between_loading_and_recomputing_can_be_switched_off(
    policy: LoadPolicy, expected: bool
) -> None:
    bench = Bench(config=StagingConfig(load_policy=policy))
    bench.prefill.step(0.0, 1_000_000)
    bench.prefill.step(0.001, 0)
    bench.lanes[0].load_meter.add(ROW, 10.0)
    wanted = keys(1)
    bench.tier.has.update(wanted)
    assert bench.fetch(A, wanted) is expected


def test_reset_clears_all_tiers_and_nothing_in_flight_comes_back() -> None:
    bench = Bench(slots=64, lane=LaneOptions(batch_bytes=ROW, max_store_bytes_in_flight=ROW))
    wanted = keys(2, "w")
    bench.tier.has.update(wanted)
    bench.store(keys(5))
    bench.fetch(A, wanted)
    assert bench.staging.reset() == {"disk": True}
    bench.host.clear()
    bench.check()
    bench.tier.finish(Verb.LOAD)
    bench.tick()
    assert bench.hits(wanted) == 0
    assert not bench.lanes[0].queued_bytes


def test_tiers_own_counters_reach_the_metrics_and_only_rise() -> None:
    bench = Bench()
    bench.tier.has.update(keys(1))
    bench.fetch(A, keys(1))
    bench.tick(2)
    first = bench.recorder.value(m.TIER_EVENTS, tier="disk", event="lookups")
    bench.tier.lookups = 0  # a tier that was opened anew
    bench.tick(2)
    assert bench.recorder.value(m.TIER_EVENTS, tier="disk", event="lookups") >= first > 0


def slicing_bench() -> Bench:
    return Bench(slots=20, config=StagingConfig(deadline_s=8, slice_chunks=4))


def test_a_long_prompt_is_reserved_as_a_whole_and_handed_over_in_slices() -> None:
    bench, wanted = slicing_bench(), keys(10)
    bench.tier.has.update(wanted)
    sizes = []
    while len(sizes) < 3:
        assert bench.fetch(A, wanted)
        sizes.append([len(job.entries) for job in bench.tier.pending(Verb.LOAD)])
        assert len(bench.staging.in_use(0)[0]) == 10
    assert sizes == [[4], [4, 4], [4, 4, 2]]
    while bench.tier.pending(Verb.LOAD):
        bench.tier.finish(Verb.LOAD)
    bench.tick()
    assert not bench.fetch(A, wanted)
    assert bench.hits(wanted) == 10


def test_what_was_not_handed_over_is_free_again_when_its_request_goes() -> None:
    bench, wanted = slicing_bench(), keys(10)
    bench.tier.has.update(wanted)
    bench.fetch(A, wanted)
    bench.staging.forget(A)
    bench.check()
    assert len(bench.staging.in_use(0)[0]) == 4


def test_a_deadline_ends_the_handing_over() -> None:
    bench, wanted = slicing_bench(), keys(10)
    bench.tier.has.update(wanted)
    bench.fetch(A, wanted)
    bench.now_s += 8
    assert not bench.fetch(A, wanted)
    assert len(bench.staging.in_use(0)[0]) <= 8


def test_behind_a_refused_slice_nothing_is_loaded() -> None:
    bench, wanted = slicing_bench(), keys(10)
    bench.tier.has.update(wanted)
    bench.fetch(A, wanted)
    bench.tier.refuses = True
    assert bench.fetch(A, wanted)
    bench.tier.finish(Verb.LOAD)
    bench.tick()
    assert not bench.fetch(A, wanted)
    assert bench.hits(wanted) == 4
    assert not bench.staging.in_use(0)[0]


def test_a_request_that_the_engine_does_not_ask_for_keeps_no_slots_beyond_its_deadline() -> None:
    bench, wanted = slicing_bench(), keys(10)
    bench.tier.has.update(wanted)
    bench.fetch(A, wanted)
    bench.tier.refuses = True
    for _ in range(3):
        bench.tick(5)
    assert len(bench.staging.in_use(0)[0]) == 4, "only what the tier still has"
    assert bench.lanes[0].breaker.times_opened == 1, (
        "for the job that is late, and not for the engine's silence"
    )


def test_a_request_that_the_engine_does_not_ask_for_is_loaded_all_the_same() -> None:
    bench, wanted = slicing_bench(), keys(10)
    bench.tier.has.update(wanted)
    bench.fetch(A, wanted)
    for _ in range(4):
        if bench.tier.pending(Verb.LOAD):
            bench.tier.finish(Verb.LOAD)
        bench.tick(0.1)
    assert bench.hits(wanted) == 10
    assert not bench.fetch(A, wanted)


def test_a_slice_that_a_full_tier_refuses_waits_until_there_is_room() -> None:
    bench, wanted = slicing_bench(), keys(10)
    bench.tier.has.update(wanted)
    bench.fetch(A, wanted)
    bench.tier.refuses = True
    assert bench.fetch(A, wanted)
    bench.tier.refuses = False
    while bench.fetch(A, wanted):
        bench.tier.finish(Verb.LOAD)
        bench.tick(0.1)
    assert bench.hits(wanted) == 10


def test_slices_behind_each_other_do_not_make_a_tier_look_slow() -> None:
    bench, wanted = slicing_bench(), keys(12)
    bench.tier.has.update(wanted)
    for _ in range(3):
        bench.fetch(A, wanted)
    for _ in range(3):
        bench.now_s += 1.0
        bench.tier.finish(Verb.LOAD)
        bench.tick()
    assert bench.lanes[0].load_meter.bytes_per_s == pytest.approx(4 * ROW)


def test_what_the_host_has_of_a_request_is_not_evicted_to_bring_another_ones_chunks() -> None:
    bench = Bench(slots=8)
    first, second = keys(6, "first"), keys(6, "second")
    bench.host.commit_store(bench.host.prepare_store(first[:4]).stored)
    bench.tier.has.update(first + second)
    assert bench.fetch(A, first)
    bench.tier.finish(Verb.LOAD)
    bench.tick()
    bench.fetch(B, second)
    assert not bench.fetch(A, first)
    assert bench.hits(first) == 6
