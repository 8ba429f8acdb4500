"""Which part of a row the ranks of one engine need, and into which pieces rows are cut so that parts can be verified.

Ranges differ from engine to engine. Pieces must not: they follow from what the bytes mean (the layout's signature), so all
engines that share chunks cut them alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import assert_never

import numpy as np

from kvoffload.config.pages import AttentionPage, LatentPage, OpaquePage, StatePage
from kvoffload.layout.canonical import CanonicalLayer, CanonicalLayout
from kvoffload.layout.chunk_format import fitting_piece_bytes
from kvoffload.layout.geometry import ParallelSizes
from kvoffload.layout.layouts import GroupLayout
from kvoffload.layout.mapping import block_tokens_of, map_page
from kvoffload.layout.runs import merged_ranges

ByteRanges = tuple[tuple[int, int], ...]
"""(start, length) pairs of a row, ascending, disjoint, none of them empty."""

_MIN_PIECE_BYTES = 16 * 1024
_MAX_PIECE_BYTES = 64 * 1024
"""From about 100 KB on, each call of the checksum gives up the interpreter lock, and must get it back."""
_STATE_PARTS = 8


@dataclass(frozen=True, slots=True)
class RowShape:
    """What a tier must know of the rows of one group. Raises ValueError when made with ranges that are none."""

    row_bytes: int
    """Of a chunk's buffer in jobs; 0: the group is not offloaded."""
    piece_bytes: int = 0
    """How long the pieces should be that are verified by themselves; 0: the row is one."""
    ranges: ByteRanges | None = None
    """What this engine loads of every row; None: all of it. An engine with ranges has no whole rows, so it stores none."""

    def __post_init__(self) -> None:
        if self.ranges is None:
            return
        starts_and_ends = [0, *(bound for start, length in self.ranges for bound in (start, start + length))]
        is_empty = not self.ranges or any(length < 1 for _, length in self.ranges)
        if (
            is_empty
            or starts_and_ends[-1] > self.row_bytes
            or any(a > b for a, b in pairwise(starts_and_ends))
        ):
            raise ValueError(
                f"ranges={self.ranges} must be ascending, disjoint, not empty, and within {self.row_bytes} bytes"
            )

    @property
    def needed_bytes(self) -> int:
        """How much of a row is loaded at least."""
        return self.row_bytes if self.ranges is None else sum(length for _, length in self.ranges)

    @property
    def touched_bytes(self) -> int:
        """How much a load moves that reads whole pieces."""
        if self.ranges is None:
            return self.row_bytes
        piece_bytes = fitting_piece_bytes(self.row_bytes, self.piece_bytes)
        touched, after = 0, 0
        for start, length in self.ranges:
            first, end = start // piece_bytes, -(-(start + length) // piece_bytes)
            touched += end - max(first, after)
            after = end
        return touched * piece_bytes - max(0, after * piece_bytes - self.row_bytes)


def row_shape(layout: GroupLayout, row_bytes: int, ranks: Iterable[int]) -> RowShape:
    """The shape of a group's rows for an engine, or the part of one on a node, that holds these ranks.

    Args:
        layout: The group's layout.
        row_bytes: Of a row, padding included.
        ranks: Those whose workers load from the rows.
    """
    return RowShape(row_bytes, piece_bytes_of(layout), ranges_of(layout, ranks))


def ranges_of(layout: GroupLayout, ranks: Iterable[int]) -> ByteRanges | None:
    """The ranges of a row that these ranks need together; None: all of it (the padding behind does not count)."""
    found = [_ranges_of_rank(layout, rank) for rank in ranks]
    assert found, "no ranks"
    together = np.concatenate(found)
    merged = merged_ranges(together[:, 0], together[:, 1])
    ranges = tuple((start, length) for start, length in merged.tolist())
    return None if ranges == ((0, layout.row_bytes),) else ranges


def _ranges_of_rank(layout: GroupLayout, rank: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    if isinstance(layout, CanonicalLayout):
        return layout.byte_ranges(rank)
    return np.array([[layout.worker_offset_bytes(rank), layout.worker_part_bytes]], dtype=np.int64)


def piece_bytes_of(layout: GroupLayout) -> int:
    """How long pieces should be: what one head needs of a page, within bounds; 0 if nobody will ever want a part.

    In the direct layout a row belongs to one parallel layout, and is read as it was written. This rule is as good as a part
    of the file format: engines with different ones would take each other's chunks for ones of a wrong length.
    """
    if not isinstance(layout, CanonicalLayout):
        return 0
    unit = min(_unit_bytes(layer, layout.sizes) for layer in layout.layers)
    power = 1 << max(0, unit.bit_length() - 1)
    return min(_MAX_PIECE_BYTES, max(_MIN_PIECE_BYTES, power))


def _unit_bytes(layer: CanonicalLayer, sizes: ParallelSizes) -> int:
    """Bytes of a layer that are of interest to a rank by themselves, at least. Depends on what is in the signature only."""
    page = layer.page
    match page:
        case AttentionPage() | LatentPage():
            return (page.canonical_tokens or block_tokens_of(page, sizes)) * sum(page.parts)
        case StatePage():
            whole = map_page(page, sizes, layer.stage * sizes.stage_size).canonical_bytes
            return whole // _STATE_PARTS
        case OpaquePage():
            return page.page_bytes
        case _:
            assert_never(page)
