"""The direct layout: the parts of all workers, layers and blocks tile a chunk's bytes exactly once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvoffload.layout.direct import DirectLayout, direct_layouts
from kvoffload.testing.configs import example_config, example_group
from kvoffload.worker.pages import bind_group

pages = st.lists(st.integers(1, 64), min_size=1, max_size=5).map(tuple)


@settings(max_examples=150, deadline=None)
@given(pages, st.integers(1, 4), st.integers(1, 4))
def test_workers_layers_and_blocks_tile_the_row_exactly_once(
    page_bytes: tuple[int, ...], blocks_per_chunk: int, world_size: int
) -> None:
    layout = DirectLayout(blocks_per_chunk, world_size, sum(page_bytes))
    owners = np.zeros(layout.row_bytes, np.int64)
    for rank in range(world_size):
        start = layout.worker_offset_bytes(rank)
        for offset, page in zip(layout.layer_offsets_bytes(page_bytes), page_bytes, strict=True):
            for block in range(blocks_per_chunk):
                first = start + offset + block * page
                owners[first : first + page] += 1
                assert first + page <= layout.row_bytes
    assert (owners == 1).all()


@settings(max_examples=100, deadline=None)
@given(pages, st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(0, 9))
def test_bound_views_of_all_ranks_tile_the_rows_and_leave_the_padding_alone(
    page_bytes: tuple[int, ...], blocks_per_chunk: int, world_size: int, num_slots: int, pad: int
) -> None:
    layout = DirectLayout(blocks_per_chunk, world_size, sum(page_bytes))
    rows = np.zeros((num_slots, layout.row_bytes + pad), np.uint8)
    device = [np.zeros((2, page), np.uint8) for page in page_bytes]
    for rank in range(world_size):
        for view in bind_group(layout, rank, device, rows).host:
            np.add(view, 1, out=view)
    assert (rows[:, : layout.row_bytes] == 1).all()
    assert (rows[:, layout.row_bytes :] == 0).all()


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_outside_of_the_world_has_no_place(rank: int) -> None:
    with pytest.raises(AssertionError):
        DirectLayout(1, 2, 8).worker_offset_bytes(rank)


def test_pages_that_do_not_add_up_to_the_block_are_refused() -> None:
    layout = DirectLayout(1, 1, 8)
    with pytest.raises(AssertionError):
        layout.layer_offsets_bytes((4, 5))
    with pytest.raises(AssertionError):
        bind_group(layout, 0, [np.zeros((2, 7), np.uint8)], np.zeros((1, 8), np.uint8))


def test_pages_of_another_dtype_or_stride_are_refused() -> None:
    layout, rows = DirectLayout(1, 1, 8), np.zeros((1, 8), np.uint8)
    with pytest.raises(AssertionError):
        bind_group(layout, 0, [np.zeros((2, 8), np.float32)], rows)
    with pytest.raises(AssertionError):
        bind_group(layout, 0, [np.zeros((2, 16), np.uint8)[:, ::2]], rows)


def test_every_group_gets_its_own_layout_with_all_workers_in_a_row() -> None:
    groups = (example_group(0), example_group(1, worker_kv_bytes_per_block=512))
    config = example_config(world_size=4, groups=groups)
    assert [layout.row_bytes for layout in direct_layouts(config)] == [4 * 4096, 4 * 512]
