"""Any pages and any parallel layouts, for Hypothesis; and an engine's memory that is cut as the engine would cut it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from kvoffload.config.pages import (
    Arrangement,
    AttentionPage,
    HeadOrder,
    LatentPage,
    LayerPage,
    Segment,
    StatePage,
    StateTensor,
)
from kvoffload.layout.canonical import CanonicalLayer
from kvoffload.layout.geometry import ParallelSizes

NUM_SLOTS = 5

thorough = partial(
    settings, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
"""A machine that is busy is no reason to fail."""
GARBAGE = 0xA5

powers = st.sampled_from((1, 2, 4))
ways = st.fixed_dictionaries(
    {
        "order": st.sampled_from(HeadOrder),
        "arrangement": st.sampled_from(Arrangement),
        "canonical_order": st.sampled_from(HeadOrder),
    }
)


@st.composite
def parallel_sizes(draw: st.DrawFn, kv_heads: int = 1, *, shards: int = 0) -> ParallelSizes:
    """Layouts in which every token of every head is somewhere; with `shards`, so many token shards exactly."""
    dcp = shards or draw(powers)
    pcp = draw(st.sampled_from((1, 2)))
    interleave = draw(st.sampled_from((1, 2, 4)))
    pp = draw(st.integers(1, 2))
    if pcp == 2 and dcp == 2 and draw(st.booleans()):
        # Tokens over the prefill-context ranks, heads over the tensor ranks.
        return ParallelSizes(draw(powers), pp, 2, 2, interleave)
    if pcp == 2 and shards in (0, 2 * dcp) and draw(st.booleans()):
        return ParallelSizes(kv_heads * dcp, pp, 2, dcp, interleave, pcp_shards_tokens=True)
    tp = draw(powers) if dcp == 1 else kv_heads * dcp * draw(st.sampled_from((1, 2)))
    return ParallelSizes(tp, pp, draw(st.sampled_from((1, 2))) if dcp == 1 else 1, dcp, interleave)


@st.composite
def token_pages(draw: st.DrawFn, kv_heads: int, shards: int) -> AttentionPage | LatentPage:
    """Attention or latent pages whose blocks span 8 × shards tokens at most, all ranks together."""
    tokens = draw(st.sampled_from((4, 8)))
    shared = {
        "parts": tuple(draw(st.lists(st.sampled_from((1, 2, 4, 6)), min_size=1, max_size=3))),
        "block_tokens": tokens,
        "kernel_tokens": draw(st.sampled_from((0, 1, 2, 4))),
        "extras": tuple(draw(st.lists(st.integers(1, 3), max_size=2))),
        "canonical_tokens": draw(
            st.sampled_from([c for c in (0, 1, 2, 4, 8) if not c or tokens * shards % c == 0])
        ),
    }
    if kv_heads == 1 and draw(st.booleans()):
        return LatentPage(arrangement=draw(st.sampled_from(Arrangement)), **shared)
    return AttentionPage(kv_heads=kv_heads, **shared, **draw(ways))


@st.composite
def state_pages(draw: st.DrawFn) -> StatePage:
    """Recurrent states that 1, 2 and 4 ranks can share."""
    segments = tuple(
        Segment(draw(st.sampled_from((1, 2, 4, 8))), draw(st.integers(1, 3)))
        for _ in range(draw(st.integers(1, 3)))
    )
    width = sum(segment.units * segment.unit_items for segment in segments)
    axis = draw(st.integers(0, 2))
    shape = draw(st.lists(st.integers(1, 3), min_size=2, max_size=2))
    conv = StateTensor((*shape[:axis], width, *shape[axis:]), draw(st.sampled_from((1, 2))), axis, segments)
    ssm = StateTensor((4, 2, 3), 4, 0, (Segment(4),))
    whole = StateTensor((draw(st.integers(1, 5)),), 2)
    return StatePage(tuple(draw(st.permutations((conv, ssm, whole)))[: draw(st.integers(1, 3))]))


@st.composite
def layers_and_sizes(draw: st.DrawFn) -> tuple[tuple[CanonicalLayer, ...], ParallelSizes]:
    """A group under one parallel layout."""
    heads = draw(powers)
    sizes = draw(parallel_sizes(heads))
    count = draw(st.integers(1, 3))
    if draw(st.booleans()) and sizes.tp <= 4:
        pages: Sequence[LayerPage] = [draw(state_pages()) for _ in range(count)]
    else:
        pages = [draw(token_pages(heads, sizes.token_shards)) for _ in range(count)]
    stages = sorted(draw(st.integers(0, sizes.pp - 1)) for _ in pages)
    layers = [
        CanonicalLayer(f"layer.{i}", page, stage)
        for i, (page, stage) in enumerate(zip(pages, stages, strict=True))
    ]
    return tuple(layers), sizes


@st.composite
def same_under_others(
    draw: st.DrawFn, layers: tuple[CanonicalLayer, ...], sizes: ParallelSizes
) -> tuple[tuple[CanonicalLayer, ...], ParallelSizes]:
    """The same model under another parallel layout and in an engine with other habits."""
    heads = max((layer.page.kv_heads for layer in layers if isinstance(layer.page, AttentionPage)), default=1)
    if isinstance(layers[0].page, StatePage):
        other = ParallelSizes(draw(powers), draw(st.integers(1, 3)), draw(st.sampled_from((1, 2))))
    else:
        other = draw(parallel_sizes(heads, shards=1))
    stages = sorted(draw(st.integers(0, other.pp - 1)) for _ in layers)
    return tuple(
        replace(layer, page=_elsewhere(draw, layer.page, sizes), stage=stage)
        for layer, stage in zip(layers, stages, strict=True)
    ), other


def _elsewhere(draw: st.DrawFn, page: LayerPage, sizes: ParallelSizes) -> LayerPage:
    """The page of an engine without context parallelism: the same tokens are all on one rank."""
    if isinstance(page, StatePage):
        return page
    tokens = page.block_tokens * sizes.token_shards
    changes = {
        "block_tokens": tokens,
        "canonical_tokens": page.canonical_tokens or tokens,
        "kernel_tokens": draw(st.sampled_from((0, 1, 2, 4))),
        "arrangement": draw(st.sampled_from(Arrangement)),
    }
    if isinstance(page, AttentionPage):
        changes["order"] = draw(st.sampled_from(HeadOrder))
    return replace(page, **changes)
