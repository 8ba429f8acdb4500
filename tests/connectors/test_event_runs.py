"""Stored blocks become runs: what one prompt computed is together, nothing is lost or doubled, and all is bounded."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kvoffload.connectors.events import runs as runs_module
from kvoffload.connectors.events.runs import GAP_S, OPEN_S, Run, Runs

BLOCKS = [bytes([number]) for number in range(12)]
EVENTS = st.lists(
    st.tuples(
        st.floats(-10, 100, allow_nan=False),
        st.lists(st.sampled_from(BLOCKS), max_size=5),
        st.none() | st.sampled_from(BLOCKS),
    ),
    max_size=40,
)


def names(found: list[Run]) -> list[list[bytes]]:
    return [list(run.blocks) for run in found]


def test_the_steps_of_a_prompt_are_one_run_also_between_those_of_another() -> None:
    runs = Runs()
    runs.add(0.0, [b"a0", b"a1"], None)
    runs.add(0.0, [b"b0"], None)
    runs.add(1.0, [b"a2"], b"a1")
    runs.add(1.0, [b"b1"], b"b0")
    runs.add(2.0, [b"a3"], b"a2")
    assert runs.closed() == []
    assert names(runs.close_all()) == [[b"a0", b"a1", b"a2", b"a3"], [b"b0", b"b1"]]


def test_the_same_prompt_twice_at_once_is_two_runs() -> None:
    runs = Runs()
    for _ in range(2):
        runs.add(0.0, [b"a0"], None)
    for _ in range(2):
        runs.add(1.0, [b"a1"], b"a0")
    assert names(runs.close_all()) == [[b"a0", b"a1"]] * 2


def test_what_goes_on_after_a_pause_is_a_run_of_its_own() -> None:
    runs = Runs()
    runs.add(0.0, [b"a0"], None)
    runs.add(GAP_S, [b"a1"], b"a0")
    runs.add(2 * GAP_S + 0.1, [b"a2"], b"a1")
    assert names(runs.closed()) == [[b"a0", b"a1"]]
    assert names(runs.close_all()) == [[b"a2"]]


def test_an_endless_answer_does_not_hold_back_the_file() -> None:
    runs, found, at_s, last = Runs(), [], 0.0, None
    for number in range(1000):
        block = b"%d" % number
        runs.add(at_s, [block], last)
        last, at_s = block, at_s + 1.0
        found += runs.closed()
        assert runs.held_blocks <= OPEN_S + 2
    assert len(found) >= 15


@given(EVENTS)
def test_nothing_is_lost_or_doubled_and_the_order_is_that_of_time(events) -> None:
    runs, found = Runs(), []
    for at_s, hashes, parent in events:
        runs.add(at_s, hashes, parent)
        found += runs.closed()
    found += runs.close_all()
    assert runs.held_blocks == 0
    assert not runs._by_tail
    starts = [run.start_s for run in found]
    assert starts == sorted(starts)
    assert all(run.start_s <= run.last_s <= run.start_s + OPEN_S for run in found)
    told = sorted(block for _, hashes, _ in events for block in set(hashes))
    assert sorted(block for run in found for block in run.blocks) == told


@given(EVENTS)
def test_what_is_held_is_bounded_in_blocks(events) -> None:
    runs = Runs(max_held_blocks=6)
    for at_s, hashes, parent in events:
        runs.add(at_s, hashes, parent)
        runs.closed()
        assert runs.held_blocks <= 6


@given(EVENTS)
def test_within_a_run_every_event_follows_the_one_before(events) -> None:
    runs = Runs()
    followers: dict[bytes, set[bytes]] = {}
    for at_s, hashes, parent in events:
        runs.add(at_s, hashes, parent)
        chain = ([parent] if parent is not None else []) + list(dict.fromkeys(hashes))
        for first, second in pairwise(chain):
            followers.setdefault(first, set()).add(second)
    for run in runs.close_all():
        chain = list(run.blocks)
        assert all(second in followers[first] for first, second in pairwise(chain))


def test_the_bounds_are_those_that_the_documentation_names() -> None:
    assert (runs_module.GAP_S, runs_module.OPEN_S) == (5.0, 60.0)
