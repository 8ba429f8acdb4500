"""Runs: strided byte correspondences between a rank's page and the canonical page, and their arithmetic.

Nothing here knows what a head or a token is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvoffload.layout.geometry import UnmappableError

Int64Array = NDArray[np.int64]


class Dim(NamedTuple):
    """One dimension of a run: `size` places, so many bytes apart on either side."""

    size: int
    page_stride: int
    canonical_stride: int


@dataclass(frozen=True, slots=True)
class PageRun:
    """Fragments of equal length at regular distances.

    Fragment (i, j, …) is `fragment_bytes` long and begins at page_offset + i·page_stride₀ + j·page_stride₁ + … in the
    rank's page, and likewise in the canonical page.
    """

    page_offset: int
    canonical_offset: int
    fragment_bytes: int
    dims: tuple[Dim, ...] = ()
    """Outermost first."""
    writers: int = 1
    """Ranks that hold exactly these bytes."""
    writer_index: int = 0
    """Number of this rank among them."""

    @property
    def fragments(self) -> int:
        """How many fragments there are."""
        return int(np.prod([dim.size for dim in self.dims], dtype=np.int64))

    @property
    def num_bytes(self) -> int:
        """Bytes of all fragments."""
        return self.fragments * self.fragment_bytes

    def page_starts(self) -> Int64Array:
        """Where the fragments begin in the rank's page: shape (fragments,)."""
        return _starts(self.page_offset, [(dim.size, dim.page_stride) for dim in self.dims])

    def canonical_starts(self) -> Int64Array:
        """Where the fragments begin in the canonical page, in the same order: shape (fragments,)."""
        return _starts(self.canonical_offset, [(dim.size, dim.canonical_stride) for dim in self.dims])


def _starts(offset: int, dims: Iterable[tuple[int, int]]) -> Int64Array:
    starts = np.array([offset], dtype=np.int64)
    for count, stride in dims:
        starts = (starts[:, None] + np.arange(count, dtype=np.int64) * stride).reshape(-1)
    return starts


def factor(page: Int64Array, canonical: Int64Array) -> tuple[Dim, ...]:
    """Nested regular steps that make two lists of offsets, which belong together entry by entry.

    Args:
        page: shape (n,), n above 0; only the differences count.
        canonical: the same.

    Raises:
        UnmappableError: they are not made of nested regular steps.
    """
    dims: list[Dim] = []
    while page.size > 1:
        count, step = _regular_beginning(page, canonical)
        page_rows, canonical_rows = page.reshape(-1, count), canonical.reshape(-1, count)
        inner = np.arange(count)
        regular = (page_rows - page_rows[:, :1] == inner * step[0]).all() and (
            canonical_rows - canonical_rows[:, :1] == inner * step[1]
        ).all()
        if not regular:
            raise UnmappableError("tokens, kernel blocks and interleaving do not nest")
        dims.insert(0, Dim(count, *step))
        page, canonical = page_rows[:, 0], canonical_rows[:, 0]
    return tuple(dims)


def _regular_beginning(page: Int64Array, canonical: Int64Array) -> tuple[int, tuple[int, int]]:
    page_steps, canonical_steps = np.diff(page), np.diff(canonical)
    other = (page_steps != page_steps[0]) | (canonical_steps != canonical_steps[0])
    count = int(np.argmax(other)) + 1 if other.any() else page.size
    if page.size % count:
        raise UnmappableError("tokens, kernel blocks and interleaving do not nest")
    return count, (int(page_steps[0]), int(canonical_steps[0]))


def coalesce(runs: Iterable[PageRun]) -> tuple[PageRun, ...]:
    """The same bytes in as few and as long fragments as there can be. Does not mutate; keeps the order."""
    found = tuple(runs)
    while True:
        shorter = tuple(_simplified(run) for run in _joined(found))
        if shorter == found:
            return found
        found = shorter


def _simplified(run: PageRun) -> PageRun:
    """One run, without dimensions that are none."""
    dims: list[Dim] = []
    fragment = run.fragment_bytes
    for dim in reversed(run.dims):
        if dim.size == 1:
            continue
        if not dims and dim.page_stride == dim.canonical_stride == fragment:
            fragment *= dim.size
        elif dims and _continues(dim, dims[0]):
            dims[0] = dims[0]._replace(size=dim.size * dims[0].size)
        else:
            dims.insert(0, dim)
    return replace(run, fragment_bytes=fragment, dims=tuple(dims))


def _continues(outer: Dim, inner: Dim) -> bool:
    return (outer.page_stride, outer.canonical_stride) == (
        inner.size * inner.page_stride,
        inner.size * inner.canonical_stride,
    )


def _joined(runs: tuple[PageRun, ...]) -> list[PageRun]:
    """Runs that lie end to end on both sides, fragment by fragment, as one."""
    joined: list[PageRun] = []
    for run in runs:
        before = joined[-1] if joined else None
        if before is not None and run == replace(
            before,
            page_offset=before.page_offset + before.fragment_bytes,
            canonical_offset=before.canonical_offset + before.fragment_bytes,
            fragment_bytes=run.fragment_bytes,
        ):
            joined[-1] = replace(before, fragment_bytes=before.fragment_bytes + run.fragment_bytes)
        else:
            joined.append(run)
    return joined


def merged_ranges(starts: Int64Array, lengths: Int64Array, gap_bytes: int = 0) -> Int64Array:
    """Ranges in ascending order, joined where at most `gap_bytes` lie between them.

    Args:
        starts: shape (n,), in any order; the ranges may overlap.
        lengths: shape (n,).
        gap_bytes: bytes that may be read in vain to save a range.

    Returns:
        (start, length) pairs: shape (m, 2), dtype int64.
    """
    if not starts.size:
        return np.zeros((0, 2), dtype=np.int64)
    order = np.argsort(starts, kind="stable")
    starts = starts[order]
    reach = np.maximum.accumulate(starts + lengths[order])
    first = np.concatenate(([True], starts[1:] > reach[:-1] + gap_bytes))
    last = np.concatenate((first[1:], [True]))
    return np.stack((starts[first], reach[last] - starts[first]), axis=1)
