"""The CPU copier: engine tensors and host region are both ordinary memory. Bit-exact, and the oracle of all others."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from kvoffload.layout.election import first_elected_step, turn_of
from kvoffload.messages import NO_SLOT, CopyJob, GroupCopies, JobOutcome
from kvoffload.transfer.copy_plan import CopyRun, plan_runs, slots_of_run
from kvoffload.types import Direction
from kvoffload.worker.copier import Copier
from kvoffload.worker.pages import FragmentArray, GroupPages, Turn, block_bytes

logger = logging.getLogger(__name__)


class CPUCopier(Copier):
    """Copies with numpy, which releases the interpreter lock while it moves bytes.

    Args:
        groups: The bound pages of every offloaded group, in the order of the configuration.
    """

    def __init__(self, groups: Sequence[GroupPages]) -> None:
        self._groups = tuple(groups)
        # Counted once: the loop over runs and layers is hot where blocks are scattered.
        self._pairs = [
            [
                _Pair(device, host, turn, block_bytes(device))
                for device, host, turn in zip(pages.device, pages.host, pages.turns, strict=True)
            ]
            for pages in self._groups
        ]

    def copy(self, job: CopyJob) -> JobOutcome:
        """See Copier."""
        started_s = time.perf_counter()
        failed: set[tuple[int, int]] = set()
        copied_bytes = 0
        for part in job.parts:
            done, bad = self._copy_part(part, job.direction)
            copied_bytes += done
            failed.update((part.group, slot) for slot in bad)
        return JobOutcome(
            workers=1,
            failed=frozenset(failed),
            copied_bytes=copied_bytes,
            busy_s=time.perf_counter() - started_s,
        )

    def _copy_part(self, part: GroupCopies, direction: Direction) -> tuple[int, set[int]]:
        pages = self._groups[part.group]
        failed = _chunks_outside(part, pages)
        if failed:
            logger.error("chunks in slots %s (%s) are outside of memory", sorted(failed), direction.value)
            kept = np.where(np.isin(part.slots, list(failed)), NO_SLOT, part.slots)
            part = replace(part, slots=kept)
        copied_bytes = 0
        for run in plan_runs(part, pages.blocks_per_chunk):
            try:
                copied_bytes += _copy_run(run, self._pairs[part.group], pages.blocks_per_chunk, direction)
            except (ValueError, IndexError, MemoryError):
                logger.exception("copy of %s (%s) failed", run, direction.value)
                failed.update(slots_of_run(run, pages.blocks_per_chunk))
        return copied_bytes, failed


def _chunks_outside(part: GroupCopies, pages: GroupPages) -> set[int]:
    """Slots of the chunks of which a block lies outside of the device's or the host's memory.

    numpy cuts slices that reach too far, and a negative index counts from the end: neither may pass silently.
    """
    if not pages.device:
        return set()
    num_blocks, (num_slots, per_chunk) = pages.device[0].shape[0], pages.host[0].shape[:2]
    inside = (
        ((part.block_ids >= 0) & (part.block_ids < num_blocks))
        & ((part.slots >= 0) & (part.slots < num_slots))
        & ((part.positions >= 0) & (part.positions < per_chunk))
    )
    return set(part.slots[~inside & (part.slots != NO_SLOT)].tolist())


class _Pair(NamedTuple):
    """Both sides of one pair of views."""

    device: FragmentArray
    host: FragmentArray
    turn: Turn
    block_bytes: int


def _copy_run(run: CopyRun, pairs: list[_Pair], blocks_per_chunk: int, direction: Direction) -> int:
    """Copy one run in all layers; returns the bytes that this worker copied."""
    copied_bytes = 0
    storing = direction is Direction.STORE
    block, slot, position, length = run
    for device, host, turn, size in pairs:
        first, step = 0, 1
        if storing and turn.writers > 1:
            first = first_elected_step(turn_of(slot, turn.layer), turn.writers, turn.writer_index)
            step = turn.writers
        if blocks_per_chunk == 1:
            near = device[block + first : block + length : step]
            far = host[slot + first : slot + length : step, 0]
        elif first == 0:
            # All blocks lie in one slot, so one turn decides about all of them.
            near = device[block : block + length]
            far = host[slot, position : position + length]
        else:
            continue
        if storing:
            np.copyto(far, near)
        else:
            np.copyto(near, far)
        copied_bytes += len(near) * size
    return copied_bytes
