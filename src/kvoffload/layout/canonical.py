"""The canonical layout: every layer as it would be without parallelism, stored once, readable under any parallelism.

    row of a chunk:   [ layer 0: block 0 … block B-1 | layer 1: block 0 … block B-1 | … ]

All layers of the group are in it, whichever pipeline stage owns them; a rank touches those of its own stage. What
a block's canonical bytes are is said in `mapping.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

import numpy as np

from kvoffload.config.pages import (
    AttentionPage,
    HeadOrder,
    LatentPage,
    LayerFacts,
    LayerPage,
    OpaquePage,
    StatePage,
    StateTensor,
)
from kvoffload.layout.certify import Certified, SeenTensor, Uncertified, certify, kept_as
from kvoffload.layout.geometry import ParallelSizes, places
from kvoffload.layout.mapping import CanonicalPageMapping, block_tokens_of, map_page
from kvoffload.layout.runs import Int64Array, merged_ranges
from kvoffload.layout.verify import derived_page_fault

FAMILY = "canonical"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class CanonicalLayer:
    """One layer of a group."""

    name: str
    page: LayerPage
    stage: int = 0
    """The pipeline stage that owns it."""


@dataclass(frozen=True, slots=True)
class RankLayer:
    """One layer as one rank sees it."""

    number: int
    """Of the layer in the group: part of the election's turn."""
    name: str
    row_offset_bytes: int
    """Where the layer's first block begins in a row."""
    mapping: CanonicalPageMapping

    @property
    def block_stride_bytes(self) -> int:
        """From one block of the layer to the next in a row."""
        return self.mapping.canonical_bytes


@dataclass(frozen=True)
class CanonicalLayout:
    """Geometry of one group's chunks in the canonical layout.

    Args:
        layers: All layers of the group, of all stages, in an order that does not depend on the stages (`in_model_order`).
        blocks_per_chunk: Blocks of a chunk.
        sizes: The parallel layout.

    Raises:
        UnmappableError: (from the properties) a page contradicts itself; `fault()` gives the reason instead.
    """

    layers: tuple[CanonicalLayer, ...]
    blocks_per_chunk: int
    sizes: ParallelSizes

    def fault(self) -> str | None:
        """Why this layout must not be used; None if it is proved for all ranks."""
        if self.sizes.fault():
            return self.sizes.fault()
        for layer in self.layers:
            if not 0 <= layer.stage < self.sizes.pp:
                return f"layer {layer.name}: there is no stage {layer.stage}"
            fault = derived_page_fault(layer.page, self.sizes, layer.stage)
            if fault:
                return f"layer {layer.name}: {fault}"
        return None

    @cached_property
    def _offsets_bytes(self) -> tuple[int, ...]:
        """Where the layers begin; the last entry is where they end."""
        blocks = (self._mapping(layer, 0).canonical_bytes * self.blocks_per_chunk for layer in self.layers)
        return (0, *accumulate(blocks))

    def _mapping(self, layer: CanonicalLayer, stage_rank: int) -> CanonicalPageMapping:
        return map_page(layer.page, self.sizes, layer.stage * self.sizes.stage_size + stage_rank)

    @property
    def row_bytes(self) -> int:
        """Bytes of a whole chunk, without padding."""
        return self._offsets_bytes[-1]

    @property
    def portable(self) -> bool:
        """Whether a row means the same under any parallel layout."""
        return all(not isinstance(layer.page, OpaquePage) for layer in self.layers)

    @property
    def opaque_layers(self) -> tuple[str, ...]:
        """Names of the layers that nobody vouches for."""
        return tuple(layer.name for layer in self.layers if isinstance(layer.page, OpaquePage))

    def of_rank(self, rank: int) -> tuple[RankLayer, ...]:
        """The layers that a rank owns, in the group's order."""
        place = places(self.sizes)[rank]
        return tuple(
            RankLayer(number, layer.name, offset, self._mapping(layer, place.stage_rank))
            for number, (layer, offset) in enumerate(zip(self.layers, self._offsets_bytes, strict=False))
            if layer.stage == place.stage
        )

    def byte_ranges(self, rank: int, merge_gap_bytes: int = 0) -> Int64Array:
        """The ranges of a row that a rank needs for a load, ascending, disjoint.

        Args:
            rank: Which rank.
            merge_gap_bytes: Ranges that are at most so far apart are joined.

        Returns:
            (start, length) pairs: shape (n, 2), dtype int64.
        """
        starts, lengths = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for layer in self.of_rank(rank):
            blocks = np.arange(self.blocks_per_chunk, dtype=np.int64) * layer.block_stride_bytes
            first = (layer.row_offset_bytes + blocks)[:, None]
            for run in layer.mapping.runs:
                found = (first + run.canonical_starts()).reshape(-1)
                starts.append(found)
                lengths.append(np.full(found.size, run.fragment_bytes, dtype=np.int64))
        return merged_ranges(np.concatenate(starts), np.concatenate(lengths), merge_gap_bytes)

    def signature(self) -> str:
        """What the bytes of a row mean, and nothing of how ranks hold them: a field of the namespace.

        Equal signatures, equal meaning. An opaque layer brings the parallel layout in, since its bytes depend on it.
        """
        layers = "; ".join(
            page_signature(layer.page, self.sizes, self.blocks_per_chunk) for layer in self.layers
        )
        parallel = "" if self.portable else f"; {self.sizes}"
        return f"{FAMILY}/{FORMAT_VERSION}: {layers}{parallel}"


