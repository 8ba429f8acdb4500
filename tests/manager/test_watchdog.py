"""The watchdog speaks when much is stored and nothing is loaded, says why, and is silent otherwise."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_side import TOKENS_PER_BLOCK, SchedulerSide, keys_of, run
from scripted_tier import ScriptedTier

from kvoffload.config.options import LaneOptions
from kvoffload.manager.lane import TierLane
from kvoffload.manager.staging import LoadPolicy
from kvoffload.manager.watchdog import Admitted, Cause, Watchdog, WatchdogConfig, watchdog_over
from kvoffload.metrics import catalog as m
from kvoffload.metrics.recorder import Recorder

CAPACITY = 200
CONFIG = WatchdogConfig(min_share=0.5, min_chunks=64, min_requests=50, quiet_s=300, period_s=3600)


class Yard:
    """A watchdog and an engine whose counters the test moves."""

    def __init__(self, *, siblings: int = 0, never_loads: bool = False, capacity: int = CAPACITY) -> None:
        self.recorder = Recorder()
        self.dog = Watchdog(self.recorder, capacity, CONFIG, lambda: siblings, never_loads=never_loads)
        self.now_s = 0.0
        self.dog.look(self.now_s)

    def go_on(
        self,
        *,
        stored: int = 0,
        requests: Sequence[tuple[Admitted, int]] = (),
        loaded: int = 0,
        seconds: float = 301,
    ) -> Cause | None:
        self.recorder.count(m.STORED_CHUNKS, stored)
        self.recorder.count(m.LOADED_CHUNKS, loaded)
        for why, number in requests:
            for _ in range(number):
                self.dog.note(why)
        self.now_s += seconds
        return self.dog.look(self.now_s)

    def warnings(self) -> float:
        series = self.recorder.values().items()
        return sum(value for name, value in series if name.startswith(m.USELESS_STORE_WARNINGS.name))


MUCH = CAPACITY
NEW = [(Admitted.UNSEEN, 60)]


# -- each cause ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("why", "cause", "word"),
    [
        (Admitted.UNSEEN, Cause.NEVER_REPEATED, "do not repeat"),
        (Admitted.EVICTED, Cause.TOO_SMALL, "cpu_bytes_to_use"),
        (Admitted.SKIPPED, Cause.REQUESTS_SKIP, "max_load_tokens"),
        (Admitted.SHORT, Cause.SHORT_PROMPTS, "blocks_per_chunk"),
        (Admitted.ON_DEVICE, Cause.DEVICE_SERVES, "prefix cache"),
        (Admitted.NOT_TAKEN, Cause.NOT_TAKEN, "kvoffload_pending_timeouts"),
    ],
)
def test_most_requests_tell_the_cause(
    why: Admitted, cause: Cause, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    yard = Yard()
    assert yard.go_on(stored=MUCH, requests=[(why, 40), (Admitted.UNSEEN, 20)]) is cause
    (record,) = caplog.records
    assert word in record.getMessage()
    assert "200 chunks were stored" in record.getMessage()
    assert "\n" not in record.getMessage()
    assert yard.recorder.value(m.USELESS_STORE_WARNINGS, cause=cause.value) == yard.warnings() == 1


def test_some_evicted_too_early_say_more_than_many_new_ones() -> None:
    assert (
        Yard().go_on(stored=MUCH, requests=[(Admitted.UNSEEN, 90), (Admitted.EVICTED, 10)]) is Cause.TOO_SMALL
    )
    assert (
        Yard().go_on(stored=MUCH, requests=[(Admitted.UNSEEN, 91), (Admitted.EVICTED, 9)])
        is Cause.NEVER_REPEATED
    )


def test_other_namespaces_explain_why_nothing_is_found_but_not_why_it_was_evicted() -> None:
    assert Yard(siblings=3).go_on(stored=MUCH, requests=NEW) is Cause.OTHER_NAMESPACES
    assert Yard(siblings=3).go_on(stored=MUCH, requests=[(Admitted.EVICTED, 60)]) is Cause.TOO_SMALL


def test_a_load_policy_that_forbids_loads_or_finds_them_slow_is_named() -> None:
    assert Yard(never_loads=True).go_on(stored=MUCH, requests=[(Admitted.EVICTED, 60)]) is Cause.LOAD_POLICY
    yard = Yard()
    yard.recorder.count(m.PROMOTION_SKIPPED_CHUNKS, 5)
    assert yard.go_on(stored=MUCH, requests=NEW) is Cause.LOAD_POLICY


@pytest.mark.parametrize("of_a_tier", [False, True])
def test_loads_that_all_fail_are_named_first(of_a_tier: bool) -> None:
    yard = Yard()
    if of_a_tier:
        yard.recorder.count(m.TIER_CHUNKS, 3, tier="fs", verb="store", outcome="failed")
        assert yard.go_on(stored=MUCH, requests=NEW) is Cause.NEVER_REPEATED
        yard.recorder.count(m.TIER_CHUNKS, 3, tier="fs", verb="load", outcome="failed")
    else:
        yard.recorder.count(m.LOAD_FAILED_CHUNKS, 3)
    assert yard.go_on(stored=MUCH, requests=NEW, seconds=4000) is Cause.LOADS_FAIL


# -- no false alarms -------------------------------------------------------------------------------------------------


def test_while_anything_is_loaded_nothing_is_said() -> None:
    yard = Yard()
    for _ in range(20):
        assert yard.go_on(stored=MUCH, requests=NEW, loaded=1) is None
    assert yard.go_on(stored=MUCH, requests=NEW) is Cause.NEVER_REPEATED


@pytest.mark.parametrize(
    "less",
    [
        {"stored": 99, "requests": NEW},
        {"stored": MUCH, "requests": [(Admitted.UNSEEN, 49)]},
        {"stored": MUCH, "requests": NEW, "seconds": 299},
    ],
    ids=["few chunks", "few requests", "a short time"],
)
def test_little_says_nothing(less: dict) -> None:
    yard = Yard()
    assert yard.go_on(**less) is None
    assert yard.warnings() == 0
    assert yard.go_on(stored=1, requests=[(Admitted.UNSEEN, 1)], seconds=2) is Cause.NEVER_REPEATED


def test_a_small_host_is_not_suspected_for_a_few_chunks() -> None:
    yard = Yard(capacity=10)
    assert yard.go_on(stored=63, requests=NEW) is None
    assert yard.go_on(stored=1, requests=NEW) is Cause.NEVER_REPEATED


def test_an_idle_engine_is_left_alone_and_a_period_has_one_warning() -> None:
    yard = Yard()
    assert yard.go_on(stored=MUCH, requests=NEW) is not None
    for _ in range(30):
        assert yard.go_on(seconds=3000) is None
    assert yard.go_on(stored=MUCH, requests=NEW) is not None
    for _ in range(11):
        assert yard.go_on(stored=MUCH, requests=NEW, seconds=301) is None
    assert yard.go_on(stored=MUCH, requests=NEW, seconds=301) is not None
    assert yard.warnings() == 3


def test_after_a_reset_it_begins_anew() -> None:
    yard = Yard()
    yard.dog.evicted(keys_of("abc"))
    assert yard.go_on(stored=MUCH, requests=NEW, seconds=200) is None
    yard.dog.reset()
    assert not yard.dog.was_evicted(keys_of("a")[0])
    assert yard.go_on(seconds=200) is None
    assert yard.go_on(seconds=301) is None
    assert yard.warnings() == 0


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 300), st.integers(0, 80), st.sampled_from([0, 0, 0, 1]), st.integers(0, 900))
    )
)
def test_it_never_speaks_without_enough_stores_since_the_last_load_or_warning(events: list) -> None:
    yard = Yard()
    stored = requests = 0
    quiet_since = said = float("-inf")
    quiet_since = 0.0
    for more, admitted, loaded, seconds in events:
        stored, requests = stored + more, requests + admitted
        spoke = yard.go_on(
            stored=more, requests=[(Admitted.UNSEEN, admitted)], loaded=loaded, seconds=max(1, seconds)
        )
        if spoke is not None:
            assert stored >= 100
            assert requests >= 50
            assert yard.now_s - quiet_since >= 300
            assert yard.now_s - said >= 3600
            assert not loaded
            said = yard.now_s
        if spoke is not None or loaded:
            stored = requests = 0
            quiet_since = yard.now_s


# -- its memory ------------------------------------------------------------------------------------------------------


def test_what_it_remembers_of_evicted_chunks_is_bounded_and_the_latest() -> None:
    yard = Yard(capacity=10)
    keys = [keys_of(chr(0x4E00 + number))[0] for number in range(1000)]
    for key in keys:
        yard.dog.evicted([key])
    remembered = [key for key in keys if yard.dog.was_evicted(key)]
    assert 20 <= len(remembered) <= 60
    assert remembered == keys[-len(remembered) :]


# -- through the manager ---------------------------------------------------------------------------------------------


def admitted(side: SchedulerSide) -> dict[Admitted, int]:
    return dict(side.manager._watchdog._admitted)


def serve(side: SchedulerSide, req_id: str, text: str, *, computed: int = 0, **info: object) -> None:
    side.add(req_id, text, **info)
    blocks = range(1, max(1, len(text)) + 1)
    found = side.match(req_id, computed) or 0
    side.allocate(req_id, blocks, computed=computed, load=found)
    if found:
        side.report(*side.step().loads)
    tokens = max(1, len(text) * TOKENS_PER_BLOCK)
    for job in side.step(run(req_id, blocks, tokens - computed - found, computed=computed + found)).stores:
        side.report(job)
    side.finish(req_id, tokens)


def test_the_manager_tells_why_a_request_loads_nothing() -> None:
    side = SchedulerSide(num_slots=4)
    side.step()
    serve(side, "new", "abcd")
    assert admitted(side) == {Admitted.UNSEEN: 1}
    serve(side, "hit", "abcd")
    assert admitted(side) == {Admitted.UNSEEN: 1}
    serve(side, "device", "abcd", computed=16)
    serve(side, "skip", "abcd", skip_load=True)
    serve(side, "limit", "abcd", max_load_tokens=TOKENS_PER_BLOCK - 1)
    serve(side, "short", "", num_prompt_tokens=3)
    serve(side, "other", "wxyz")
    serve(side, "again", "abcd")
    assert admitted(side) == {
        Admitted.UNSEEN: 2,
        Admitted.ON_DEVICE: 1,
        Admitted.SKIPPED: 2,
        Admitted.SHORT: 1,
        Admitted.EVICTED: 1,
    }


def test_an_engine_that_only_stores_is_warned_of_through_the_manager(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    side = SchedulerSide(num_slots=8)
    side.step()
    for number in range(60):
        serve(side, f"r{number}", chr(0x4E00 + number) + "xy")
    side.clock.advance(301)
    side.step()
    assert side.recorder.value(m.USELESS_STORE_WARNINGS, cause="never_repeated") == 1
    assert sum("none was loaded" in record.getMessage() for record in caplog.records) == 1


def test_it_asks_the_tiers_for_other_namespaces_only_when_it_speaks() -> None:
    tier = ScriptedTier()
    tier.other_namespaces = 2
    lane = TierLane(tier, LaneOptions(), lambda *_: memoryview(b""))
    recorder = Recorder()
    dog = watchdog_over(recorder, CAPACITY, [lane], LoadPolicy.AUTO)
    dog.look(0.0)
    for _ in range(60):
        dog.note(Admitted.UNSEEN)
    recorder.count(m.STORED_CHUNKS, MUCH)
    assert dog.look(200.0) is None
    assert dog.look(301.0) is Cause.OTHER_NAMESPACES
