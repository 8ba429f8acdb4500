"""What a request may ask of the cache, through the manager: skip, tiers, priorities, pins for a time, times to live."""

from __future__ import annotations

import itertools
import logging

import pytest
from scheduler_side import TOKENS_PER_BLOCK, SchedulerSide, keys_of, run
from scripted_tier import ScriptedTier

from kvoffload.config.options import LaneOptions
from kvoffload.manager.host_tier import HostTier
from kvoffload.manager.lane import TierLane
from kvoffload.manager.retention import Shares
from kvoffload.manager.settings import Below
from kvoffload.manager.staging import LoadPolicy, StagingConfig
from kvoffload.manager.wishes import NO_WISHES, Priority, Stay, Wishes
from kvoffload.metrics import catalog as m
from kvoffload.policies.admission import TouchFilter
from kvoffload.policies.lru import LRUPolicy
from kvoffload.types import LookupResult, RequestId

HIGH, LOW = Wishes(Stay(Priority.HIGH)), Wishes(Stay(Priority.LOW))


def pinned(seconds: float) -> Wishes:
    return Wishes(Stay(keep_s=seconds))


def living(seconds: float) -> Wishes:
    return Wishes(Stay(ttl_s=seconds))


def serve(side: SchedulerSide, req_id: str, text: str, wishes: Wishes = NO_WISHES) -> int:
    """A request comes, is served from the cache as far as that goes, computes the rest and ends. Returns loaded tokens."""
    blocks = range(1, len(text) + 1)
    side.add(req_id, text, wishes=wishes)
    found = side.match(req_id)
    assert found is not None
    side.allocate(req_id, blocks, load=found)
    if found:
        side.report(*side.step().loads)
    tokens = len(text) * TOKENS_PER_BLOCK
    for job in side.step(run(req_id, blocks, tokens - found, computed=found)).stores:
        side.report(job)
    side.finish(req_id, tokens)
    return found


def has(side: SchedulerSide, text: str) -> bool:
    """Whether the host has all of it."""
    return all(side.tier.lookup(key) is LookupResult.HIT for key in keys_of(text))


NEW = (chr(number) for number in itertools.count(0x4E00))


def flood(side: SchedulerSide, prompts: int) -> None:
    """So many prompts of four chunks come that nobody has seen before."""
    for letter in itertools.islice(NEW, prompts):
        serve(side, f"flood {letter}", f"{letter}xyz")


def offered(side: SchedulerSide, text: str) -> int | None:
    """What a request with that prompt would be offered."""
    side.add("asks", text)
    return side.manager.match(RequestId("asks"), 0)


# -- skip ------------------------------------------------------------------------------------------------------------


def test_a_skipped_request_leaves_no_trace() -> None:
    side = SchedulerSide(num_slots=8)
    serve(side, "a", "abcd")
    serve(side, "b", "wxyz")
    order = list(side.tier._policy.normal._order)  # type: ignore[attr-defined]
    before = side.recorder.values()
    side.add("s", "abcz", skip_load=True, max_offload_tokens=0)
    assert side.match("s") == 0
    side.allocate("s", [1, 2, 3, 4])
    assert not side.step(run("s", [1, 2, 3, 4], 16)).stores
    assert not side.finish("s", 16).stores
    assert list(side.tier._policy.normal._order) == order  # type: ignore[attr-defined]
    changed = {name for name, value in side.recorder.values().items() if value != before[name]}
    assert changed <= {m.PREFILL_TOKENS_PER_SECOND.name}


# -- priorities ------------------------------------------------------------------------------------------------------


def test_high_outlives_normal_and_normal_outlives_low() -> None:
    side = SchedulerSide(num_slots=12)
    serve(side, "h", "high", HIGH)
    serve(side, "n", "norm")
    serve(side, "l", "lows", LOW)
    flood(side, 1)
    assert (has(side, "high"), has(side, "norm"), has(side, "lows")) == (True, True, False)
    flood(side, 2)
    assert (has(side, "high"), has(side, "norm")) == (True, False)
    flood(side, 30)
    assert has(side, "high")


