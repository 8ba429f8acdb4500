"""Device pages and canonical rows as pairs of equally shaped views, so that every copier can do the canonical layout.

One pair per run. A run's dimensions become dimensions of the views, so numpy walks them, not Python:

    device[i]: (num_blocks, heads, tokens) of fragments   strides of the rank's page
    host[i]:   (num_slots, blocks_per_chunk, heads, tokens) of fragments   strides of the canonical page
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import as_strided

from kvoffload.layout.canonical import CanonicalLayout, RankLayer
from kvoffload.layout.runs import PageRun
from kvoffload.worker.pages import ByteArray, FragmentArray, GroupPages, Turn

_MAX_ITEM_BYTES = 4096
"""Longer fragments gain nothing from being items of their own."""


def bind_canonical(
    layout: CanonicalLayout, rank: int, device: Sequence[ByteArray], rows: ByteArray
) -> GroupPages:
    """Lay the canonical rows over a worker's device pages.

    Args:
        layout: Geometry of the group, of which `fault()` is None.
        rank: This worker.
        device: Pages of the layers that the rank owns, in the order of `layout.of_rank(rank)`: shape
            (num_blocks, page_bytes), uint8, padding behind a page allowed. Or one array with the pages of all of
            them side by side (a slab).
        rows: The group's rows in the host region: shape (num_slots, row_stride_bytes), uint8.

    Raises:
        AssertionError: the layout is not proved, or a page is not as long as the layout says.
    """
    fault = layout.fault()
    assert fault is None, fault
    assert rows.dtype == np.uint8, rows.dtype
    assert rows.shape[1] >= layout.row_bytes, (rows.shape, layout.row_bytes)
    assert rows.strides[1] == 1, rows.strides
    layers = layout.of_rank(rank)
    found: list[tuple[FragmentArray, FragmentArray, Turn]] = []
    for layer, pages in zip(layers, _per_layer(layers, device), strict=True):
        assert pages.dtype == np.uint8, pages.dtype
        assert pages.strides[1] == 1 or pages.shape[1] == 1, pages.strides
        assert pages.shape[1] >= layer.mapping.page_bytes, (layer.name, pages.shape, layer.mapping.page_bytes)
        for run in layer.mapping.runs:
            near = _view(pages, run, run.page_offset, (pages.shape[0],), (pages.strides[0],))
            far = _view(
                rows,
                run,
                layer.row_offset_bytes + run.canonical_offset,
                (rows.shape[0], layout.blocks_per_chunk),
                (rows.strides[0], layer.block_stride_bytes),
            )
            found.append((near, far, Turn(run.writers, run.writer_index, layer.number)))
    near_side, far_side, turns = zip(*found, strict=True) if found else ((), (), ())
    return GroupPages(layout.blocks_per_chunk, near_side, far_side, turns)


def _per_layer(layers: tuple[RankLayer, ...], device: Sequence[ByteArray]) -> Sequence[ByteArray]:
    """A slab, cut into its layers; anything else as it is."""
    sizes = [layer.mapping.page_bytes for layer in layers]
    if len(device) != 1 or len(layers) == 1:
        return device
    assert device[0].shape[1] == sum(sizes), (device[0].shape, sizes)
    ends = np.cumsum(sizes).tolist()
    return [device[0][:, end - size : end] for end, size in zip(ends, sizes, strict=True)]


def _view(
    memory: ByteArray, run: PageRun, offset: int, outer: tuple[int, ...], outer_strides: tuple[int, ...]
) -> FragmentArray:
    """One side of a run for all blocks or slots; shares the memory, never reaches beyond it."""
    on_device = len(outer) == 1
    steps = [dim.page_stride if on_device else dim.canonical_stride for dim in run.dims]
    counts = [dim.size for dim in run.dims]
    inner_last = offset + sum((count - 1) * step for count, step in zip(counts, steps, strict=True))
    last = inner_last + sum(
        (count - 1) * step for count, step in zip(outer[1:], outer_strides[1:], strict=True)
    )
    assert 0 <= offset <= last <= memory.shape[1] - run.fragment_bytes, (run, offset, last, memory.shape)
    view: FragmentArray = as_strided(
        memory[:, offset:], (*outer, *counts, run.fragment_bytes), (*outer_strides, *steps, 1)
    )
    if run.dims and run.fragment_bytes <= _MAX_ITEM_BYTES:
        # One item per fragment: numpy then moves whole fragments in its inner loop, up to five times as fast.
        view = view.view(np.dtype((np.void, run.fragment_bytes)))[..., 0]
    return view
