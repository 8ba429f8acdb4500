"""An engine's device memory without an engine: every rank's pages, cut from unsharded bytes by the oracle.

For tests of layouts and for `kvoffload verify-layout`: store under one parallel layout, load under another, compare.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from kvoffload.config.pages import LayerPage
from kvoffload.layout.canonical import CanonicalLayout
from kvoffload.layout.geometry import ParallelSizes
from kvoffload.layout.mapping import map_page
from kvoffload.layout.reference import reference_page
from kvoffload.messages import CopyJob, GroupCopies, JobOutcome
from kvoffload.types import Direction, JobId, RequestId
from kvoffload.worker.copier import Copier
from kvoffload.worker.copier_cpu import CPUCopier
from kvoffload.worker.pages import ByteArray, GroupPages
from kvoffload.worker.pages_canonical import bind_canonical

GARBAGE = 0xA5
"""What memory holds that nobody has written."""

_reference = lru_cache(maxsize=64)(reference_page)
_ODD = np.uint64(0x9E3779B97F4A7C15)


def slice_of(page: LayerPage, sizes: ParallelSizes, rank: int, truth: ByteArray) -> ByteArray:
    """What a rank holds of unsharded blocks.

    Args:
        page: The page.
        sizes: The parallel layout.
        rank: Whose.
        truth: shape (blocks, canonical bytes).

    Returns:
        shape (blocks, page bytes).
    """
    numbers, granule = _reference(page, sizes, rank)
    held: ByteArray = truth.reshape(len(truth), -1, granule)[:, numbers].reshape(len(truth), -1)
    return held


def position_bytes(layout: CanonicalLayout, num_blocks: int, seed: int = 0) -> list[ByteArray]:
    """Unsharded bytes of every layer, (num_blocks, canonical bytes), derived from layer, block and offset.

    A byte that lands in a wrong place differs from the right one with a probability of 255/256, a longer piece surely.
    Blocks that hold the same tokens have the same bytes under every layout of equal signature.
    """
    truth = []
    for number, layer in enumerate(layout.layers):
        mapping = map_page(layer.page, layout.sizes, layer.stage * layout.sizes.stage_size)
        count = num_blocks * mapping.canonical_bytes
        values = np.arange(count, dtype=np.uint64) + np.uint64((seed * 1009 + number) << 40)
        values *= _ODD
        values ^= values >> np.uint64(29)
        values *= _ODD
        truth.append((values >> np.uint64(56)).astype(np.uint8).reshape(num_blocks, -1))
    return truth


class LayoutEngine:
    """The device memory of all ranks.

    Args:
        layout: The layout of one group.
        truth: Per layer, the bytes of an engine without parallelism, (blocks, canonical bytes); None: blocks hold garbage.
        num_blocks: Blocks on every rank.
        pad_bytes: Behind each page.
        make_copier: What copies.
    """

    def __init__(
        self,
        layout: CanonicalLayout,
        truth: Sequence[ByteArray] | None,
        num_blocks: int,
        pad_bytes: int = 0,
        make_copier: Callable[[Sequence[GroupPages]], Copier] = CPUCopier,
    ) -> None:
        self._make_copier = make_copier
        self.layout, self.num_blocks, self.pad_bytes = layout, num_blocks, pad_bytes
        self.device: list[list[ByteArray]] = [
            [self._pages(layer.number, rank, truth) for layer in layout.of_rank(rank)]
            for rank in range(layout.sizes.world_size)
        ]

    def _pages(self, number: int, rank: int, truth: Sequence[ByteArray] | None) -> ByteArray:
        page, sizes = self.layout.layers[number].page, self.layout.sizes
        size = map_page(page, sizes, rank).page_bytes
        pages = np.full((self.num_blocks, size + self.pad_bytes), GARBAGE, np.uint8)
        if truth is not None:
            pages[:, :size] = slice_of(page, sizes, rank, truth[number])
        return pages

    def copy(
        self,
        direction: Direction,
        entries: Sequence[tuple[int, int, int]],
        rows: ByteArray,
        ranks: Sequence[int] | None = None,
    ) -> list[JobOutcome]:
        """Every rank (or those named) carries out one job.

        Args:
            direction: Of the job.
            entries: (block, slot, position).
            rows: The host's rows: (num_slots, at least row_bytes), uint8.
            ranks: Who takes part, if not all.
        """
        table = np.array(entries, dtype=np.int64).reshape(-1, 3)
        part = GroupCopies(0, table[:, 0].copy(), table[:, 1].copy(), table[:, 2].copy())
        job = CopyJob(JobId(1), RequestId("request"), direction, (part,))
        return [
            self._make_copier([bind_canonical(self.layout, rank, self.device[rank], rows)]).copy(job)
            for rank in (range(len(self.device)) if ranks is None else ranks)
        ]

    def first_difference(self, truth: Sequence[ByteArray]) -> str | None:
        """Where the memory is not what `truth` says, in words; None if it is everywhere."""
        for rank, pages in enumerate(self.device):
            for layer, found in zip(self.layout.of_rank(rank), pages, strict=True):
                page = self.layout.layers[layer.number].page
                right = slice_of(page, self.layout.sizes, rank, truth[layer.number])
                wrong = np.argwhere(found[:, : right.shape[1]] != right)
                if wrong.size:
                    block, byte = wrong[0].tolist()
                    return f"rank {rank}, {layer.name}, block {block}, byte {byte} of its page"
        return None
