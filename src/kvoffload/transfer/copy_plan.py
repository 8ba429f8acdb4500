"""Pure planning of copies: single blocks become runs of neighbours, so that few big copies replace many small ones."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvoffload.messages import NO_SLOT, GroupCopies, Int64Array


class CopyRun(NamedTuple):
    """`length` device blocks from `block` on, and their places in the host region.

    With one block per chunk the places are slots `slot` … `slot + length - 1` (position 0); otherwise they are
    positions `position` … `position + length - 1` of the one slot `slot`.
    """

    block: int
    slot: int
    position: int
    length: int


def plan_runs(copies: GroupCopies, blocks_per_chunk: int) -> list[CopyRun]:
    """Join neighbouring copies, in their order; entries without a slot are left out. Does not mutate.

    Two entries are neighbours if their blocks follow each other and so do their places in the host region:
    in the next slot for chunks of one block, at the next position of the same slot for larger ones.
    """
    keep = copies.slots != NO_SLOT
    blocks, slots, positions = copies.block_ids[keep], copies.slots[keep], copies.positions[keep]
    if blocks.size == 0:
        return []
    slot_step, position_step = (1, 0) if blocks_per_chunk == 1 else (0, 1)
    joined = (np.diff(blocks) == 1) & (np.diff(slots) == slot_step) & (np.diff(positions) == position_step)
    first = np.concatenate(([0], np.flatnonzero(~joined) + 1))
    lengths = np.diff(np.append(first, blocks.size))
    return [
        CopyRun(*entry)
        for entry in zip(
            blocks[first].tolist(),
            slots[first].tolist(),
            positions[first].tolist(),
            lengths.tolist(),
            strict=True,
        )
    ]


def slots_of_run(run: CopyRun, blocks_per_chunk: int) -> range:
    """The slots that a run touches."""
    return range(run.slot, run.slot + (run.length if blocks_per_chunk == 1 else 1))


def blocks_in_slots(copies: GroupCopies, slots: set[int]) -> Int64Array:
    """The device blocks of a job whose chunk is in one of `slots`: shape (n,), dtype int64. Does not mutate."""
    return copies.block_ids[np.isin(copies.slots, list(slots))]
