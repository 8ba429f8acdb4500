"""Runs: every entry in exactly one run, in order, and neighbours joined."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvoffload.messages import NO_SLOT, GroupCopies
from kvoffload.transfer.copy_plan import blocks_in_slots, plan_runs, slots_of_run

Entry = tuple[int, int, int]


def copies_of(entries: list[Entry]) -> GroupCopies:
    table = np.array(entries, dtype=np.int64).reshape(-1, 3)
    return GroupCopies(0, table[:, 0].copy(), table[:, 1].copy(), table[:, 2].copy())


@st.composite
def jobs(draw: st.DrawFn) -> tuple[list[Entry], int]:
    """Entries with many neighbours, some without a slot, in any order."""
    per_chunk = draw(st.integers(1, 4))
    entries: list[Entry] = []
    for _ in range(draw(st.integers(0, 6))):
        block, slot = draw(st.integers(0, 8)), draw(st.integers(NO_SLOT, 6))
        length = draw(st.integers(1, 4))
        for step in range(length):
            place = draw(st.integers(0, per_chunk - 1)) if draw(st.booleans()) else step % per_chunk
            entries.append((block + step, slot if per_chunk > 1 or slot == NO_SLOT else slot + step, place))
    return entries, per_chunk


def expand(block: int, slot: int, position: int, length: int, per_chunk: int) -> list[Entry]:
    if per_chunk == 1:
        return [(block + i, slot + i, position) for i in range(length)]
    return [(block + i, slot, position + i) for i in range(length)]


@settings(max_examples=300, deadline=None)
@given(jobs())
def test_runs_cover_every_entry_with_a_slot_exactly_once_in_order(job: tuple[list[Entry], int]) -> None:
    entries, per_chunk = job
    covered = [e for run in plan_runs(copies_of(entries), per_chunk) for e in expand(*run, per_chunk)]
    assert covered == [entry for entry in entries if entry[1] != NO_SLOT]


@settings(max_examples=300, deadline=None)
@given(jobs())
def test_no_two_runs_that_follow_each_other_could_be_one(job: tuple[list[Entry], int]) -> None:
    entries, per_chunk = job
    runs = plan_runs(copies_of(entries), per_chunk)
    for left, right in itertools.pairwise(runs):
        assert (
            expand(*left, per_chunk)[-1]
            != expand(
                right.block - 1,
                right.slot - (per_chunk == 1),
                right.position - (per_chunk > 1),
                1,
                per_chunk,
            )[0]
        )


@settings(max_examples=200, deadline=None)
@given(jobs())
def test_runs_move_the_same_bytes_as_single_blocks(job: tuple[list[Entry], int]) -> None:
    entries, per_chunk = job
    device = np.arange(1, 17)
    by_blocks, by_runs = np.zeros((12, per_chunk), int), np.zeros((12, per_chunk), int)
    for block, slot, position in entries:
        if slot != NO_SLOT:
            by_blocks[slot, position] = device[block]
    for run in plan_runs(copies_of(entries), per_chunk):
        near = device[run.block : run.block + run.length]
        if per_chunk == 1:
            by_runs[run.slot : run.slot + run.length, 0] = near
        else:
            by_runs[run.slot, run.position : run.position + run.length] = near
    np.testing.assert_array_equal(by_runs, by_blocks)


def test_a_run_never_crosses_from_one_large_chunk_into_the_next() -> None:
    # Entries with positions that no chunk has must not be joined with those of a good chunk either.
    for entries in ([(0, 1, 1), (1, 2, 0)], [(0, 1, 2), (1, 2, 0)], [(0, 1, 1), (1, 2, -1), (2, 2, 0)]):
        for run in plan_runs(copies_of(entries), 2):
            assert run.position + run.length <= 2 or run.length == 1, (entries, run)


def test_a_whole_prompt_of_small_chunks_in_neighbouring_slots_is_one_copy() -> None:
    assert len(plan_runs(copies_of([(i + 3, i, 0) for i in range(50)]), 1)) == 1
    assert len(plan_runs(copies_of([(i + 3, i // 5, i % 5) for i in range(50)]), 5)) == 10


def test_slots_of_a_run_are_those_that_it_touches() -> None:
    (small,) = plan_runs(copies_of([(4, 7, 0), (5, 8, 0)]), 1)
    (large,) = plan_runs(copies_of([(4, 7, 0), (5, 7, 1)]), 2)
    assert list(slots_of_run(small, 1)) == [7, 8]
    assert list(slots_of_run(large, 2)) == [7]


def test_blocks_of_failed_chunks_are_found_those_without_a_slot_too() -> None:
    copies = copies_of([(4, 7, 0), (5, NO_SLOT, 0), (6, 8, 0), (9, 7, 1)])
    assert blocks_in_slots(copies, {7, NO_SLOT}).tolist() == [4, 5, 9]
    assert blocks_in_slots(copies, set()).tolist() == []
