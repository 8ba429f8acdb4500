"""A model with full attention, a window and recurrent states, without an engine: what is stored, loaded and awaited.

A letter is a block of 4 tokens. The window is 6 tokens, so 2 blocks at most are within reach of a boundary.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from scheduler_side import SchedulerSide, keys_of
from scripted_tier import ScriptedTier

from kvoffload.config.options import LaneOptions
from kvoffload.keys.offload_key import OffloadKey
from kvoffload.manager.lane import TierLane
from kvoffload.manager.request import GroupGeometry
from kvoffload.manager.settings import Below
from kvoffload.manager.staging import LoadPolicy, StagingConfig
from kvoffload.manager.step import ScheduledRequest
from kvoffload.messages import NO_SLOT, CopyJob
from kvoffload.tiers.base import Verb
from kvoffload.types import BlockId, RequestId

FULL, WINDOW, STATE = 0, 1, 2
GEOMETRIES = [
    GroupGeometry(0, 4, 1, 4),
    GroupGeometry(1, 4, 1, 4, reach_tokens=5),
    GroupGeometry(3, 4, 1, 4, reach_tokens=1, is_state=True),
]
Table = Sequence[int]


@pytest.fixture
def side() -> SchedulerSide:
    return SchedulerSide(geometries=GEOMETRIES, num_slots=16)


def run(
    req_id: str, tables: Sequence[Table] | None, tokens: int, *, computed: int = 0, replaces: bool = True
) -> ScheduledRequest:
    """A request runs `tokens` tokens in a step; `tables` are its new blocks by group, or all of them."""
    new = None if tables is None else tuple([BlockId(block) for block in table] for table in tables)
    return ScheduledRequest(RequestId(req_id), new, replaces, computed, tokens)


def stored(job: CopyJob) -> dict[int, list[int]]:
    """The blocks that a store reads, by group."""
    return {part.group: part.block_ids.tolist() for part in job.parts}


def store(side: SchedulerSide, text: str, steps: Sequence[int]) -> list[dict[int, list[int]]]:
    """A request is computed in steps of so many blocks; the engine keeps what is in reach. Returns what was stored."""
    side.add("s", text)
    found = []
    computed = 0
    for number, blocks in enumerate(steps):
        end = computed + blocks
        first = 10 * (number + 1)
        states = [0] * (blocks - 1) + [first + 200]
        tables = [range(first, first + blocks), range(first + 100, first + 100 + blocks), states]
        message = side.step(run("s", tables, 4 * blocks, computed=4 * computed, replaces=number == 0))
        for job in message.stores:
            found.append(stored(job))
            side.report(job)
        computed = end
    side.finish("s", 4 * computed)
    return found


def allocate(side: SchedulerSide, req_id: str, tables: Sequence[Table], load: int) -> CopyJob:
    blocks = [[BlockId(block) for block in table] for table in tables]
    side.manager.allocated(RequestId(req_id), blocks, 0, load)
    (job,) = side.step().loads
    return job


def test_all_chunks_of_attention_are_stored_and_the_states_where_steps_ended(side: SchedulerSide) -> None:
    first, second = store(side, "abcdef", [4, 2])
    assert first == {FULL: [10, 11, 12, 13], WINDOW: [110, 111, 112, 113], STATE: [210]}
    assert second == {FULL: [20, 21], WINDOW: [120, 121], STATE: [220]}
    assert side.tiers[STATE].ready_count == 2
    assert [side.tiers[STATE].lookup(key).value for key in keys_of("abcdef", 3)].count("hit") == 2


def test_a_load_brings_the_prefix_the_last_window_and_one_state(side: SchedulerSide) -> None:
    store(side, "abcdef", [4, 2])
    side.add("b", "abcdefg")
    assert side.match("b") == 24
    tables = [range(1, 7), [0, 0, 0, 0, 15, 16], [0, 0, 0, 0, 0, 26]]
    job = allocate(side, "b", tables, 24)
    assert stored(job) == {FULL: [1, 2, 3, 4, 5, 6], WINDOW: [15, 16], STATE: [26]}
    assert NO_SLOT not in {slot for part in job.parts for slot in part.slots.tolist()}
    side.report(job)
    # Going on from there, nothing is stored that is there, and the null blocks are never read.
    assert not side.step(run("b", tables, 4, computed=24)).stores


def test_a_state_that_is_missing_moves_the_boundary_of_all_groups(side: SchedulerSide) -> None:
    store(side, "abcdef", [4, 2])
    side.tiers[STATE].drop([keys_of("abcdef", 3)[5]])
    side.add("b", "abcdef")
    assert side.match("b") == 16
    side.tiers[WINDOW].drop([keys_of("abcdef", 1)[2]])
    assert side.match("b") == 0


def test_chunks_before_the_window_are_not_needed(side: SchedulerSide) -> None:
    store(side, "abcdef", [4, 2])
    side.tiers[WINDOW].drop(keys_of("abcdef", 1)[:4])
    side.add("b", "abcdefg")
    assert side.match("b") == 24


def test_the_last_token_is_never_loaded(side: SchedulerSide) -> None:
    store(side, "abcdef", [4, 2])
    side.add("b", "abcdef")
    assert side.manager.match(RequestId("b"), 0, num_tokens=24) == 16
    assert side.manager.match(RequestId("b"), 0, num_tokens=25) == 24


def test_a_boundary_keeps_to_the_engines_own_unit() -> None:
    side = SchedulerSide(geometries=GEOMETRIES[:2], num_slots=16, boundary_unit_tokens=12)
    side.add("s", "abcde")
    (job,) = side.step(run("s", [range(1, 6), range(11, 16)], 20)).stores
    side.report(job)
    side.add("b", "abcde")
    assert side.match("b") == 12


def test_a_state_is_stored_one_step_late_if_its_key_was_not_known(side: SchedulerSide) -> None:
    hashes = side.add("s", "a", num_prompt_tokens=8)
    (job,) = side.step(run("s", [[1, 2], [11, 12], [0, 22]], 8)).stores
    assert stored(job) == {FULL: [1], WINDOW: [11]}
    hashes.append(b"the-rest")
    (job,) = side.step(run("s", [[3], [13], [23]], 1, computed=8, replaces=False)).stores
    assert stored(job) == {FULL: [2], WINDOW: [12], STATE: [22]}


def test_a_state_that_the_engine_went_on_from_is_never_stored(side: SchedulerSide) -> None:
    side.add("s", "abc", num_prompt_tokens=12)
    (job,) = side.step(run("s", [[1, 2], [11, 12], [21, 22]], 6)).stores
    assert stored(job) == {FULL: [1], WINDOW: [11]}, "a step that ended inside a block left no state"


def test_a_block_behind_the_window_is_never_read(side: SchedulerSide) -> None:
    hashes = side.add("s", "", num_prompt_tokens=20)
    assert not side.step(run("s", [range(1, 6), range(11, 16), [0, 0, 0, 0, 25]], 20)).stores
    for letter in range(5):
        hashes.append(b"hash%04d" % letter)
    # The engine has given blocks 11 to 13 away: (20 - 5) // 4 = 3 of them.
    (job,) = side.step(run("s", [[6], [16], [26]], 1, computed=20, replaces=False)).stores
    assert stored(job) == {FULL: [1, 2, 3, 4, 5], WINDOW: [14, 15], STATE: [25]}


def test_blocks_that_the_window_leaves_are_fenced(side: SchedulerSide) -> None:
    side.add("s", "abcd")
    (job,) = side.step(run("s", [range(1, 5), range(11, 15), [0, 0, 0, 24]], 16)).stores
    side.add("other", "x")
    message = side.step(run("other", [[31], [11], [41]], 4))
    assert message.flush == (job.job_id,)


def test_a_chunk_that_vanished_in_any_group_is_marked_and_the_request_starts_anew(
    side: SchedulerSide,
) -> None:
    store(side, "abcd", [4])
    side.add("b", "abcde")
    assert side.match("b") == 16
    side.tiers[STATE].drop([keys_of("abcd", 3)[3]])
    job = allocate(side, "b", [range(1, 5), [0, 0, 13, 14], [0, 0, 0, 24]], 16)
    (state,) = [part for part in job.parts if part.group == STATE]
    assert state.slots.tolist() == [NO_SLOT]
    side.report(job)
    assert side.match("b") == 0


def test_a_request_whose_chunk_vanished_is_offered_nothing_although_no_copy_failed(
    side: SchedulerSide,
) -> None:
    store(side, "abcd", [4])
    side.add("b", "abcde")
    assert side.match("b") == 16
    side.tiers[STATE].drop([keys_of("abcd", 3)[3]])
    job = allocate(side, "b", [range(1, 5), [0, 0, 13, 14], [0, 0, 0, 24]], 16)
    side.report(job)
    # Somebody else brings the chunk back. The engine still counts the blocks of the failed load as needed.
    store(side, "abcd", [4])
    side.add("c", "abcde")
    assert side.match("c") == 16
    assert side.match("b") == 0


def test_a_request_whose_load_failed_in_one_group_is_computed_and_offered_nothing(
    side: SchedulerSide,
) -> None:
    store(side, "abcd", [4])
    side.add("b", "abcde")
    assert side.match("b") == 16
    job = allocate(side, "b", [range(1, 5), [0, 0, 13, 14], [0, 0, 0, 24]], 16)
    slot = next(int(part.slots[1]) for part in job.parts if part.group == WINDOW)
    side.report(job, failed=[(WINDOW, slot)])
    assert side.match("b") == 0
    # Its prompt is stored again as far as it is lost, and others load it.
    tables = [range(31, 36), range(41, 46), [0, 0, 0, 54, 55]]
    (again,) = side.step(run("b", tables, 20)).stores
    side.report(again)
    side.add("c", "abcd")
    assert side.match("c") == 16


def test_an_idle_engine_that_never_takes_an_offer_is_made_to_compute(side: SchedulerSide) -> None:
    store(side, "abcd", [4])
    side.add("b", "abcde")
    for _ in range(2):
        assert side.match("b") == 16
        side.step()
    # A busy engine may be short of blocks for as long as it likes.
    assert side.match("b") == 16
    side.step(run("x", None, 1, replaces=False))
    for _ in range(3):
        assert side.match("b") == 16
        side.step()
    assert side.match("b") == 0


# -- with a tier below -------------------------------------------------------------------------------------------


def over_a_tier(tier: ScriptedTier) -> SchedulerSide:
    memory = bytearray(4096)
    lane = TierLane(tier, LaneOptions(deadline_s=5), lambda group, slot: memoryview(memory))
    below = Below((lane,), StagingConfig(LoadPolicy.ALWAYS), (4096,) * 3)
    return SchedulerSide(geometries=GEOMETRIES, num_slots=16, below=below)


def asked_for(tier: ScriptedTier) -> set[OffloadKey]:
    return {entry.key for job in tier.pending(Verb.LOAD) for entry in job.entries}


def needed(text: str, boundary: int) -> set[OffloadKey]:
    """By definition: all of the full attention, the last two of the window, the last state."""
    full, window, state = (keys_of(text, group)[:boundary] for group in (0, 1, 3))
    return {*full, *window[-2:], state[-1]}


def test_from_a_tier_below_comes_what_one_load_needs_and_nothing_else() -> None:
    tier = ScriptedTier()
    tier.has = {key for group in (0, 1, 3) for key in keys_of("abcdef", group)}
    side = over_a_tier(tier)
    side.add("b", "abcdef")
    assert side.manager.match(RequestId("b"), 0) is None
    assert asked_for(tier) == needed("abcdef", 6)
    while tier.pending(Verb.LOAD):
        tier.finish(Verb.LOAD)
        side.step()
        side.manager.match(RequestId("b"), 0)
    assert side.manager.match(RequestId("b"), 0) == 24


def test_host_and_tier_serve_one_boundary_together() -> None:
    tier = ScriptedTier()
    side = over_a_tier(tier)
    store(side, "abcd", [4])
    tier.has = {*keys_of("abcdef", 0)[4:], *keys_of("abcdef", 1)[4:], keys_of("abcdef", 3)[4]}
    side.add("b", "abcdef")
    # The state at 24 is nowhere, the one at 20 is below: the window there begins in the host.
    assert side.manager.match(RequestId("b"), 0) is None
    assert asked_for(tier) == {keys_of("abcdef", 0)[4], keys_of("abcdef", 1)[4], keys_of("abcdef", 3)[4]}


def test_a_tier_is_waited_for_only_where_its_answer_matters() -> None:
    tier = ScriptedTier()
    side = over_a_tier(tier)
    tier.has = {key for group in (0, 1, 3) for key in keys_of("abcdef", group)}
    tier.unsure = set(keys_of("abcdef", 1)[:4])
    side.add("b", "abcdef")
    assert side.manager.match(RequestId("b"), 0) is None
    assert asked_for(tier) == needed("abcdef", 6)


def test_nothing_is_brought_up_if_no_boundary_can_be_served() -> None:
    tier = ScriptedTier()
    side = over_a_tier(tier)
    tier.has = {key for group in (0, 1) for key in keys_of("abcdef", group)}
    side.add("b", "abcdef")
    assert side.manager.match(RequestId("b"), 0) == 0
    assert not tier.pending(Verb.LOAD)
