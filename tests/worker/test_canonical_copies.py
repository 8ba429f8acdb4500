"""The CPU copier on canonical rows: failures stay alone, other people's bytes stay untouched, turns are kept."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from kvoffload.config.pages import AttentionPage, HeadOrder, LatentPage
from kvoffload.layout.canonical import CanonicalLayer, CanonicalLayout
from kvoffload.layout.geometry import ParallelSizes
from kvoffload.messages import NO_SLOT
from kvoffload.testing.layout_engine import GARBAGE, LayoutEngine, position_bytes
from kvoffload.types import Direction

ATTENTION = AttentionPage(4, (2, 2), 4, HeadOrder.NHD)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def layout_of(page, tp: int, per_chunk: int = 1) -> CanonicalLayout:
    return CanonicalLayout(
        tuple(CanonicalLayer(f"l{i}", page) for i in range(2)), per_chunk, ParallelSizes(tp=tp)
    )


def garbage_rows(layout: CanonicalLayout, slots: int) -> np.ndarray:
    return np.full((slots, layout.row_bytes + 7), GARBAGE, np.uint8)


@pytest.mark.parametrize("per_chunk", [1, 2])
@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("page", [ATTENTION, LatentPage((5,), 4)])
def test_a_chunk_outside_of_memory_fails_alone(page, direction: Direction, per_chunk: int) -> None:
    layout = layout_of(page, 2, per_chunk)
    for bad in ((9, 2, 0), (-1, 2, 0), (3, 6, 0), (3, -2, 0), (3, 2, per_chunk)):
        good = [(2, 1, 0), (4, 3, 0), (5, 5, 0)]
        truth = position_bytes(layout, 9)
        expected, found = garbage_rows(layout, 6), garbage_rows(layout, 6)
        wanted, engine = LayoutEngine(layout, truth, 9), LayoutEngine(layout, truth, 9)
        wanted.copy(direction, good, expected)
        outcomes = engine.copy(direction, [good[0], bad, *good[1:]], found)
        assert [outcome.failed for outcome in outcomes] == [{(0, bad[1])}] * 2
        np.testing.assert_array_equal(found, expected)
        for ours, theirs in zip(engine.device, wanted.device, strict=True):
            np.testing.assert_array_equal(np.concatenate(ours), np.concatenate(theirs))


def test_a_long_run_of_chunks_is_shared_slot_by_slot_and_complete() -> None:
    """Each rank writes every fourth slot of a run; together they leave no hole, whatever the first slot is."""
    layout = layout_of(LatentPage((16,), 4), 4)
    for first in range(4):
        rows = garbage_rows(layout, 13)
        truth = position_bytes(layout, 9)
        engine = LayoutEngine(layout, truth, 9)
        outcomes = engine.copy(Direction.STORE, [(i, first + i, 0) for i in range(9)], rows)
        np.testing.assert_array_equal(
            rows[first : first + 9, : layout.row_bytes], np.concatenate(truth, axis=1)
        )
        assert (rows[:first] == GARBAGE).all()
        assert (rows[first + 9 :] == GARBAGE).all()
        shares = [outcome.copied_bytes for outcome in outcomes]
        assert max(shares) - min(shares) <= layout.row_bytes


def test_chunks_without_a_slot_are_left_out() -> None:
    layout = layout_of(ATTENTION, 2)
    rows = garbage_rows(layout, 3)
    engine = LayoutEngine(layout, position_bytes(layout, 3), 3)
    outcomes = engine.copy(Direction.STORE, [(0, 1, 0), (1, NO_SLOT, 0)], rows)
    assert [(o.failed, o.copied_bytes) for o in outcomes] == [(frozenset(), layout.row_bytes // 2)] * 2
    assert (rows[[0, 2]] == GARBAGE).all()


def test_loads_of_replicas_read_everything() -> None:
    layout = layout_of(LatentPage((5,), 4), 2)
    rows = garbage_rows(layout, 1)
    outcomes = LayoutEngine(layout, None, 1).copy(Direction.LOAD, [(0, 0, 0)], rows)
    assert [outcome.copied_bytes for outcome in outcomes] == [layout.row_bytes] * 2
