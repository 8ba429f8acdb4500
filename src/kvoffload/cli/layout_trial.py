"""What `kvoffload verify-layout` does: stores synthetic bytes under every parallel layout and reads them under every other.

Knows models and layouts; how it is shown stands in `verify_layout.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import lcm

import numpy as np

from kvoffload.config.pages import AttentionPage, HeadOrder, LatentPage, LayerPage
from kvoffload.layout.canonical import CanonicalLayer, CanonicalLayout, even_stages, with_canonical_tokens
from kvoffload.layout.certify import Uncertified, certify
from kvoffload.layout.geometry import ParallelSizes, UnmappableError
from kvoffload.layout.mapping import block_tokens_of
from kvoffload.testing.layout_engine import LayoutEngine, position_bytes
from kvoffload.types import Direction

CHUNKS = 3
MAX_LAYERS = 8
"""Of one kind that are tried out, or two per stage: the others are mapped in the same way."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One engine: a parallel layout and an order of heads and tokens."""

    sizes: ParallelSizes
    order: HeadOrder

    @property
    def name(self) -> str:
        """Short and readable."""
        sizes = self.sizes
        more = "".join(f" {key}{n}" for key, n in (("PP", sizes.pp), ("DCP", sizes.dcp)) if n > 1)
        return f"TP{sizes.tp}{more} {self.order.value}"


@dataclass(frozen=True, slots=True)
class Answer:
    """One kind of layer, stored under one variant and read under another."""

    kind: str
    stored_under: str
    read_under: str
    byte_equal: bool
    difference: str | None
    """Where the first wrong byte is."""
    compared_bytes: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """A variant under which a kind of layer has no canonical place: kept opaque there, never shared."""

    kind: str
    variant: str
    reason: str


def variants(tp: Sequence[int], pp: Sequence[int], dcp: Sequence[int]) -> tuple[Variant, ...]:
    """All engines that can be made of these sizes, with both orders of heads and tokens."""
    found = [ParallelSizes(tp=t, pp=p, dcp=d) for t, p, d in product(tp, pp, dcp)]
    return tuple(
        Variant(sizes, order)
        for sizes in found
        if sizes.fault() is None
        for order in (HeadOrder.HND, HeadOrder.NHD)
    )


def try_out(pages: Sequence[LayerPage | None], engines: Sequence[Variant]) -> Iterator[Answer | Refusal]:
    """Try every pair of engines with every kind of layer that the model has."""
    for page in dict.fromkeys(pages):
        count = min(
            sum(other == page for other in pages), max(MAX_LAYERS, *(2 * v.sizes.pp for v in engines))
        )
        kind = "unknown" if page is None else _kind(page)
        yield from _try_kind(kind, page, count, engines)


def _kind(page: LayerPage) -> str:
    match page:
        case AttentionPage():
            return f"attention, {page.kv_heads} KV heads of {'+'.join(map(str, page.parts))} bytes"
        case LatentPage():
            return f"latent of {'+'.join(map(str, page.parts))} bytes"
        case _:
            return "recurrent state"


def _try_kind(
    kind: str, page: LayerPage | None, count: int, engines: Sequence[Variant]
) -> Iterator[Answer | Refusal]:
    spread = lcm(*(engine.sizes.dcp for engine in engines))
    layouts: dict[str, CanonicalLayout] = {}
    for engine in engines:
        try:
            layouts[engine.name] = _layout(page, count, engine, spread)
        except UnmappableError as reason:
            yield Refusal(kind, engine.name, str(reason))
    for (stored, ours), (read, theirs) in product(layouts.items(), repeat=2):
        difference, compared = _store_and_read(ours, theirs)
        yield Answer(kind, stored, read, difference is None, difference, compared)


def _layout(page: LayerPage | None, count: int, engine: Variant, spread: int) -> CanonicalLayout:
    """The layout of one engine; its chunks span as many tokens as those of the others.

    Raises:
        UnmappableError: the layer is not certified under this engine.
    """
    per_chunk = 1
    if isinstance(page, AttentionPage | LatentPage):
        per_chunk = 2 * spread * page.block_tokens // block_tokens_of(page, engine.sizes)
        page = with_canonical_tokens(page, page.block_tokens)
    if isinstance(page, AttentionPage):
        page = replace(page, order=engine.order)
    verdict = certify(page, engine.sizes)
    if isinstance(verdict, Uncertified):
        raise UnmappableError(verdict.reason)
    stages = even_stages(count, engine.sizes.pp)
    layers = tuple(CanonicalLayer(f"layer {i}", verdict.page, stage) for i, stage in enumerate(stages))
    layout = CanonicalLayout(layers, per_chunk, engine.sizes)
    fault = layout.fault()
    if fault:
        raise UnmappableError(fault)
    return layout


def _store_and_read(ours: CanonicalLayout, theirs: CanonicalLayout) -> tuple[str | None, int]:
    """Where what was read differs first (None: nowhere), and how many bytes were compared."""
    if ours.signature() != theirs.signature():
        return f"other bytes are meant: {ours.signature()} and {theirs.signature()}", 0
    rows = np.zeros((CHUNKS + 1, ours.row_bytes), np.uint8)
    writer = LayoutEngine(
        ours, position_bytes(ours, CHUNKS * ours.blocks_per_chunk), CHUNKS * ours.blocks_per_chunk
    )
    writer.copy(Direction.STORE, _entries(ours), rows)
    num_blocks = CHUNKS * theirs.blocks_per_chunk
    reader = LayoutEngine(theirs, None, num_blocks)
    reader.copy(Direction.LOAD, _entries(theirs), rows)
    compared = sum(pages.size for rank in reader.device for pages in rank)
    return reader.first_difference(position_bytes(theirs, num_blocks)), compared


def _entries(layout: CanonicalLayout) -> list[tuple[int, int, int]]:
    """Chunks in slots out of order, and one slot left out."""
    per_chunk = layout.blocks_per_chunk
    return [
        (chunk * per_chunk + position, slot, position)
        for chunk, slot in enumerate((2, 0, 3))
        for position in range(per_chunk)
    ]