def test_high_chunks_beyond_their_share_are_normal_and_the_latest_stay_high() -> None:
    side = SchedulerSide(num_slots=16)
    for number in range(6):
        serve(side, f"h{number}", f"h{number}xy", HIGH)
    flood(side, 20)
    assert [has(side, f"h{number}xy") for number in range(6)] == [False] * 4 + [True] * 2


def test_high_chunks_of_all_the_tier_starve_nobody() -> None:
    side = SchedulerSide(num_slots=4)
    serve(side, "h", "abcd", HIGH)
    serve(side, "n", "efgh")
    assert has(side, "efgh")


def test_a_shared_chunk_has_the_highest_of_its_priorities() -> None:
    side = SchedulerSide(num_slots=12)
    serve(side, "h", "abcd", HIGH)
    serve(side, "l", "abcd", LOW)
    serve(side, "l2", "efgh", LOW)
    serve(side, "n", "efgh")
    serve(side, "l3", "ijkl", LOW)
    flood(side, 1)
    assert (has(side, "abcd"), has(side, "efgh"), has(side, "ijkl")) == (True, True, False)
    flood(side, 9)
    assert (has(side, "abcd"), has(side, "efgh")) == (True, False)


def test_of_a_prompt_that_changes_its_priority_the_end_still_goes_first() -> None:
    tier = HostTier(4, LRUPolicy(4), TouchFilter(0, 1), Shares(high=1.0))
    prompt, other = keys_of("abc"), keys_of("xyz")
    tier.commit_store(tier.prepare_store(prompt).stored)
    tier.retain(prompt, {}, Stay(Priority.HIGH), 0.0)
    assert tier.prepare_store(other).evicted == (prompt[2], prompt[1])


# -- pins for a time -------------------------------------------------------------------------------------------------


def test_pinned_chunks_survive_a_flood_until_their_time_is_over() -> None:
    side = SchedulerSide(num_slots=8)
    serve(side, "p", "abcd", pinned(600))
    flood(side, 10)
    assert side.count(m.KEPT_CHUNKS) == 4
    assert serve(side, "again", "abcd") == 16
    side.clock.advance(599)
    flood(side, 10)
    assert has(side, "abcd")
    side.clock.advance(1)
    flood(side, 10)
    assert not has(side, "abcd")
    assert side.count(m.KEPT_CHUNKS) == 0
    assert side.count(m.PIN_REFUSED_CHUNKS) == 0


def test_who_pins_again_refreshes_and_a_shorter_pin_takes_nothing_away() -> None:
    side = SchedulerSide(num_slots=8)
    serve(side, "p", "abcd", pinned(100))
    side.clock.advance(90)
    serve(side, "q", "abcd", pinned(100))
    serve(side, "r", "abcd", pinned(1))
    side.clock.advance(90)
    flood(side, 10)
    assert has(side, "abcd")
    side.clock.advance(10)
    flood(side, 10)
    assert not has(side, "abcd")


def test_beyond_the_share_pins_are_refused_counted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    side = SchedulerSide(num_slots=12)
    serve(side, "p", "abcdefgh", pinned(600))
    serve(side, "q", "ijkl", pinned(600))
    assert side.count(m.KEPT_CHUNKS) == 6
    assert side.count(m.PIN_REFUSED_CHUNKS) == 2 + 4
    assert sum("max_pinned_share" in record.getMessage() for record in caplog.records) == 1
    flood(side, 10)
    assert has(side, "abcdef")
    assert not has(side, "g")


def test_a_reset_unpins() -> None:
    side = SchedulerSide(num_slots=8)
    serve(side, "p", "abcd", pinned(600))
    side.manager.reset()
    side.step()
    assert side.count(m.KEPT_CHUNKS) == 0
    serve(side, "p2", "efgh", pinned(600))
    assert side.count(m.KEPT_CHUNKS) == 4


