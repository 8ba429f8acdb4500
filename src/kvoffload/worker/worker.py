"""The worker side: takes jobs from the engine's thread, copies on a thread of its own, reports per chunk.

Loads go before stores: a request waits for a load, nobody waits for a store. That is safe because whatever could
collide is flushed first (see the manager's fences). Nothing here knows an engine.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import replace

from kvoffload.messages import CopyJob, JobOutcome, WorkerReport
from kvoffload.types import Direction, JobId
from kvoffload.worker.copier import Copier

logger = logging.getLogger(__name__)


class OffloadWorker:
    """Runs jobs in the background, one after the other.

    Args:
        copier: Carries out one job.
        flush_timeout_s: How long `flush` waits. A store that is not done by then is void: its blocks are about to
            be overwritten, so all of its chunks are reported as failed, whatever the copy says later.
    """

    def __init__(self, copier: Copier, flush_timeout_s: float) -> None:
        self._copier = copier
        self._flush_timeout_s = flush_timeout_s
        self._wake = threading.Condition()
        # All below is guarded by `_wake`.
        self._urgent: deque[CopyJob] = deque()
        self._loads: deque[CopyJob] = deque()
        self._stores: deque[CopyJob] = deque()
        self._unfinished: set[JobId] = set()
        self._void: set[JobId] = set()
        self._ended: list[tuple[CopyJob, JobOutcome]] = []
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="kvoffload-copier", daemon=True)
        self._thread.start()

    def submit(self, jobs: Iterable[CopyJob]) -> None:
        """Queue jobs. A store reads its blocks from now on: call it when they have been written.

        After a shutdown nothing is taken any more.
        """
        with self._wake:
            for job in () if self._closed else jobs:
                (self._loads if job.direction is Direction.LOAD else self._stores).append(job)
                self._unfinished.add(job.job_id)
            self._wake.notify_all()

    def flush(self, job_ids: Collection[JobId]) -> None:
        """Wait until these jobs are done (unknown ones are); bounded by the timeout."""
        with self._wake:
            # A copy that is stuck is waited for once, not again in every step that touches its blocks.
            wanted = set(job_ids) - self._void
            self._hurry(wanted)
            if self._wake.wait_for(lambda: not (wanted & self._unfinished), self._flush_timeout_s):
                return
            late = wanted & self._unfinished
            self._void |= late
        logger.warning("%d stores were not done in time; their chunks are dropped", len(late))

    def poll(self) -> list[tuple[CopyJob, JobOutcome]]:
        """The jobs that ended since the last call, in the order in which they did."""
        with self._wake:
            ended, self._ended = self._ended, []
        return ended

    def shutdown(self) -> None:
        """Stop after the job that is running; what is queued is not done. Idempotent."""
        with self._wake:
            self._closed = True
            for queue in (self._urgent, self._loads, self._stores):
                # Nobody may go on waiting for what will never be done.
                self._unfinished.difference_update(job.job_id for job in queue)
                queue.clear()
            self._wake.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=self._flush_timeout_s)

    def _hurry(self, job_ids: set[JobId]) -> None:
        # The engine's thread waits for these.
        self._urgent.extend(job for job in self._stores if job.job_id in job_ids)
        self._stores = deque(job for job in self._stores if job.job_id not in job_ids)

    def _take(self) -> CopyJob | None:
        for queue in (self._urgent, self._loads, self._stores):
            if queue:
                return queue.popleft()
        return None

    def _run(self) -> None:
        while True:
            with self._wake:
                job = self._take()
                while job is None:
                    if self._closed:
                        return
                    self._wake.wait()
                    job = self._take()
            outcome = self._copy(job)
            with self._wake:
                if job.job_id in self._void:
                    self._void.remove(job.job_id)
                    outcome = replace(outcome, failed=all_chunks(job))
                self._unfinished.discard(job.job_id)
                self._ended.append((job, outcome))
                self._wake.notify_all()

    def _copy(self, job: CopyJob) -> JobOutcome:
        try:
            return self._copier.copy(job)
        except (
            Exception
        ):  # a copier that breaks its contract must not stop the thread that everybody waits for
            logger.exception("job %d (%s) failed", job.job_id, job.direction.value)
            return JobOutcome(workers=1, failed=all_chunks(job))


def all_chunks(job: CopyJob) -> frozenset[tuple[int, int]]:
    """(group, slot) of every chunk of a job."""
    return frozenset((part.group, slot) for part in job.parts for slot in set(part.slots.tolist()))


def report_of(ended: Iterable[tuple[CopyJob, JobOutcome]]) -> WorkerReport:
    """The report of jobs that ended."""
    return WorkerReport({job.job_id: outcome for job, outcome in ended})
