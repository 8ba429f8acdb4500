"""Which byte of a rank's page is which byte of the canonical page: derives the runs from the descriptions.

    attention, `canonical_tokens` P tokens, H heads of the model:

        canonical page:  [ head 0: token 0 [K|V], … token P-1 [K|V] | head 1 … | head H-1 | extra 0: P tokens | … ]
        if NHD is asked:  [ token 0: head 0 [K|V], … head H-1 [K|V] | token 1 … | token P-1 | extra 0: P tokens | … ]

The heads of a tensor-parallel rank are one range of it, and so are all its bytes of a block if no context parallelism
spreads the tokens. A block of several canonical pages is a row of them. A recurrent state's canonical page is the
page of an engine without parallelism; an opaque one is all ranks' pages side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import prod

import numpy as np

from kvoffload.config.pages import (
    Arrangement,
    AttentionPage,
    HeadOrder,
    LatentPage,
    LayerPage,
    OpaquePage,
    StatePage,
    StateTensor,
)
from kvoffload.layout.geometry import (
    ParallelSizes,
    Place,
    UnmappableError,
    as_attention,
    geometry_fault,
    places,
    unit_share,
)
from kvoffload.layout.runs import Dim, Int64Array, PageRun, coalesce, factor


@dataclass(frozen=True, slots=True)
class CanonicalPageMapping:
    """How one rank's page of one block maps into the canonical one. Derived, never stored."""

    page_bytes: int
    """Of the rank's page, without padding."""
    canonical_bytes: int
    """Of one block, all ranks together."""
    runs: tuple[PageRun, ...]
    portable: bool
    """Whether the canonical bytes are the same under any parallel layout."""

    @property
    def is_replica(self) -> bool:
        """Whether this rank holds the whole canonical page."""
        return self.page_bytes == self.canonical_bytes


@lru_cache(maxsize=4096)
def map_page(page: LayerPage, sizes: ParallelSizes, rank: int) -> CanonicalPageMapping:
    """The mapping of one rank's page.

    Raises:
        UnmappableError: there is none, with the reason.
    """
    fault = sizes.fault() or geometry_fault(page, sizes)
    if fault:
        raise UnmappableError(fault)
    place = places(sizes)[rank]
    match page:
        case OpaquePage():
            run = PageRun(0, place.stage_rank * page.page_bytes, page.page_bytes)
            whole = page.page_bytes * sizes.stage_size
            return CanonicalPageMapping(page.page_bytes, whole, (run,), portable=False)
        case StatePage():
            runs, canonical_bytes = _map_state(page, sizes, place)
        case AttentionPage() | LatentPage():
            mapper = _AttentionMapper(as_attention(page), sizes, place)
            runs, canonical_bytes = tuple(mapper.runs()), mapper.canonical_bytes
    runs = coalesce(runs)
    return CanonicalPageMapping(sum(run.num_bytes for run in runs), canonical_bytes, runs, portable=True)


def block_tokens_of(page: AttentionPage | LatentPage, sizes: ParallelSizes) -> int:
    """Tokens of one block, all ranks together."""
    return page.block_tokens * (sizes.token_shards if page.token_sharded else 1)


def tokens_of(page: AttentionPage | LatentPage, sizes: ParallelSizes, shard: int) -> Int64Array:
    """Which tokens of a block a rank holds, in the order in which it holds them: shape (block_tokens,).

    Source: vLLM's slot mapping. Token t lies on shard (t // interleave) % shards.
    """
    local = np.arange(page.block_tokens, dtype=np.int64)
    if not page.token_sharded or sizes.token_shards == 1:
        return local
    period, within = np.divmod(local, sizes.interleave_tokens)
    return (period * sizes.token_shards + shard) * sizes.interleave_tokens + within


def _turns(sizes: ParallelSizes, place: Place, units: int, *, token_sharded: bool) -> tuple[int, int]:
    """How many ranks hold the same bytes of something shared by `units`, and which of them this one is."""
    mine = unit_share(units, sizes.tp, place.tp_rank)
    holders = [
        other.rank
        for other in places(sizes)
        if other.stage == place.stage
        and unit_share(units, sizes.tp, other.tp_rank) == mine
        and (other.token_shard == place.token_shard or not token_sharded)
    ]
    return len(holders), holders.index(place.rank)


