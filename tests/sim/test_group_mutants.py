"""The simulator sees what goes wrong with several cache groups: with a deliberate bug in the production code, it must fail."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

import pytest
from verdicts import verdict_on

from kvoffload.manager import load_plan, locating, manager, matching, prefix, store_plan, storing
from kvoffload.manager.completion import Completion
from kvoffload.manager.load_plan import plan_load
from kvoffload.manager.manager import OffloadManager
from kvoffload.manager.matching import Matching
from kvoffload.manager.request import GroupGeometry, GroupState, RequestState
from kvoffload.manager.store_plan import storable_chunks
from kvoffload.manager.waiting import Waiting
from kvoffload.messages import NO_SLOT
from kvoffload.transfer.ledger import Ledger

Patch = pytest.MonkeyPatch
SEEDS_TRIED = 60


def a_state_counts_for_the_block_in_which_a_step_has_ended(patch: Patch) -> None:
    """And not only for one that ended with the step."""

    def chunks(state) -> list[int]:
        return sorted({-(-end // state.geometry.tokens_per_chunk) - 1 for end in state.state_ends})

    def storable(state, tokens, null_block_id) -> range | list[int]:
        rest = -tokens % state.geometry.tokens_per_chunk if state.geometry.is_state else 0
        return storable_chunks(state, tokens + rest, null_block_id)

    patch.setattr(store_plan, "_chunks_with_states", chunks)
    patch.setattr(storing, "storable_chunks", storable)


def a_state_is_offered_after_the_engine_went_on(patch: Patch) -> None:
    """As if the end of every earlier step still counted: its block has been given away since."""

    def follow(self, computed_tokens, scheduled_tokens) -> None:
        self.state_ends = (*self.state_ends, computed_tokens, computed_tokens + scheduled_tokens)

    def storable(state, tokens, null_block_id) -> range | list[int]:
        state.next_store_chunk = 0
        return storable_chunks(state, tokens, null_block_id)

    patch.setattr(GroupState, "follow", follow)
    patch.setattr(storing, "storable_chunks", storable)


def what_was_evicted_is_stored_again_from_blocks_that_were_given_away(patch: Patch) -> None:
    def storable(state, tokens, null_block_id) -> range | list[int]:
        if not state.geometry.is_state:
            state.next_store_chunk = 0
            state.first_live_block = 0
        return storable_chunks(state, tokens, null_block_id)

    patch.setattr(storing, "storable_chunks", storable)


def null_blocks_are_stored(patch: Patch) -> None:
    def chunks(state, tokens, null_block_id) -> range | list[int]:
        del null_block_id
        if not state.geometry.is_state:
            state.first_live_block = 0
        return storable_chunks(state, tokens, -1)

    patch.setattr(storing, "storable_chunks", chunks)


def null_blocks_are_loaded(patch: Patch) -> None:
    """As if a window needed all of the prefix, and null blocks were blocks."""
    original = load_plan.chunk_range
    everything = lambda geometry: dataclasses.replace(geometry, reach_tokens=None)  # noqa: E731

    def chunk_range(geometry, tokens) -> range:
        return original(geometry if geometry.is_state else everything(geometry), tokens)

    def plan(group, state, block_ids, tokens, slots, **rest):
        geometry = state.geometry if state.geometry.is_state else everything(state.geometry)
        return plan_load(
            group, dataclasses.replace(state, geometry=geometry), block_ids, tokens, slots, **rest
        )

    for module in (load_plan, prefix, matching, locating, manager):
        patch.setattr(module, "chunk_range", chunk_range)
    patch.setattr(manager, "plan_load", plan)


def a_load_brings_one_block_of_a_window_too_few(patch: Patch) -> None:
    original = load_plan._first_token

    def first_token(geometry, tokens) -> int:
        first = original(geometry, tokens)
        is_window = geometry.reach_tokens is not None and not geometry.is_state
        return min(first + geometry.tokens_per_block * is_window, tokens.stop - 1)

    patch.setattr(load_plan, "_first_token", first_token)


def a_window_is_one_token_shorter_than_it_is(patch: Patch) -> None:
    original = load_plan._first_token

    def first_token(geometry, tokens) -> int:
        if geometry.reach_tokens is not None and not geometry.is_state:
            geometry = dataclasses.replace(geometry, reach_tokens=geometry.reach_tokens - 1)
        return original(geometry, tokens)

    patch.setattr(load_plan, "_first_token", first_token)


def a_local_stretch_is_taken_for_a_window_that_ends_with_it(patch: Patch) -> None:
    """As if the last block before the boundary were always enough."""
    original = GroupGeometry.first_needed

    def first_needed(self, boundary) -> int:
        if self.local_tokens is None:
            return original(self, boundary)
        return max(0, boundary - self.tokens_per_block)

    patch.setattr(GroupGeometry, "first_needed", first_needed)


def the_engines_own_grid_is_ignored(patch: Patch) -> None:
    original = Matching.__init__
    patch.setattr(
        Matching, "__init__", lambda self, groups, tiers, rows, unit: original(self, groups, tiers, rows, 1)
    )


def a_vanished_chunk_is_left_out_and_the_rest_counts_as_loaded(patch: Patch) -> None:
    def plan(group, state, block_ids, tokens, slots, **rest):
        found = plan_load(group, state, block_ids, tokens, slots, **rest)
        there = found.slots != NO_SLOT
        return dataclasses.replace(
            found,
            block_ids=found.block_ids[there],
            slots=found.slots[there],
            positions=found.positions[there],
        )

    patch.setattr(manager, "plan_load", plan)


def a_chunk_counts_as_there_although_one_group_lacks_it(patch: Patch) -> None:
    original = prefix._serves
    patch.setattr(prefix, "_serves", lambda geometry, *rest: geometry.is_state or original(geometry, *rest))


def the_last_token_is_loaded_too(patch: Patch) -> None:
    original = Matching.span
    patch.setattr(Matching, "span", lambda self, state, computed, num: original(self, state, computed, None))


def blocks_that_a_load_fills_are_not_fenced(patch: Patch) -> None:
    """A window block that one request has given away is loaded into for another while it is still being stored."""
    original = OffloadManager._plan_load

    def plan(self, state, block_ids, tokens) -> None:
        written = set(self._written)
        original(self, state, block_ids, tokens)
        self._written = written

    patch.setattr(OffloadManager, "_plan_load", plan)


def blocks_that_were_given_away_are_not_fenced(patch: Patch) -> None:
    patch.setattr(Ledger, "readers_of", lambda self, blocks: set())


def a_request_whose_load_failed_is_offered_a_load_again(patch: Patch) -> None:
    """Then it waits for the room that its own failed load still reserves."""
    original = Completion._complete_load

    def complete(self, job, good, bad) -> None:
        original(self, job, good, bad)
        if job.req_id in self._requests:
            self._requests[job.req_id].computes_all = False

    patch.setattr(Completion, "_complete_load", complete)
    patch.setattr(Waiting, "end_step", lambda self, *, is_idle, is_loading: None)


def a_load_that_lacks_a_vanished_chunk_does_not_count_as_failed(patch: Patch) -> None:
    original = OffloadManager._plan_load

    def plan(self, state, block_ids, tokens) -> None:
        original(self, state, block_ids, tokens)
        state.computes_all = False

    patch.setattr(OffloadManager, "_plan_load", plan)
    patch.setattr(Waiting, "end_step", lambda self, *, is_idle, is_loading: None)


def stores_begin_anew_in_blocks_that_were_given_away(patch: Patch) -> None:
    """After a reset a running request stores what it still has, and what it has no more."""
    patch.setattr(RequestState, "follow_reset", RequestState.restart_stores)
    original = GroupState.follow

    def follow(self, computed_tokens, scheduled_tokens) -> None:
        original(self, computed_tokens, scheduled_tokens)
        self.first_live_block = 0

    patch.setattr(GroupState, "follow", follow)


WRONG, HANG, VAIN, GRID = "WRONG KV", "HANG", "announced in vain", "NO BOUNDARY"

MUTANTS: tuple[tuple[Callable[[Patch], None], str, str], ...] = (
    (a_state_counts_for_the_block_in_which_a_step_has_ended, "wide states in small steps", WRONG),
    (a_state_is_offered_after_the_engine_went_on, "windows and states", WRONG),
    (what_was_evicted_is_stored_again_from_blocks_that_were_given_away, "windows of two sizes", WRONG),
    (null_blocks_are_stored, "window", WRONG),
    (null_blocks_are_loaded, "window", WRONG),
    (a_load_brings_one_block_of_a_window_too_few, "windows of two sizes", WRONG),
    (a_window_is_one_token_shorter_than_it_is, "window", WRONG),
    (a_local_stretch_is_taken_for_a_window_that_ends_with_it, "local stretches", WRONG),
    (the_engines_own_grid_is_ignored, "window on a coarser grid", GRID),
    (a_vanished_chunk_is_left_out_and_the_rest_counts_as_loaded, "windows and states", WRONG),
    (a_chunk_counts_as_there_although_one_group_lacks_it, "states", VAIN),
    (the_last_token_is_loaded_too, "states", WRONG),
    (blocks_that_a_load_fills_are_not_fenced, "states", WRONG),
    (blocks_that_were_given_away_are_not_fenced, "windows and states, asynchronous", WRONG),
    (a_request_whose_load_failed_is_offered_a_load_again, "window, long prompts in few blocks", HANG),
    (
        a_load_that_lacks_a_vanished_chunk_does_not_count_as_failed,
        "window, long prompts in few blocks",
        HANG,
    ),
    (stores_begin_anew_in_blocks_that_were_given_away, "windows and states, asynchronous", WRONG),
)


@pytest.mark.parametrize(
    ("plant", "setup", "verdict"), MUTANTS, ids=lambda value: getattr(value, "__name__", value)
)
def test_the_simulator_notices_among_several_groups_that(
    plant: Callable[[Patch], None],
    setup: str,
    verdict: str,
    monkeypatch: Patch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)
    plant(monkeypatch)
    # Invariants that the manager checks by itself would hide whether the content is looked at.
    monkeypatch.setattr(OffloadManager, "check", lambda self: None)
    found = (verdict_on(setup, seed) for seed in range(SEEDS_TRIED))
    assert verdict in next(filter(None, found), "nothing wrong")
