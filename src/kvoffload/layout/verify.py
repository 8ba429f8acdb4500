"""The proof that has to pass before a byte is copied: over all ranks, for every turn, for every page.

1. Each rank's runs cover its own page exactly once, and each byte goes where `reference.py` says.
2. In every turn the runs of the elected writers tile the canonical page exactly once.

So a wrong, a doubled and a missing byte are all found, wherever a run was changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import compress
from math import lcm

import numpy as np

from kvoffload.config.pages import LayerPage
from kvoffload.layout.election import first_elected_step
from kvoffload.layout.geometry import ParallelSizes, UnmappableError
from kvoffload.layout.mapping import CanonicalPageMapping, map_page
from kvoffload.layout.reference import reference_page
from kvoffload.layout.runs import Int64Array, PageRun


def page_fault(
    page: LayerPage, sizes: ParallelSizes, mappings: Mapping[int, CanonicalPageMapping]
) -> str | None:
    """Why these mappings are not right for this page; None if they are.

    Args:
        page: The description.
        sizes: The parallel layout.
        mappings: By rank; the ranks of one pipeline stage, all of them.
    """
    for rank, mapping in mappings.items():
        fault = _rank_fault(page, sizes, rank, mapping)
        if fault:
            return f"rank {rank}: {fault}"
    return _tiling_fault(list(mappings.values()))


@lru_cache(maxsize=1024)
def derived_page_fault(page: LayerPage, sizes: ParallelSizes, stage: int = 0) -> str | None:
    """The same for the mappings that `map_page` derives for a pipeline stage; None is the proof."""
    if sizes.fault():
        return sizes.fault()
    try:
        ranks = range(stage * sizes.stage_size, (stage + 1) * sizes.stage_size)
        mappings = {rank: map_page(page, sizes, rank) for rank in ranks}
        return page_fault(page, sizes, mappings)
    except UnmappableError as reason:
        return str(reason)


def _rank_fault(
    page: LayerPage, sizes: ParallelSizes, rank: int, mapping: CanonicalPageMapping
) -> str | None:
    right, granule = reference_page(page, sizes, rank)
    if mapping.page_bytes != right.size * granule:
        return f"a page of {mapping.page_bytes} bytes, not of {right.size * granule}"
    found = np.full(right.size, -1, dtype=np.int64)
    written = 0
    for run in mapping.runs:
        pieces = _granules(run, granule)
        if pieces is None:
            return f"{run} does not consist of whole items"
        in_page, in_canonical = pieces
        if in_page.min() < 0 or in_page.max() >= right.size:
            return f"{run} leaves the page"
        found[in_page] = in_canonical
        written += in_page.size
    if written != right.size or (found < 0).any():
        return (
            f"runs of {written * granule} bytes do not cover the page of {right.size * granule} exactly once"
        )
    wrong = np.flatnonzero(found != right)
    return f"byte {wrong[0] * granule} of the page is not what its run says" if wrong.size else None


def _granules(run: PageRun, granule: int) -> tuple[Int64Array, Int64Array] | None:
    """The granules of a run on either side: two arrays of equal shape; None if it does not consist of whole ones."""
    if run.num_bytes < 1 or run.fragment_bytes < 1:
        return None
    in_page, in_canonical = run.page_starts(), run.canonical_starts()
    if run.fragment_bytes % granule or (in_page % granule).any() or (in_canonical % granule).any():
        return None
    inner = np.arange(run.fragment_bytes // granule)
    first, first_canonical = in_page[:, None] // granule, in_canonical[:, None] // granule
    return (first + inner).reshape(-1), (first_canonical + inner).reshape(-1)


def _tiling_fault(mappings: list[CanonicalPageMapping]) -> str | None:
    whole = {mapping.canonical_bytes for mapping in mappings}
    if len(whole) != 1:
        return f"the ranks disagree on the size of the canonical page: {sorted(whole)}"
    runs = [run for mapping in mappings for run in mapping.runs]
    if any(not 0 <= run.writer_index < run.writers for run in runs):
        return "a writer has a number that is never elected"
    turn = _first_turn_that_does_not_tile(runs, mappings[0].canonical_bytes)
    return (
        None
        if turn is None
        else f"in turn {turn} the elected writers do not tile the canonical page exactly once"
    )


def _first_turn_that_does_not_tile(runs: list[PageRun], whole: int) -> int | None:
    places = [(run.canonical_starts(), run.fragment_bytes) for run in runs]
    for turn in range(lcm(*(run.writers for run in runs))):
        writing = [first_elected_step(turn, run.writers, run.writer_index) == 0 for run in runs]
        if not _tiles(list(compress(places, writing)), whole):
            return turn
    return None


def _tiles(writes: list[tuple[Int64Array, int]], whole: int) -> bool:
    if not writes:
        return False
    starts = np.concatenate([place for place, _ in writes])
    lengths = np.concatenate([np.full(place.size, length) for place, length in writes])
    order = np.argsort(starts)
    starts, ends = starts[order], (starts + lengths)[order]
    return bool(starts[0] == 0 and ends[-1] == whole and (starts[1:] == ends[:-1]).all())
