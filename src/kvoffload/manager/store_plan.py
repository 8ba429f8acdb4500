"""Which chunks of a request may be stored now, and from which blocks: pure, mutates nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvoffload.manager.request import GroupState, RequestInfo
from kvoffload.messages import GroupCopies
from kvoffload.policies.admission import Admission
from kvoffload.transfer.ledger import ChunkMove


def storable_tokens(info: RequestInfo, written_tokens: int, admission: Admission) -> int:
    """Tokens from the start of the request whose KV may be stored.

    Args:
        info: The request.
        written_tokens: Tokens whose KV exists when the copy starts (never a rejected draft, never a token that
            was sampled but not yet run through the model).
        admission: How much of a request may be stored at all.
    """
    limits = (admission.max_tokens(info.num_prompt_tokens), info.max_offload_tokens)
    return min([written_tokens, *(limit for limit in limits if limit is not None)])


def storable_chunks(state: GroupState, tokens: int, null_block_id: int) -> Sequence[int]:
    """The chunks to offer: complete, with all of their device blocks, not offered before; in ascending order.

    With full attention it ends before the first chunk that has no device block of its own (`null_block_id`). In other
    groups such chunks are left out, and so is what the engine may have given away and what holds no true state.
    """
    geometry = state.geometry
    per_chunk = geometry.blocks_per_chunk
    end = min(tokens // geometry.tokens_per_chunk, len(state.keys), len(state.block_ids) // per_chunk)
    first = state.next_store_chunk
    if geometry.is_sparse:
        first = max(first, -(-state.first_live_block // per_chunk))
        chunks = _chunks_with_states(state) if geometry.is_state else range(first, end)
        return [
            chunk
            for chunk in chunks
            if first <= chunk < end
            and null_block_id not in state.block_ids[chunk * per_chunk : (chunk + 1) * per_chunk]
        ]
    blocks = state.block_ids[first * per_chunk : end * per_chunk]
    if null_block_id in blocks:
        end = first + blocks.index(null_block_id) // per_chunk  # type: ignore[arg-type]
    return range(first, max(end, first))


def _chunks_with_states(state: GroupState) -> Sequence[int]:
    span = state.geometry.tokens_per_chunk
    return sorted({end // span - 1 for end in state.state_ends if end % span == 0})


def plan_store(group: int, state: GroupState, moves: Sequence[ChunkMove]) -> GroupCopies:
    """Pair the blocks of accepted chunks with their slots.

    Args:
        group: Index of the group in the offloading configuration.
        state: The request in this group.
        moves: The accepted chunks of this group, at least one.
    """
    per_chunk = state.geometry.blocks_per_chunk
    positions = np.tile(np.arange(per_chunk, dtype=np.int64), len(moves))
    chunks = np.repeat(np.array([move.chunk_index for move in moves], dtype=np.int64), per_chunk)
    table = np.array(state.block_ids, dtype=np.int64)
    return GroupCopies(
        group=group,
        block_ids=table[chunks * per_chunk + positions],
        slots=np.repeat(np.array([move.slot for move in moves], dtype=np.int64), per_chunk),
        positions=positions,
    )
