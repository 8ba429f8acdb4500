"""The CPU copier: engine tensors and host region are both ordinary memory. Bit-exact, and the oracle of all others."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kvoffload.messages import NO_SLOT, CopyJob, GroupCopies, JobOutcome
from kvoffload.transfer.copy_plan import CopyRun, plan_runs, slots_of_run
from kvoffload.types import Direction
from kvoffload.worker.copier import Copier
from kvoffload.worker.pages import GroupPages

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
                _copy_run(run, pages, direction)
                copied_bytes += run.length * pages.bytes_per_block
            except (ValueError, IndexError, MemoryError):
                logger.exception("copy of %s (%s) failed", run, direction.value)
                failed.update(slots_of_run(run, pages.blocks_per_chunk))
        return copied_bytes, failed


def _chunks_outside(part: GroupCopies, pages: GroupPages) -> set[int]:
    """Slots of the chunks of which a block lies outside of the device's or the host's memory.

    numpy cuts slices that reach too far, and a negative index counts from the end: neither may pass silently.
    """
    num_blocks, (num_slots, per_chunk, _) = pages.device[0].shape[0], pages.host[0].shape
    inside = (
        ((part.block_ids >= 0) & (part.block_ids < num_blocks))
        & ((part.slots >= 0) & (part.slots < num_slots))
        & ((part.positions >= 0) & (part.positions < per_chunk))
    )
    return set(part.slots[~inside & (part.slots != NO_SLOT)].tolist())


def _copy_run(run: CopyRun, pages: GroupPages, direction: Direction) -> None:
    for device, host in zip(pages.device, pages.host, strict=True):
        near = device[run.block : run.block + run.length]
        if pages.blocks_per_chunk == 1:
            far = host[run.slot : run.slot + run.length, 0]
        else:
            far = host[run.slot, run.position : run.position + run.length]
        if direction is Direction.STORE:
            np.copyto(far, near)
        else:
            np.copyto(near, far)
