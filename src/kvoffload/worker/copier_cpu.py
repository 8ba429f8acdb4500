"""The CPU copier: engine tensors and host region are both ordinary memory. Bit-exact, and the oracle of all others."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kvoffload.layout.election import first_elected_step, turn_of
from kvoffload.messages import NO_SLOT, CopyJob, GroupCopies, JobOutcome
from kvoffload.transfer.copy_plan import CopyRun, plan_runs, slots_of_run
from kvoffload.types import Direction
from kvoffload.worker.copier import Copier
from kvoffload.worker.pages import GroupPages, block_bytes

logger = logging.getLogger(__name__)


class CPUCopier(Copier):
    """Copies with numpy, which releases the interpreter lock while it moves bytes.

    Args:
        groups: The bound pages of every offloaded group, in the order of the configuration.
    """

    def __init__(self, groups: Sequence[GroupPages]) -> None:
        self._groups = tuple(groups)

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
                copied_bytes += _copy_run(run, pages, direction)
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


def _copy_run(run: CopyRun, pages: GroupPages, direction: Direction) -> int:
    """Copy one run in all layers; returns the bytes that this worker copied."""
    copied_bytes = 0
    for device, host, turn in zip(pages.device, pages.host, pages.turns, strict=True):
        first, step = 0, 1
        if direction is Direction.STORE and turn.writers > 1:
            first = first_elected_step(turn_of(run.slot, turn.layer), turn.writers, turn.writer_index)
            step = turn.writers
        if pages.blocks_per_chunk == 1:
            near = device[run.block + first : run.block + run.length : step]
            far = host[run.slot + first : run.slot + run.length : step, 0]
        elif first == 0:
            # All blocks lie in one slot, so one turn decides about all of them.
            near = device[run.block : run.block + run.length]
            far = host[run.slot, run.position : run.position + run.length]
        else:
            continue
        if direction is Direction.STORE:
            np.copyto(far, near)
        else:
            np.copyto(near, far)
        copied_bytes += near.shape[0] * block_bytes(device)
    return copied_bytes