def plan_canonical(
    facts: Sequence[LayerFacts], blocks_per_chunk: int, sizes: ParallelSizes
) -> tuple[CanonicalLayout, dict[str, str]]:
    """The layout of a group: certified layers canonical, the others opaque.

    Args:
        facts: All layers of the group, of all stages, in the order of the model.
        blocks_per_chunk: Blocks of a chunk.
        sizes: The parallel layout.

    Returns:
        The layout, and why each opaque layer is opaque, by name. The chunks are portable exactly if there is none.
    """
    layers, reasons = [], {}
    for layer in facts:
        verdict = certify(layer.page, sizes)
        if isinstance(verdict, Uncertified):
            reasons[layer.name] = verdict.reason
        layers.append(CanonicalLayer(layer.name, kept_as(verdict, layer.rank_page_bytes), layer.stage))
    return CanonicalLayout(tuple(layers), blocks_per_chunk, sizes), reasons


def seen_fault(layout: CanonicalLayout, rank: int, seen: Mapping[str, SeenTensor]) -> str | None:
    """Why the tensors that a rank registered contradict the layout; None if they fit.

    Only the order of heads and tokens may differ from the description: `with_seen_order` takes it over.
    """
    for layer in layout.of_rank(rank):
        page = layout.layers[layer.number].page
        if isinstance(page, OpaquePage):
            continue
        if layer.name not in seen:
            return f"layer {layer.name} was not registered"
        verdict = certify(page, layout.sizes, seen[layer.name], rank)
        if isinstance(verdict, Uncertified):
            return f"layer {layer.name}: {verdict.reason}"
    return None


def with_seen_order(layout: CanonicalLayout, rank: int, seen: Mapping[str, SeenTensor]) -> CanonicalLayout:
    """The same rows for an engine whose tensors look as seen; `seen_fault` must be None. Does not mutate."""
    order = {}
    for layer in layout.of_rank(rank):
        verdict = certify(layout.layers[layer.number].page, layout.sizes, seen.get(layer.name), rank)
        if isinstance(verdict, Certified):
            order[layer.name] = verdict.page
    layers = (replace(layer, page=order.get(layer.name, layer.page)) for layer in layout.layers)
    return replace(layout, layers=tuple(layers))


def page_signature(page: LayerPage, sizes: ParallelSizes, blocks: int) -> str:
    """What the canonical bytes of one layer's `blocks` blocks mean.

    Head order, arrangement, ranks, and how many tokens the engine calls a block leave no trace in it.
    """
    match page:
        case AttentionPage() | LatentPage():
            block = block_tokens_of(page, sizes)
            tokens = page.canonical_tokens or block
            heads = _heads_text(page) if isinstance(page, AttentionPage) else "latent"
            parts, extras = ("+".join(map(str, each)) for each in (page.parts, page.extras))
            pages = f"{blocks * block // tokens} pages of {tokens} tokens"
            return f"{heads} of {parts} bytes, {pages}" + (f", extra {extras} bytes" if extras else "")
        case StatePage():
            tensors = ", ".join(map(_tensor_text, page.tensors))
            return f"{blocks} states of {tensors}"
        case OpaquePage():
            return f"{blocks} opaque pages of {page.page_bytes} bytes"


def _heads_text(page: AttentionPage) -> str:
    outside = " inside of tokens" if page.canonical_order is HeadOrder.NHD else ""
    return f"{page.kv_heads} heads{outside}"


def _tensor_text(tensor: StateTensor) -> str:
    # How ranks share an axis decides what the whole is that they put together.
    segments = "+".join(f"{segment.units}x{segment.unit_items}" for segment in tensor.segments)
    shared = f", axis {tensor.axis} as {segments}" if segments else ""
    return f"{tensor.shape} of {tensor.item_bytes} bytes{shared}"


def in_model_order(names: Sequence[str]) -> list[str]:
    """Layer names in the order of the numbers in them (layer 2 before layer 10), whatever stage named them first."""
    return sorted(names, key=lambda name: (list(map(int, re.findall(r"\d+", name))), name))


def even_stages(num_layers: int, pp: int) -> tuple[int, ...]:
    """The stage of every layer if nobody says otherwise.

    Source: vLLM gives each stage num_layers // pp layers, and one more each to those before the last, from the end.
    """
    counts = [num_layers // pp] * pp
    for extra in range(num_layers % pp):
        counts[-(extra + 2)] += 1
    return tuple(stage for stage, count in enumerate(counts) for _ in range(count))


def names_of_all_stages(
    own: Sequence[str], stage_of_layer: Sequence[int], stage: int
) -> tuple[str, ...] | None:
    """The names of a group's layers of all pipeline stages, from those of one stage; None if they do not tell.

    An engine tells each stage its own layers alone, and a row contains all of them.

    Args:
        own: The layers of this stage, in any order: all of its layers, each with its number between dots.
        stage_of_layer: The stage of every layer of the model (`even_stages`).
        stage: This stage.
    """
    mine = [layer for layer, owner in enumerate(stage_of_layer) if owner == stage]
    if not mine or len(mine) != len(own):
        return None
    parts = {
        tuple(re.split(rf"(?:^|(?<=\.)){layer}(?=\.|$)", name))
        for layer, name in zip(mine, in_model_order(own), strict=True)
    }
    found = next(iter(parts))
    if len(parts) != 1 or len(found) != 2:
        return None
    return tuple(f"{found[0]}{layer}{found[1]}" for layer in range(len(stage_of_layer)))


def with_canonical_tokens(page: LayerPage, tokens: int) -> LayerPage:
    """The same page, kept as canonical pages of so many tokens.

    So context-parallel engines, whose blocks span more tokens, can share chunks with the others.
    """
    return replace(page, canonical_tokens=tokens) if isinstance(page, AttentionPage | LatentPage) else page
