"""How one rank holds one layer's page: plain descriptions that a connector fills in. No offsets: those are derived in `layout`.

Engine-neutral. All sizes are of the whole model (no parallelism) unless a field says "rank".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class HeadOrder(Enum):
    """Which of heads and tokens lies outside in the rank's page. Never changes the canonical bytes."""

    HND = "HND"
    NHD = "NHD"


class Arrangement(Enum):
    """Where the parts (K, V, …) of one token and head lie in the rank's page. Never changes the canonical bytes."""

    PACKED = "packed"
    """Side by side in the last dimension: [K|V] per token and head."""
    SPLIT = "split"
    """One plane per part: all K of the block, then all V."""


@dataclass(frozen=True, slots=True)
class AttentionPage:
    """Keys and values of one layer and one block, heads sharded (or replicated) over tensor parallelism.

    rank's page:   [ kernel block 0 | kernel block 1 | … ]
    kernel block:  [ heads × kernel_tokens × parts, by order and arrangement | extra 0: tokens | extra 1 … ]
    """

    kv_heads: int
    parts: tuple[int, ...]
    """Bytes of each part per token and head: (K, V), or (K, V, scales) if scales lie in the page."""
    block_tokens: int
    """Tokens of a block on one rank."""
    order: HeadOrder = HeadOrder.HND
    arrangement: Arrangement = Arrangement.PACKED
    kernel_tokens: int = 0
    """Tokens of the parts into which the engine's kernel splits a block; 0: it does not."""
    extras: tuple[int, ...] = ()
    """Bytes per token of buffers without heads behind the heads (an indexer's keys)."""
    token_sharded: bool = True
    """Whether context parallelism, where there is any, spreads the tokens of this layer over ranks."""
    canonical_tokens: int = 0
    """Tokens of a canonical page; 0: all tokens of a block, all ranks together."""
    canonical_order: HeadOrder = HeadOrder.HND
    """Which of heads and tokens lies outside in the canonical page. Unlike `order` it does change the canonical bytes."""


@dataclass(frozen=True, slots=True)
class LatentPage:
    """Tokens without heads (MLA, an indexer of its own): every tensor-parallel rank holds the same bytes.

    Fields: see AttentionPage.
    """

    parts: tuple[int, ...]
    block_tokens: int
    arrangement: Arrangement = Arrangement.PACKED
    kernel_tokens: int = 0
    extras: tuple[int, ...] = ()
    token_sharded: bool = True
    canonical_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a sharded axis that is split by itself, in whole units (heads, groups, or single channels)."""

    units: int
    unit_items: int = 1


@dataclass(frozen=True, slots=True)
class StateTensor:
    """One tensor of a recurrent state, as it is without parallelism, in C order."""

    shape: tuple[int, ...]
    item_bytes: int
    axis: int = 0
    """The axis that tensor parallelism shards."""
    segments: tuple[Segment, ...] = ()
    """They fill the axis in their order, e.g. query, key, value. Empty: not sharded, every rank holds all of it."""


@dataclass(frozen=True, slots=True)
class StatePage:
    """Recurrent state of one layer: tensors one behind the other, without the page's padding."""

    tensors: tuple[StateTensor, ...]


@dataclass(frozen=True, slots=True)
class OpaquePage:
    """A page that nobody vouches for: placed whole, at a place that only its rank uses. Never portable."""

    page_bytes: int
    """On one rank, equal on all ranks."""


LayerPage = AttentionPage | LatentPage | StatePage | OpaquePage


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """What a connector knows of one layer before anybody vouches for it."""

    name: str
    page: LayerPage | None
    """None: a layer of unknown kind."""
    rank_page_bytes: int
    """What the engine allocates for one block on one rank; used if the layer is kept opaque."""
    stage: int = 0
