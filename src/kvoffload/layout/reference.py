"""The meaning of a page, said once more and in another way: the oracle of the proof and of the tests.

Where `mapping.py` computes strides, this file numbers the bytes of a canonical block, cuts and transposes that array as
the engine would cut and transpose its tensors, and reads off which canonical bytes lie where. Slow and plain on purpose; it must
share no arithmetic with `mapping.py`.
"""

from __future__ import annotations

from math import gcd, prod

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
from kvoffload.layout.geometry import ParallelSizes, Place, as_attention, places, unit_share
from kvoffload.layout.runs import Int64Array


def reference_page(page: LayerPage, sizes: ParallelSizes, rank: int) -> tuple[Int64Array, int]:
    """What a rank's page consists of.

    Returns:
        Numbers of canonical granules in the order in which the rank holds them, shape (page granules,); and the bytes
        of a granule, which divide all lengths of the page. Granule g is the bytes g·granule … of the canonical block.

    Raises:
        UnmappableError: heads or groups cannot be shared by these ranks.
    """
    place = places(sizes)[rank]
    match page:
        case OpaquePage():
            return np.array([place.stage_rank], dtype=np.int64), page.page_bytes
        case StatePage():
            return _state(page, sizes, place)
        case AttentionPage() | LatentPage():
            return _attention(as_attention(page), sizes, place)


def _attention(page: AttentionPage, sizes: ParallelSizes, place: Place) -> tuple[Int64Array, int]:
    granule = gcd(*page.parts, *page.extras)
    heads, buffers = _canonical_block(page, sizes, granule)
    mine = unit_share(page.kv_heads, sizes.tp, place.tp_rank)
    shards = sizes.token_shards if page.token_sharded else 1
    held = [
        token
        for token in range(page.block_tokens * shards)
        if shards == 1 or token // sizes.interleave_tokens % shards == place.token_shard
    ]
    heads = heads[mine.start : mine.stop, held]
    pieces: list[Int64Array] = []
    kernel = page.kernel_tokens or page.block_tokens
    for begin in range(0, page.block_tokens, kernel):
        span = slice(begin, begin + kernel)
        pieces += _kernel_block(page, heads[:, span], granule)
        pieces += [buffer[held][span].reshape(-1) for buffer in buffers]
    return np.concatenate(pieces), granule


def _canonical_block(
    page: AttentionPage, sizes: ParallelSizes, granule: int
) -> tuple[Int64Array, list[Int64Array]]:
    """The numbered granules of a block: (heads, tokens, content), and of each extra buffer: (tokens, content)."""
    block = page.block_tokens * (sizes.token_shards if page.token_sharded else 1)
    tokens = page.canonical_tokens or block
    content = sum(page.parts) // granule
    per_page = tokens * (page.kv_heads * content + sum(page.extras) // granule)
    numbers = np.arange(block // tokens * per_page, dtype=np.int64).reshape(-1, per_page)
    cuts = np.cumsum([page.kv_heads * content, *(extra // granule for extra in page.extras)]) * tokens
    heads, *buffers, nothing = np.split(numbers, cuts, axis=1)
    assert not nothing.size, (page, nothing.shape)
    if page.canonical_order is HeadOrder.NHD:
        by_page = heads.reshape(-1, tokens, page.kv_heads, content).transpose(0, 2, 1, 3)
    else:
        by_page = heads.reshape(-1, page.kv_heads, tokens, content)
    return by_page.swapaxes(0, 1).reshape(page.kv_heads, block, content), [
        buffer.reshape(block, -1) for buffer in buffers
    ]


def _kernel_block(page: AttentionPage, heads: Int64Array, granule: int) -> list[Int64Array]:
    """Heads, tokens, content → the order of the engine's memory."""
    ordered = heads if page.order is HeadOrder.HND else heads.transpose(1, 0, 2)
    if page.arrangement is Arrangement.PACKED:
        return [ordered.reshape(-1)]
    cuts = np.cumsum([part // granule for part in page.parts])[:-1]
    return [plane.reshape(-1) for plane in np.split(ordered, cuts, axis=2)]


def _state(page: StatePage, sizes: ParallelSizes, place: Place) -> tuple[Int64Array, int]:
    granule = gcd(*(tensor.item_bytes for tensor in page.tensors))
    pieces, first = [], 0
    for tensor in page.tensors:
        size = tensor.item_bytes // granule
        count = prod(tensor.shape)
        numbers = first + np.arange(count * size, dtype=np.int64).reshape(*tensor.shape, size)
        pieces.append(_tensor_share(tensor, numbers, sizes, place).reshape(-1))
        first += count * size
    return np.concatenate(pieces), granule


def _tensor_share(tensor: StateTensor, numbers: Int64Array, sizes: ParallelSizes, place: Place) -> Int64Array:
    if not tensor.segments:
        return numbers
    ends = np.cumsum([segment.units * segment.unit_items for segment in tensor.segments])[:-1]
    shares = []
    for segment, part in zip(tensor.segments, np.split(numbers, ends, axis=tensor.axis), strict=True):
        share = unit_share(segment.units, sizes.tp, place.tp_rank)
        items = range(share.start * segment.unit_items, share.stop * segment.unit_items)
        shares.append(part.take(items, axis=tensor.axis))
    return np.concatenate(shares, axis=tensor.axis)
