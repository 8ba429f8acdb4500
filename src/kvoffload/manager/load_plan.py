"""Which blocks a load fills, and from which chunks: pure, mutates nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvoffload.manager.request import GroupGeometry, GroupState
from kvoffload.messages import NO_SLOT, GroupCopies
from kvoffload.types import BlockId, SlotId


def chunk_range(geometry: GroupGeometry, tokens: range) -> range:
    """The chunks that a load of these tokens needs: all that hold one of them and are within the group's reach."""
    span = geometry.tokens_per_chunk
    return range(_first_token(geometry, tokens) // span, -(-tokens.stop // span))


def _first_token(geometry: GroupGeometry, tokens: range) -> int:
    return max(tokens.start, geometry.first_needed(tokens.stop))


def plan_load(
    group: int,
    state: GroupState,
    block_ids: Sequence[BlockId],
    tokens: range,
    slots: Sequence[SlotId | None],
    *,
    null_block_id: int = 0,
) -> GroupCopies:
    """Pair the request's blocks with places in the host region.

    Args:
        group: Index of the group in the offloading configuration.
        state: The request in this group.
        block_ids: Its device blocks from token 0 on.
        tokens: From the first token that is not on the device to the end of the load, both on block edges.
        slots: The slot of each chunk in `chunk_range`, None where the chunk has vanished.
        null_block_id: Stands for "no block": the engine wants nothing there.

    Returns:
        One entry per block; blocks of vanished chunks have NO_SLOT.
    """
    geometry = state.geometry
    # A block that is loaded in part only would count as computed.
    assert tokens.start % geometry.tokens_per_block == tokens.stop % geometry.tokens_per_block == 0, tokens
    first_token = _first_token(geometry, tokens)
    blocks = range(first_token // geometry.tokens_per_block, tokens.stop // geometry.tokens_per_block)
    assert len(block_ids) >= blocks.stop, (len(block_ids), blocks)
    first_chunk = first_token // geometry.tokens_per_chunk
    per_chunk = geometry.blocks_per_chunk
    known = np.array([NO_SLOT if slot is None else slot for slot in slots], dtype=np.int64)
    table = np.array(block_ids[blocks.start : blocks.stop], dtype=np.int64)
    index = np.arange(blocks.start, blocks.stop, dtype=np.int64)
    if geometry.is_sparse:
        table, index = table[table != null_block_id], index[table != null_block_id]
    return GroupCopies(
        group=group,
        block_ids=table,
        slots=known[index // per_chunk - first_chunk],
        positions=index % per_chunk,
    )
