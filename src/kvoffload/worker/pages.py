"""The worker's view of both sides of a copy: device pages and host places, as arrays that share their memory.

No torch here: on a CPU engine the connector hands over numpy views of its tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvoffload.layout.direct import DirectLayout

ByteArray = NDArray[np.uint8]

FragmentArray = NDArray[Any]
"""Bytes (uint8) or fragments of several bytes (void): what is copied as one item."""


class Turn(NamedTuple):
    """Who stores the bytes of a pair: `layout.election` says when."""

    writers: int
    writer_index: int
    layer: int


ALWAYS = Turn(1, 0, 0)
"""Bytes that no other rank holds."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupPages:
    """One group on one worker: pairs of views, one or more per layer.

    Shapes: `device[i]` is (num_blocks, *inner), `host[i]` is (num_slots, blocks_per_chunk, *inner) with the same inner
    shape and dtype. In the direct layout inner is (page_bytes,), dtype uint8, contiguous.
    """

    blocks_per_chunk: int
    device: tuple[FragmentArray, ...]
    host: tuple[FragmentArray, ...]
    turns: tuple[Turn, ...]
    """Of every pair. Stores write what the rank is elected for; loads read everything."""

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block, all layers together."""
        return sum(block_bytes(pages) for pages in self.device)


def block_bytes(device: FragmentArray) -> int:
    """Bytes of one block in a pair."""
    return prod(device.shape[1:]) * device.dtype.itemsize


def bind_group(layout: DirectLayout, rank: int, device: Sequence[ByteArray], rows: ByteArray) -> GroupPages:
    """Lay a worker's part of the host rows over its device pages.

    Args:
        layout: Geometry of the group.
        rank: This worker.
        device: Per layer, its pages: shape (num_blocks, page_bytes), uint8.
        rows: The group's rows in the host region: shape (num_slots, row_stride_bytes), uint8.

    Raises:
        AssertionError: the pages do not add up to the layout's block, or a view would be a copy.
    """
    pages = tuple(array.shape[1] for array in device)
    start = layout.worker_offset_bytes(rank)
    host = []
    for offset, page in zip(layout.layer_offsets_bytes(pages), pages, strict=True):
        first = start + offset
        part = rows[:, first : first + page * layout.blocks_per_chunk]
        view = part.reshape(rows.shape[0], layout.blocks_per_chunk, page)
        assert np.shares_memory(view, rows), "the host region must be used in place"
        host.append(view)
    for array in (*device, *host):
        assert array.dtype == np.uint8, array.dtype
        assert array.strides[-1] == 1 or array.shape[-1] == 1, array.strides
    return GroupPages(layout.blocks_per_chunk, tuple(device), tuple(host), (ALWAYS,) * len(host))
