"""Which part of a row some ranks need, and into which pieces rows are cut: the same for all who share them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_strategies import parallel_sizes, thorough

from kvoffload.config.pages import AttentionPage, LatentPage, OpaquePage, Segment, StatePage, StateTensor
from kvoffload.layout.canonical import CanonicalLayer, CanonicalLayout, even_stages
from kvoffload.layout.direct import DirectLayout
from kvoffload.layout.geometry import ParallelSizes
from kvoffload.layout.partial import RowShape, piece_bytes_of, ranges_of, row_shape

PAGE = AttentionPage(kv_heads=8, parts=(256, 256), block_tokens=16)
"""8 heads of 128 numbers of 2 bytes: 8 KiB per head and block."""


def layout_of(page, sizes: ParallelSizes, layers: int = 4, per_chunk: int = 2) -> CanonicalLayout:
    stages = even_stages(layers, sizes.pp)
    return CanonicalLayout(
        tuple(CanonicalLayer(f"layer.{i}", page, stage) for i, stage in enumerate(stages)), per_chunk, sizes
    )


def bytes_of(layout, ranks) -> np.ndarray:
    """Which bytes of a row these ranks need, looked up rank by rank."""
    needed = np.zeros(layout.row_bytes, bool)
    for rank in ranks:
        for start, length in layout.byte_ranges(rank).tolist():
            needed[start : start + length] = True
    return needed


@thorough(max_examples=60)
@given(parallel_sizes(kv_heads=4), st.data())
def test_ranks_together_need_what_each_of_them_needs(sizes: ParallelSizes, data: st.DataObject) -> None:
    layout = layout_of(AttentionPage(4, (2, 4), 8), sizes)
    ranks = data.draw(st.lists(st.integers(0, sizes.world_size - 1), min_size=1, unique=True))
    needed = bytes_of(layout, ranks)
    ranges = ranges_of(layout, ranks)
    found = np.zeros(layout.row_bytes, bool)
    for start, length in ranges or ((0, layout.row_bytes),):
        assert not found[start : start + length].any(), "a byte is named twice"
        found[start : start + length] = True
    np.testing.assert_array_equal(found, needed)
    assert (ranges is None) == needed.all()
    # What is said of them is fit to be given to a tier.
    assert row_shape(layout, layout.row_bytes + 100, ranks).ranges == ranges


@thorough(max_examples=40)
@given(parallel_sizes(kv_heads=4))
def test_all_ranks_together_need_the_whole_row(sizes: ParallelSizes) -> None:
    layout = layout_of(AttentionPage(4, (2, 4), 8), sizes)
    if layout.fault() is None:
        assert ranges_of(layout, range(sizes.world_size)) is None


def test_half_of_the_tensor_parallel_ranks_need_half_of_each_block() -> None:
    layout = layout_of(PAGE, ParallelSizes(tp=4))
    block = 64 * 1024
    assert ranges_of(layout, (2, 3)) == tuple(
        (number * block + block // 2, block // 2) for number in range(8)
    )
    assert row_shape(layout, layout.row_bytes, (2, 3)).needed_bytes == layout.row_bytes // 2


def test_a_node_of_one_pipeline_stage_needs_its_layers_in_one_range() -> None:
    layout = layout_of(PAGE, ParallelSizes(tp=2, pp=2))
    half = layout.row_bytes // 2
    assert ranges_of(layout, (0, 1)) == ((0, half),)
    assert ranges_of(layout, (2, 3)) == ((half, half),)


def test_in_the_direct_layout_ranks_need_their_own_parts() -> None:
    layout = DirectLayout(blocks_per_chunk=2, world_size=4, worker_bytes_per_block=1000)
    assert ranges_of(layout, (1, 2)) == ((2000, 4000),)
    assert ranges_of(layout, (0, 3)) == ((0, 2000), (6000, 2000))
    assert ranges_of(layout, range(4)) is None
    assert row_shape(layout, 8192, range(4)) == RowShape(8192)


def test_replicas_need_everything() -> None:
    layout = layout_of(LatentPage((1152,), 16), ParallelSizes(tp=4))
    assert ranges_of(layout, (3,)) is None


@thorough(max_examples=60)
@given(parallel_sizes(kv_heads=4), parallel_sizes(kv_heads=4), st.sampled_from((256, 4096, 2**20)))
def test_engines_that_share_rows_cut_them_alike(one: ParallelSizes, other: ParallelSizes, part: int) -> None:
    page = AttentionPage(4, (part, part), 8)
    layouts = []
    for sizes in (one, other):
        tokens = replace(page, canonical_tokens=8)
        layouts.append(layout_of(tokens, sizes, per_chunk=64 // sizes.token_shards))
    if layouts[0].signature() == layouts[1].signature():
        assert piece_bytes_of(layouts[0]) == piece_bytes_of(layouts[1])


STATE = StatePage((StateTensor((64, 128, 128), 4, 0, (Segment(64),)),))


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (PAGE, 16 * 1024),  # a head has 8 KiB: the least that is worth a read of its own
        (replace(PAGE, block_tokens=64), 32 * 1024),
        (replace(PAGE, block_tokens=96), 32 * 1024),
        (replace(PAGE, block_tokens=1024), 64 * 1024),
        (replace(PAGE, block_tokens=1024, canonical_tokens=16), 16 * 1024),
        (LatentPage((1152,), 64), 64 * 1024),
        (STATE, 64 * 1024),
        (OpaquePage(20_000), 16 * 1024),
    ],
)
def test_pieces_are_as_long_as_what_a_rank_may_want_within_bounds(page, expected: int) -> None:
    assert piece_bytes_of(layout_of(page, ParallelSizes())) == expected


def test_the_shortest_layer_counts_and_nobody_cuts_a_direct_row() -> None:
    layers = (
        CanonicalLayer("a", LatentPage((1152,), 64)),
        CanonicalLayer("b", replace(PAGE, block_tokens=64)),
    )
    assert piece_bytes_of(CanonicalLayout(layers, 1, ParallelSizes())) == 32 * 1024
    assert piece_bytes_of(DirectLayout(1, 2, 10**6)) == 0


@pytest.mark.parametrize(
    "ranges",
    [
        (),
        ((0, 0),),
        ((5, 10), (14, 2)),
        ((20, 1), (10, 1)),
        ((-1, 5),),
        ((90, 11),),
        ((101, 1),),
        ((50, -10),),
    ],
)
def test_ranges_that_are_none_are_refused(ranges: tuple) -> None:
    with pytest.raises(ValueError, match="ascending, disjoint"):
        RowShape(100, 0, ranges)
    assert RowShape(100, 0, ((0, 50), (50, 50))).needed_bytes == 100
