"""What the scheduler's manager and the workers tell each other: plain data, nothing else.

Manager and worker meet only here. All arrays of one part have one length; entry i says: block `block_ids[i]`
of the device belongs to place `positions[i]` of the chunk in slot `slots[i]` of the host region.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvoffload.types import Direction, JobId, RequestId

Int64Array = NDArray[np.int64]

NO_SLOT = -1
"""A chunk that vanished between the match and the load: the worker reports its blocks as failed."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupCopies:
    """The block copies of one job in one group.

    Shapes: three arrays of shape (n,), dtype int64, n above 0.
    """

    group: int
    """Index of the group in the offloading configuration."""
    block_ids: Int64Array
    slots: Int64Array
    positions: Int64Array

    def __post_init__(self) -> None:
        shapes = {self.block_ids.shape, self.slots.shape, self.positions.shape}
        assert len(shapes) == 1, shapes


@dataclass(frozen=True, slots=True, eq=False)
class CopyJob:
    """One transfer: all of its copies go in one direction; it is reported as a whole, with outcomes per chunk."""

    job_id: JobId
    req_id: RequestId
    direction: Direction
    parts: tuple[GroupCopies, ...]


@dataclass(frozen=True, slots=True, eq=False)
class StepMessage:
    """Manager to workers, once a step. Equal for all workers."""

    loads: tuple[CopyJob, ...] = ()
    """Start after `flush` has been honoured."""
    stores: tuple[CopyJob, ...] = ()
    """Start when this step's forward pass has written its blocks, except those in `flush`."""
    flush: tuple[JobId, ...] = ()
    """Stores that must be finished before this step's forward pass: their blocks have new owners."""


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What became of a job on the workers that have reported it so far."""

    workers: int
    """How many workers this speaks for."""
    failed: frozenset[tuple[int, int]] = frozenset()
    """(group, slot) of the chunks that at least one of them could not copy."""
    copied_bytes: int = 0
    busy_s: float = 0.0
    """Time spent copying, summed over the workers."""

    def merge(self, other: JobOutcome) -> JobOutcome:
        """The outcome that speaks for the workers of both."""
        return JobOutcome(
            workers=self.workers + other.workers,
            failed=self.failed | other.failed,
            copied_bytes=self.copied_bytes + other.copied_bytes,
            busy_s=self.busy_s + other.busy_s,
        )


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """Workers to manager: the jobs that ended since the last report."""

    outcomes: Mapping[JobId, JobOutcome] = field(default_factory=dict)

    def merge(self, other: WorkerReport) -> WorkerReport:
        """The report of both workers (or steps) together."""
        merged = dict(self.outcomes)
        for job_id, outcome in other.outcomes.items():
            merged[job_id] = merged[job_id].merge(outcome) if job_id in merged else outcome
        return WorkerReport(merged)
