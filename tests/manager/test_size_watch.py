"""What the manager says of other sizes of its host tier, from the requests that it has seen."""

from __future__ import annotations

import pytest
from scheduler_side import TOKENS_PER_BLOCK, SchedulerSide, run

from kvoffload.manager.request import GroupGeometry
from kvoffload.metrics import catalog as m

SIZES = ("0.5", "1", "2", "4")


def ask(side: SchedulerSide, name: str, text: str) -> None:
    """A request comes, is computed and ends; whatever it stores is stored."""
    side.add(name, text)
    side.match(name)
    side.allocate(name, range(1, len(text) + 1))
    tokens = len(text) * TOKENS_PER_BLOCK
    stores = side.step(run(name, range(1, len(text) + 1), tokens)).stores
    side.report(*stores)
    side.report(*side.finish(name, tokens).stores)


def estimates(side: SchedulerSide) -> list[float]:
    return [side.recorder.value(m.ESTIMATED_HIT_RATIO, size=size) for size in SIZES]


def test_two_prompts_in_turn_need_room_for_both() -> None:
    side = SchedulerSide(num_slots=4)
    for turn in range(8):
        ask(side, f"{turn}", ("abcd", "wxyz")[turn % 2])
    # Six of eight could have been there, had the tier been twice as large.
    assert estimates(side) == pytest.approx([0.0, 0.0, 0.75, 0.75])
    assert side.recorder.value(m.ESTIMATED_HIT_RATIO_ERROR, size="2") == 0


def test_only_what_may_be_stored_is_asked_for() -> None:
    side = SchedulerSide(num_slots=2)
    for turn in range(4):
        ask(side, f"{turn}", "ab")
        side.add("unwanted", "mnop", max_offload_tokens=0)
        side.finish("unwanted", 16)
    assert estimates(side)[1] == pytest.approx(0.75)


def test_a_reset_forgets_the_chunks_and_not_the_counts() -> None:
    side = SchedulerSide(num_slots=2)
    ask(side, "a", "ab")
    side.manager.reset()
    ask(side, "b", "ab")
    assert estimates(side) == [0.0] * 4
    ask(side, "c", "ab")
    assert estimates(side)[1] == pytest.approx(1 / 3, abs=1e-4)


def test_without_full_attention_there_is_no_curve() -> None:
    geometry = GroupGeometry(0, TOKENS_PER_BLOCK, 1, TOKENS_PER_BLOCK, reach_tokens=7)
    side = SchedulerSide(num_slots=2, geometries=[geometry])
    ask(side, "a", "ab")
    assert not any(name.startswith("kvoffload_estimated") for name in side.recorder.values())
