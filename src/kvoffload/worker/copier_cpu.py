"""The CPU copier: engine tensors and host region are both ordinary memory. Bit-exact, and the oracle of all others."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import numpy as np

from kvoffload.messages import CopyJob, GroupCopies, JobOutcome
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
        failed: set[int] = set()
        copied_bytes = 0
        for run in plan_runs(part, pages.blocks_per_chunk):
            try:
                _check_run(run, pages)
                _copy_run(run, pages, direction)
                copied_bytes += run.length * pages.bytes_per_block
            except (ValueError, IndexError, MemoryError):
                logger.exception("copy of %s (%s) failed", run, direction.value)
                failed.update(slots_of_run(run, pages.blocks_per_chunk))
        return copied_bytes, failed


def _check_run(run: CopyRun, pages: GroupPages) -> None:
    # numpy cuts slices that reach too far, and a negative index counts from the end: neither may pass silently.
    blocks, (slots, per_chunk, _) = pages.device[0].shape[0], pages.host[0].shape
    last = slots_of_run(run, pages.blocks_per_chunk)[-1]
    if run.block < 0 or run.block + run.length > blocks:
        raise IndexError(f"blocks {run.block}+{run.length} are outside of {blocks}")
    if run.slot < 0 or last >= slots or run.position < 0 or run.position >= per_chunk:
        raise IndexError(
            f"slot {run.slot} to {last}, position {run.position} are outside of {slots} × {per_chunk}"
        )
    if pages.blocks_per_chunk > 1 and run.position + run.length > per_chunk:
        raise IndexError(f"positions {run.position}+{run.length} are outside of {per_chunk}")


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
