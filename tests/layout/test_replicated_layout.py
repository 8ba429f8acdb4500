"""One copy for all ranks: exactly where all ranks hold the same bytes and see the same memory."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from kvoffload.config.pages import AttentionPage, LatentPage
from kvoffload.layout.canonical import CanonicalLayer, CanonicalLayout
from kvoffload.layout.geometry import ParallelSizes
from kvoffload.layout.replicated import (
    HostMemory,
    copies_per_chunk,
    replicated_fault,
    shared_rows_fault,
    uses_shared_region,
)
from kvoffload.testing.layout_engine import LayoutEngine, position_bytes
from kvoffload.types import Direction

MLA = LatentPage((1152,), 16)


def test_the_truth_table_of_configuration_and_platform() -> None:
    others = (
        ((MLA, AttentionPage(4, (8, 8), 16)), ParallelSizes(tp=2)),
        ((), ParallelSizes(tp=2)),
        ((MLA,), ParallelSizes(tp=2, pp=2)),
        ((MLA,), ParallelSizes(tp=2, pcp=2)),
        ((MLA,), ParallelSizes(tp=2, dcp=2)),
    )
    for shares, tiers, nodes in product((False, True), (False, True), (1, 2)):
        memory = HostMemory(shares, tiers, nodes)
        assert uses_shared_region(memory) == (shares or tiers)
        one_copy = (shares or tiers) and nodes == 1
        assert copies_per_chunk((MLA, MLA), ParallelSizes(tp=4), memory) == (1 if one_copy else 4)
        for pages, sizes in others:
            assert copies_per_chunk(pages, sizes, memory) == sizes.world_size


@pytest.mark.parametrize(
    ("memory", "why"),
    [(HostMemory(False, False), "private buffer"), (HostMemory(True, False, 2), "2 nodes")],
)
def test_a_refusal_says_why(memory: HostMemory, why: str) -> None:
    assert why in (replicated_fault((MLA,), ParallelSizes(tp=2), memory) or "")
    assert why in (shared_rows_fault(memory) or ""), "canonical rows need one region, too"


def test_ranks_of_one_node_that_see_one_region_can_write_for_each_other() -> None:
    assert shared_rows_fault(HostMemory(platform_shares=True, has_secondary_tiers=False)) is None
    assert shared_rows_fault(HostMemory(platform_shares=False, has_secondary_tiers=True)) is None


def test_the_same_bytes_make_the_same_number_of_chunks_whatever_tp_is() -> None:
    """One copy: equal rows, every byte written once, by one writer, and read by all."""
    for tp in (1, 2, 4, 8):
        layout = CanonicalLayout(
            tuple(CanonicalLayer(f"l{i}", MLA) for i in range(3)), 2, ParallelSizes(tp=tp)
        )
        assert layout.fault() is None
        assert layout.row_bytes == 3 * 2 * 16 * 1152
        rows = np.zeros((3, layout.row_bytes), np.uint8)
        truth = position_bytes(layout, 2, seed=tp)
        engine = LayoutEngine(layout, truth, 2)
        entries = [(0, 2, 0), (1, 2, 1)]
        outcomes = engine.copy(Direction.STORE, entries, rows)
        assert sum(outcome.copied_bytes for outcome in outcomes) == layout.row_bytes
        reader = LayoutEngine(layout, None, 2)
        reader.copy(Direction.LOAD, entries, rows)
        for pages in reader.device:
            for found, right in zip(pages, truth, strict=True):
                np.testing.assert_array_equal(found, right)
