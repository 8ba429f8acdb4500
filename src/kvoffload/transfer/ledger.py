"""The ledger: every transfer in flight, what it holds, and how it may end. The only place that mutates jobs.

States and their transitions (anything else is a bug and raises):

    IN_FLIGHT --all workers reported--> ENDED
    IN_FLIGHT --deadline passed-------> LOST      its slots stay out of use, its blocks stay fenced
    LOST      --all workers reported--> ENDED
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.messages import JobOutcome
from kvoffload.types import BlockId, Direction, JobId, RequestId, SlotId


class JobState(Enum):
    """Where a job is in its life."""

    IN_FLIGHT = "in_flight"
    LOST = "lost"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class ChunkMove:
    """One chunk of a job: which key, where, and its place in the request."""

    group: int
    key: OffloadKey
    slot: SlotId
    chunk_index: int


@dataclass(slots=True)
class Job:
    """A transfer as the scheduler's side sees it."""

    job_id: JobId
    req_id: RequestId
    direction: Direction
    chunks: tuple[ChunkMove, ...]
    block_ids: tuple[BlockId, ...]
    started_s: float
    lower_tiers: frozenset[str] | None = None
    """Of a store: the names of the tiers below to which its chunks go then; None: all."""
    state: JobState = JobState.IN_FLIGHT
    outcome: JobOutcome = field(default_factory=lambda: JobOutcome(workers=0))


_TRANSITIONS = {
    (JobState.IN_FLIGHT, JobState.ENDED),
    (JobState.IN_FLIGHT, JobState.LOST),
    (JobState.LOST, JobState.ENDED),
}


class Ledger:
    """Jobs in flight, and which device blocks a pending store still reads.

    Args:
        world_size: Number of workers that report every job.
    """

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._jobs: dict[JobId, Job] = {}
        self._next_id = 0
        # Fences: block → stores that still read it. Block ids are unique over all groups of an engine.
        self._readers: dict[BlockId, set[JobId]] = {}

    def __len__(self) -> int:
        """Number of jobs that are not ended."""
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        """Jobs that are not ended, oldest first."""
        return iter(tuple(self._jobs.values()))

    def next_id(self) -> JobId:
        """A number no job has had."""
        self._next_id += 1
        return JobId(self._next_id)

    def knows(self, job_id: JobId) -> bool:
        """Whether the job is not ended."""
        return job_id in self._jobs

    def open(self, job: Job) -> None:
        """Take a new job; a store fences its blocks from now on."""
        assert job.job_id not in self._jobs, job.job_id
        self._jobs[job.job_id] = job
        if job.direction is Direction.STORE:
            for block_id in job.block_ids:
                self._readers.setdefault(block_id, set()).add(job.job_id)

    def readers_of(self, block_ids: set[BlockId]) -> set[JobId]:
        """Pending stores that still read one of the blocks. Does not mutate."""
        if not self._readers or self._readers.keys().isdisjoint(block_ids):
            return set()
        touched = self._readers.keys() & block_ids
        return {job_id for block_id in touched for job_id in self._readers[block_id]}

    def report(self, job_id: JobId, outcome: JobOutcome) -> Job | None:
        """Add what workers say about a job.

        Returns:
            The job when all of its workers have reported (it is then ended and forgotten), None before that.
        """
        job = self._jobs[job_id]
        job.outcome = job.outcome.merge(outcome)
        assert job.outcome.workers <= self._world_size, (job_id, job.outcome, self._world_size)
        if job.outcome.workers < self._world_size:
            return None
        self._move(job, JobState.ENDED)
        del self._jobs[job_id]
        self._unfence(job)
        return job

    def overdue(self, before_s: float) -> list[Job]:
        """Jobs in flight that started before this time; they become LOST."""
        late = []
        for job in self._jobs.values():
            if job.started_s >= before_s:
                break
            if job.state is JobState.IN_FLIGHT:
                self._move(job, JobState.LOST)
                late.append(job)
        return late

    def in_flight(self) -> int:
        """Number of jobs that workers are expected to report soon (lost ones are not)."""
        return sum(job.state is JobState.IN_FLIGHT for job in self._jobs.values())

    def check(self) -> None:
        """Raise AssertionError if the fences do not match the stores in flight."""
        expected: dict[BlockId, set[JobId]] = {}
        for job in self._jobs.values():
            if job.direction is Direction.STORE:
                for block_id in job.block_ids:
                    expected.setdefault(block_id, set()).add(job.job_id)
        assert expected == self._readers, (expected, self._readers)

    def _unfence(self, job: Job) -> None:
        if job.direction is not Direction.STORE:
            return
        for block_id in set(job.block_ids):
            readers = self._readers[block_id]
            readers.remove(job.job_id)
            if not readers:
                del self._readers[block_id]

    @staticmethod
    def _move(job: Job, state: JobState) -> None:
        if (job.state, state) not in _TRANSITIONS:
            raise AssertionError(f"job {job.job_id}: {job.state} → {state} is not a transition")
        job.state = state
