"""Where ranks stand, what part of a model each holds, and whether a description (`config/pages.py`) holds together.

No offsets here: they are derived in `mapping.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from kvoffload.config.pages import AttentionPage, LatentPage, LayerPage, OpaquePage, StatePage, StateTensor


class UnmappableError(ValueError):
    """A page that has no canonical place under this parallel layout; the message is a readable reason."""


@dataclass(frozen=True, slots=True)
class ParallelSizes:
    """Sizes of the parallel layout. Ranks are numbered stage, then prefill context, then tensor (innermost)."""

    tp: int = 1
    pp: int = 1
    pcp: int = 1
    dcp: int = 1
    interleave_tokens: int = 1
    """Tokens that lie on one rank before the next one's begin."""
    pcp_shards_tokens: bool = False
    """Whether tokens are spread over PCP × DCP (earlier engines) instead of over DCP ranks alone, as vLLM 0.32 does."""

    @property
    def world_size(self) -> int:
        """Ranks of the engine."""
        return self.tp * self.pp * self.pcp

    @property
    def stage_size(self) -> int:
        """Ranks of one pipeline stage."""
        return self.tp * self.pcp

    @property
    def token_shards(self) -> int:
        """Ranks over which the tokens of a block are spread."""
        return self.dcp * (self.pcp if self.pcp_shards_tokens else 1)

    def fault(self) -> str | None:
        """Why no engine can be laid out like this; None if one can."""
        values = (self.tp, self.pp, self.pcp, self.dcp, self.interleave_tokens)
        if min(values) < 1:
            return f"parallel sizes must be at least 1: {self}"
        over = self.tp if self.pcp_shards_tokens else self.stage_size
        if over % self.dcp:
            return f"dcp {self.dcp} does not divide the {over} ranks that it spreads tokens over"
        return None


@dataclass(frozen=True, slots=True)
class Place:
    """Where one rank stands in the parallel layout."""

    rank: int
    stage: int
    tp_rank: int
    stage_rank: int
    """Number within its pipeline stage."""
    token_shard: int


@lru_cache(maxsize=256)
def places(sizes: ParallelSizes) -> tuple[Place, ...]:
    """The places of all ranks, in the order of the ranks.

    Source of the numbers: vLLM 0.32 spreads tokens over DCP groups that span PCP first, then TP; with
    `pcp_shards_tokens` the shard is pcp_rank × dcp + dcp_rank.

    Raises:
        UnmappableError: the sizes make no layout.
    """
    fault = sizes.fault()
    if fault:
        raise UnmappableError(fault)
    return tuple(_place(sizes, rank) for rank in range(sizes.world_size))


def _place(sizes: ParallelSizes, rank: int) -> Place:
    outer, tp_rank = divmod(rank, sizes.tp)
    stage, pcp_rank = divmod(outer, sizes.pcp)
    if sizes.pcp_shards_tokens:
        shard = pcp_rank * sizes.dcp + tp_rank % sizes.dcp
    else:
        shard = (tp_rank * sizes.pcp + pcp_rank) % sizes.dcp
    return Place(rank, stage, tp_rank, rank % sizes.stage_size, shard)


def unit_share(units: int, tp: int, tp_rank: int) -> range:
    """The units (heads, groups) of one rank: an equal part, or one that several ranks hold alike.

    Raises:
        UnmappableError: neither number divides the other.
    """
    if units % tp == 0:
        each = units // tp
        return range(tp_rank * each, (tp_rank + 1) * each)
    if tp % units == 0:
        unit = tp_rank // (tp // units)
        return range(unit, unit + 1)
    raise UnmappableError(f"{units} heads or groups cannot be shared by {tp} tensor-parallel ranks")


def as_attention(page: AttentionPage | LatentPage) -> AttentionPage:
    """A latent page as what it is to all offsets: one head that every rank holds."""
    if isinstance(page, AttentionPage):
        return page
    return AttentionPage(
        kv_heads=1,
        parts=page.parts,
        block_tokens=page.block_tokens,
        arrangement=page.arrangement,
        kernel_tokens=page.kernel_tokens,
        extras=page.extras,
        token_sharded=page.token_sharded,
        canonical_tokens=page.canonical_tokens,
    )


def geometry_fault(page: LayerPage, sizes: ParallelSizes) -> str | None:
    """Why a description contradicts itself or cannot be split over these ranks; None if all is well."""
    match page:
        case AttentionPage() | LatentPage():
            return _attention_fault(as_attention(page), sizes)
        case StatePage():
            return next(
                filter(None, map(_state_fault, page.tensors)), None if page.tensors else "an empty state"
            )
        case OpaquePage():
            return None if page.page_bytes > 0 else f"a page of {page.page_bytes} bytes"


def _attention_fault(page: AttentionPage, sizes: ParallelSizes) -> str | None:
    if min(page.kv_heads, page.block_tokens, len(page.parts), *page.parts, *page.extras) < 1:
        return f"sizes must be at least 1: {page}"
    if page.kernel_tokens < 0 or (page.kernel_tokens and page.block_tokens % page.kernel_tokens):
        return f"kernel blocks of {page.kernel_tokens} tokens do not divide a block of {page.block_tokens}"
    shards = sizes.token_shards if page.token_sharded else 1
    if shards > 1 and page.block_tokens % sizes.interleave_tokens:
        return f"an interleave of {sizes.interleave_tokens} tokens does not divide a block of {page.block_tokens}"
    tokens = page.block_tokens * shards
    if page.canonical_tokens < 0 or (page.canonical_tokens and tokens % page.canonical_tokens):
        return f"canonical pages of {page.canonical_tokens} tokens do not divide a block of {tokens}"
    return None


def _state_fault(tensor: StateTensor) -> str | None:
    if tensor.item_bytes < 1 or not tensor.shape or min(tensor.shape) < 1:
        return f"sizes must be at least 1: {tensor}"
    if not tensor.segments:
        return None
    if not 0 <= tensor.axis < len(tensor.shape):
        return f"there is no axis {tensor.axis} in {tensor}"
    total = sum(segment.units * segment.unit_items for segment in tensor.segments)
    if total != tensor.shape[tensor.axis]:
        return f"segments of {total} items do not fill axis {tensor.axis} of {tensor.shape}"
    if min(min(segment.units, segment.unit_items) for segment in tensor.segments) < 1:
        return f"an empty segment in {tensor}"
    return None
