"""Copies that fail, and a worker that copies only when it is told to: then a run is repeatable and can be shrunk."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kvoffload.messages import NO_SLOT, CopyJob, JobOutcome
from kvoffload.types import Direction, JobId
from kvoffload.worker.copier import Copier
from kvoffload.worker.copier_cpu import CPUCopier
from kvoffload.worker.pages import GroupPages
from kvoffload.worker.worker import all_chunks

GARBAGE = 0xEE

Chunks = list[tuple[int, int]]
"""(group, slot) of the chunks of a job."""


def _none(chunks: Chunks) -> Collection[tuple[int, int]]:
    del chunks
    return ()


class FaultyCopier(Copier):
    """Copies, and then spoils the targets of some chunks and reports them as failed.

    Args:
        groups: As for the real copier.
        choose: Given a job's chunks as (group, slot), says which of them fail.
    """

    def __init__(
        self,
        groups: Sequence[GroupPages],
        choose: Callable[[Chunks], Collection[tuple[int, int]]] = _none,
    ) -> None:
        self._groups = groups
        self._inner = CPUCopier(groups)
        self.choose = choose

    def copy(self, job: CopyJob) -> JobOutcome:
        """See Copier."""
        outcome = self._inner.copy(job)
        chunks = sorted(chunk for chunk in all_chunks(job) if chunk[1] != NO_SLOT)
        bad = frozenset(self.choose(chunks))
        for part in job.parts:
            pages = self._groups[part.group]
            for block, slot in zip(part.block_ids.tolist(), part.slots.tolist(), strict=True):
                if (part.group, slot) in bad:
                    _spoil_target(pages, job.direction, block, slot)
        return replace(outcome, failed=outcome.failed | bad)


def _spoil_target(pages: GroupPages, direction: Direction, block: int, slot: int) -> None:
    for device, host in zip(pages.device, pages.host, strict=True):
        if direction is Direction.LOAD:
            device[block] = GARBAGE
        else:
            host[slot] = GARBAGE


class StepWorker:
    """Stands in for OffloadWorker: jobs wait until `run` or `flush` carries them out, in any order.

    Args:
        copier: Carries out one job.
    """

    def __init__(self, copier: FaultyCopier) -> None:
        self.copier = copier
        self.queue: list[CopyJob] = []
        self.flush_times_out = False
        self.deaf_to_flush = False
        """A deliberate bug, for the tests of the tests."""
        self._ended: list[tuple[CopyJob, JobOutcome]] = []
        self._void: set[JobId] = set()

    def submit(self, jobs: Iterable[CopyJob]) -> None:
        """As OffloadWorker."""
        self.queue.extend(jobs)

    def flush(self, job_ids: Collection[JobId]) -> None:
        """As OffloadWorker: carry these out, or make them void."""
        wanted = [job for job in self.queue if job.job_id in job_ids]
        if self.deaf_to_flush:
            return
        if self.flush_times_out:
            self._void |= {job.job_id for job in wanted}
            return
        for job in wanted:
            self._copy(job)

    def run(self, index: int, fail_mask: int = 0) -> bool:
        """Carry out one job; bit i of the mask makes its i-th chunk fail. False if there is none."""
        if not self.queue:
            return False
        self.copier.choose = lambda chunks: [c for i, c in enumerate(chunks) if fail_mask >> i & 1]
        self._copy(self.queue[index % len(self.queue)])
        self.copier.choose = _none
        return True

    def poll(self) -> list[tuple[CopyJob, JobOutcome]]:
        """As OffloadWorker."""
        ended, self._ended = self._ended, []
        return ended

    def shutdown(self) -> None:
        """As OffloadWorker."""
        self.queue.clear()

    def _copy(self, job: CopyJob) -> None:
        self.queue.remove(job)
        outcome = self.copier.copy(job)
        if job.job_id in self._void:
            self._void.remove(job.job_id)
            outcome = replace(outcome, failed=all_chunks(job))
        self._ended.append((job, outcome))


def spoil(array: NDArray[np.uint64], block: int) -> None:
    """Overwrite a block with bytes that are right for nobody."""
    array[block] = np.uint64(0xDEAD_BEEF_DEAD_BEEF)
