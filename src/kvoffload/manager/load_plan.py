"""Which blocks a load fills, and from which chunks: pure, mutates nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvoffload.manager.request import GroupState
from kvoffload.messages import NO_SLOT, GroupCopies
from kvoffload.types import BlockId, SlotId


def chunk_range(state: GroupState, computed_tokens: int, end_tokens: int) -> range:
    """The chunks that hold the tokens from `computed_tokens` to `end_tokens` (exclusive)."""
    span = state.geometry.tokens_per_chunk
    return range(computed_tokens // span, -(-end_tokens // span))


def plan_load(
    group: int,
    state: GroupState,
    block_ids: Sequence[BlockId],
    tokens: range,
    slots: Sequence[SlotId | None],
) -> GroupCopies:
    """Pair the request's blocks with places in the host region.

    Args:
        group: Index of the group in the offloading configuration.
        state: The request in this group.
        block_ids: Its device blocks from token 0 on.
        tokens: From the first token that is not on the device to the end of the load, both on block edges.
        slots: The slot of each chunk in `chunk_range`, None where the chunk has vanished.

    Returns:
        One entry per block; blocks of vanished chunks have NO_SLOT.
    """
    geometry = state.geometry
    # A block that is loaded in part only would count as computed.
    assert tokens.start % geometry.tokens_per_block == tokens.stop % geometry.tokens_per_block == 0, tokens
    blocks = range(tokens.start // geometry.tokens_per_block, tokens.stop // geometry.tokens_per_block)
    assert len(block_ids) >= blocks.stop, (len(block_ids), blocks)
    first_chunk = tokens.start // geometry.tokens_per_chunk
    per_chunk = geometry.blocks_per_chunk
    known = np.array([NO_SLOT if slot is None else slot for slot in slots], dtype=np.int64)
    index = np.arange(blocks.start, blocks.stop, dtype=np.int64)
    return GroupCopies(
        group=group,
        block_ids=np.array(block_ids[blocks.start : blocks.stop], dtype=np.int64),
        slots=known[index // per_chunk - first_chunk],
        positions=index % per_chunk,
    )
