"""Worker side of the connector: hands the manager's jobs to the core's worker at the right moments of a step.

handle_preemptions   flush: before the forward pass overwrites blocks
start_load_kv        loads start
wait_for_save        stores start: on a CPU engine the pass has written its blocks when this is called
get_transfer_results what ended since the last step
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kvoffload.config.schema import OffloadingConfig
from kvoffload.connectors.vllm.guard import guarded
from kvoffload.connectors.vllm.layers import seen_tensors
from kvoffload.connectors.vllm.pages import group_pages
from kvoffload.messages import NO_SLOT, CopyJob, JobOutcome, StepMessage, WorkerReport
from kvoffload.spec.base import OffloadingSpec
from kvoffload.types import Direction, JobId, RequestId
from kvoffload.worker.worker import OffloadWorker, all_chunks

logger = logging.getLogger(__name__)


class ConnectorWorker:
    """One worker process.

    Args:
        spec: Makes the core's worker when the cache tensors are known.
        config: The engine's configuration.
        num_blocks: Blocks that the engine's block table knows.
    """

    def __init__(self, spec: OffloadingSpec, config: OffloadingConfig, num_blocks: int) -> None:
        self.broken = False
        self._spec = spec
        self._config = config
        self._num_blocks = num_blocks
        self._worker: OffloadWorker | None = None
        # Jobs that were taken and not reported. They are reported whatever happens: the engine waits for loads.
        self._open: dict[JobId, CopyJob] = {}
        self._outcomes: dict[JobId, JobOutcome] = {}
        self._failed_blocks: set[int] = set()

    def register(self, kv_caches: Mapping[str, Any]) -> None:
        """Bind the engine's cache tensors; waits for the other workers. Raises KvError."""
        pages = [
            group_pages(kv_caches, group.layer_names, self._num_blocks, group.worker_kv_bytes_per_block)
            for group in self._config.groups
        ]
        self._spec.certify(
            [
                seen_tensors(kv_caches, group.layer_names, is_state=group.is_state)
                for group in self._config.groups
            ]
        )
        self._worker = self._spec.make_worker(pages)

    def flush(self, message: StepMessage) -> None:
        """Finish the stores whose blocks have new owners; those that were planned just now start here."""
        urgent = set(message.flush)
        self._start([job for job in message.stores if job.job_id in urgent])
        self._wait(urgent)

    def start_loads(self, message: StepMessage) -> None:
        """Start this step's loads."""
        self._start(message.loads)

    def start_stores(self, message: StepMessage) -> None:
        """Start this step's stores, except those that `flush` has started."""
        urgent = set(message.flush)
        self._start([job for job in message.stores if job.job_id not in urgent])

    def finished_loads(self) -> tuple[set[RequestId], set[RequestId]]:
        """Requests whose load has ended, and those of them whose load has failed, since the last call."""
        self._poll()
        if self.broken:
            self._fail_open_jobs()
        ended: set[RequestId] = set()
        failed: set[RequestId] = set()
        for job_id, outcome in self._outcomes.items():
            job = self._open.pop(job_id, None)
            if job is None or job.direction is Direction.STORE:
                continue
            ended.add(job.req_id)
            blocks = _failed_blocks(job, outcome)
            if blocks:
                failed.add(job.req_id)
                self._failed_blocks |= blocks
        return ended, failed

    def take_failed_blocks(self) -> set[int]:
        """Blocks that loads could not fill, since the last call."""
        blocks, self._failed_blocks = self._failed_blocks, set()
        return blocks

    def take_report(self) -> WorkerReport | None:
        """What ended since the last call, None if nothing did."""
        if not self._outcomes:
            return None
        outcomes, self._outcomes = self._outcomes, {}
        return WorkerReport(outcomes)

    def shutdown(self) -> None:
        """Stop copying and release the host region. Idempotent."""
        if self._worker is not None:
            self._worker.shutdown()
        self._spec.close()

    def _start(self, jobs: Sequence[CopyJob]) -> None:
        self._open.update((job.job_id, job) for job in jobs)
        self._submit(jobs)

    @guarded(lambda: None)
    def _wait(self, job_ids: set[JobId]) -> None:
        if job_ids and self._worker is not None:
            self._worker.flush(job_ids)

    @guarded(lambda: None)
    def _submit(self, jobs: Sequence[CopyJob]) -> None:
        assert self._worker is not None, "the engine started a step before it registered its KV caches"
        self._worker.submit(jobs)

    @guarded(lambda: None)
    def _poll(self) -> None:
        if self._worker is not None:
            self._outcomes.update((job.job_id, outcome) for job, outcome in self._worker.poll())

    def _fail_open_jobs(self) -> None:
        # Stop the copies first: a block that is reported as failed is about to be used again.
        if self._worker is not None:
            self._worker.shutdown()
        for job_id, job in self._open.items():
            self._outcomes.setdefault(job_id, JobOutcome(workers=1, failed=all_chunks(job)))


def _failed_blocks(job: CopyJob, outcome: JobOutcome) -> set[int]:
    blocks: set[int] = set()
    for part in job.parts:
        bad = [slot for group, slot in outcome.failed if group == part.group]
        blocks.update(part.block_ids[np.isin(part.slots, [*bad, NO_SLOT])].tolist())
    return blocks