class _AttentionMapper:
    """Offsets of one attention page; lives for one call of `map_page`."""

    def __init__(self, page: AttentionPage, sizes: ParallelSizes, place: Place) -> None:
        self.page, self.sizes, self.place = page, sizes, place
        self.heads = unit_share(page.kv_heads, sizes.tp, place.tp_rank)
        self.content = sum(page.parts)
        block = block_tokens_of(page, sizes)
        self.page_tokens = page.canonical_tokens or block
        self.canonical_page_bytes = self.page_tokens * (page.kv_heads * self.content + sum(page.extras))
        self.canonical_bytes = self.canonical_page_bytes * (block // self.page_tokens)
        self.kernel_tokens = page.kernel_tokens or page.block_tokens
        self.kernel_bytes = self.kernel_tokens * (len(self.heads) * self.content + sum(page.extras))

    def runs(self) -> Iterator[PageRun]:
        """One run per part and extra; adjacent ones are joined later."""
        page, count = self.page, len(self.heads)
        writers = _turns(self.sizes, self.place, page.kv_heads, token_sharded=page.token_sharded)
        for before, part in zip(_offsets(page.parts), page.parts, strict=True):
            packed = page.arrangement is Arrangement.PACKED
            step = self.content if packed else part
            start = before if packed else before * count * self.kernel_tokens
            inside = page.order is HeadOrder.NHD
            token_step, head_step = (count * step, step) if inside else (step, self.kernel_tokens * step)
            canonical_token_step, canonical_head_step = self._canonical_steps()
            head = Dim(count, head_step, canonical_head_step)
            place = self.heads.start * canonical_head_step + before
            yield self._run((start, place), part, (token_step, canonical_token_step), (head,), writers)
        writers = _turns(self.sizes, self.place, 1, token_sharded=page.token_sharded)
        for before, extra in zip(_offsets(page.extras), page.extras, strict=True):
            start = self.kernel_tokens * (count * self.content + before)
            place = self.page_tokens * (page.kv_heads * self.content + before)
            yield self._run((start, place), extra, (extra, extra), (), writers)

    def _canonical_steps(self) -> tuple[int, int]:
        """From one token to the next, and from one head to the next, in a canonical page."""
        if self.page.canonical_order is HeadOrder.NHD:
            return self.page.kv_heads * self.content, self.content
        return self.content, self.page_tokens * self.content

    def _run(
        self,
        offsets: tuple[int, int],
        fragment: int,
        token_steps: tuple[int, int],
        outer: tuple[Dim, ...],
        writers: tuple[int, int],
    ) -> PageRun:
        kernel, within_kernel = np.divmod(
            np.arange(self.page.block_tokens, dtype=np.int64), self.kernel_tokens
        )
        tokens = tokens_of(self.page, self.sizes, self.place.token_shard)
        number, within_page = np.divmod(tokens, self.page_tokens)
        in_page = kernel * self.kernel_bytes + within_kernel * token_steps[0]
        in_canonical = number * self.canonical_page_bytes + within_page * token_steps[1]
        return PageRun(
            page_offset=offsets[0] + int(in_page[0]),
            canonical_offset=offsets[1] + int(in_canonical[0]),
            fragment_bytes=fragment,
            dims=(*outer, *factor(in_page, in_canonical)),
            writers=writers[0],
            writer_index=writers[1],
        )


def _offsets(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return (0, *accumulate(sizes))[: len(sizes)]


def _map_state(page: StatePage, sizes: ParallelSizes, place: Place) -> tuple[tuple[PageRun, ...], int]:
    runs: list[PageRun] = []
    page_offset = canonical_offset = 0
    for tensor in page.tensors:
        found, held_bytes = _map_tensor(tensor, sizes, place, (page_offset, canonical_offset))
        runs += found
        page_offset += held_bytes
        canonical_offset += prod(tensor.shape) * tensor.item_bytes
    return tuple(runs), canonical_offset


def _map_tensor(
    tensor: StateTensor, sizes: ParallelSizes, place: Place, offsets: tuple[int, int]
) -> tuple[list[PageRun], int]:
    """The runs of one tensor, one per segment, and the bytes of it that the rank holds."""
    if not tensor.segments:
        whole = prod(tensor.shape) * tensor.item_bytes
        writers, index = _turns(sizes, place, 1, token_sharded=False)
        return [PageRun(*offsets, whole, (), writers, index)], whole
    rows = prod(tensor.shape[: tensor.axis])
    item = prod(tensor.shape[tensor.axis + 1 :]) * tensor.item_bytes
    shares = [unit_share(segment.units, sizes.tp, place.tp_rank) for segment in tensor.segments]
    units = [segment.unit_items * item for segment in tensor.segments]
    row_bytes = sum(len(share) * unit for share, unit in zip(shares, units, strict=True))
    canonical_row_bytes = tensor.shape[tensor.axis] * item
    runs = []
    start, canonical_start = offsets
    for segment, share, unit in zip(tensor.segments, shares, units, strict=True):
        held = len(share) * unit
        place_bytes = canonical_start + share.start * unit
        turns = _turns(sizes, place, segment.units, token_sharded=False)
        runs.append(PageRun(start, place_bytes, held, (Dim(rows, row_bytes, canonical_row_bytes),), *turns))
        start += held
        canonical_start += segment.units * unit
    return runs, rows * row_bytes