# -- times to live ---------------------------------------------------------------------------------------------------


def test_chunks_are_not_served_after_their_time_to_live_even_if_nothing_happened_since() -> None:
    side = SchedulerSide(num_slots=8)
    serve(side, "t", "abcd", living(60))
    side.clock.advance(59)
    assert offered(side, "abcd") == 16
    side.clock.advance(1)
    assert offered(side, "abcd") == 0
    assert side.count(m.EXPIRED_CHUNKS) == 4
    side.step()
    assert side.count(m.RESIDENT_CHUNKS) == 0


def test_a_load_that_runs_when_the_time_is_over_ends_normally() -> None:
    side = SchedulerSide(num_slots=8)
    serve(side, "t", "abcd", living(60))
    side.add("u", "abcd")
    assert side.match("u") == 16
    side.allocate("u", [1, 2, 3, 4], load=16)
    (load,) = side.step().loads
    side.clock.advance(60)
    side.step()
    side.report(load)
    side.step()
    assert not has(side, "a")
    assert side.tier.pinned_count == 0


def test_what_is_being_written_when_its_time_is_over_does_not_appear() -> None:
    side = SchedulerSide(num_slots=8)
    side.add("t", "ab", wishes=living(60))
    assert side.match("t") == 0
    side.allocate("t", [1, 2])
    (job,) = side.step(run("t", [1, 2], 8)).stores
    side.clock.advance(60)
    side.step()
    side.report(job)
    assert not has(side, "a")
    side.finish("t", 8)


@pytest.mark.parametrize("longer", [Wishes(), living(120)])
@pytest.mark.parametrize("longer_first", [True, False])
def test_of_a_shared_chunk_the_longer_wish_holds(longer: Wishes, longer_first: bool) -> None:
    side = SchedulerSide(num_slots=8)
    wishes = [longer, living(60)] if longer_first else [living(60), longer]
    serve(side, "a", "abcd", wishes[0])
    serve(side, "b", "abzz", wishes[1])
    side.clock.advance(61)
    side.step()
    assert has(side, "ab")
    assert has(side, "abcd") == longer_first
    side.clock.advance(60)
    side.step()
    assert has(side, "ab") == (longer == Wishes())


# -- tiers -----------------------------------------------------------------------------------------------------------


class Tiered(SchedulerSide):
    """Two scripted tiers below the host."""

    def __init__(self) -> None:
        self.lower = [ScriptedTier("one"), ScriptedTier("two")]
        row = bytearray(16)
        lanes = tuple(TierLane(tier, LaneOptions(), lambda *_: memoryview(row)) for tier in self.lower)
        super().__init__(num_slots=8, below=Below(lanes, StagingConfig(LoadPolicy.ALWAYS), row_bytes=(16,)))


def test_chunks_go_to_the_tiers_that_their_request_names() -> None:
    for names in (None, {"two"}, set()):
        side = Tiered()
        serve(side, "a", "abcd", Wishes(store_tiers=None if names is None else frozenset(names)))
        stored = {tier.name for tier in side.lower if tier.jobs}
        assert stored == ({"one", "two"} if names is None else names)


def test_chunks_with_a_time_to_live_go_to_no_tier() -> None:
    side = Tiered()
    serve(side, "a", "abcd", living(60))
    assert not any(tier.jobs for tier in side.lower)


def test_a_request_asks_only_the_tiers_that_it_names() -> None:
    for names, waits in ((None, True), ({"one"}, False), ({"two"}, True), (set(), False)):
        side = Tiered()
        side.lower[1].has = set(keys_of("abcd"))
        side.add("a", "abcd", wishes=Wishes(load_tiers=None if names is None else frozenset(names)))
        assert side.manager.match(RequestId("a"), 0) == (None if waits else 0)
        assert bool(side.lower[1].jobs) == waits
