"""A small model of a serving engine that drives the real manager, tiers, ledger, copiers and workers.

Its forward pass reads all earlier entries of a request and fails if one is wrong. The scheduler's side is in
scheduler.py, what must always hold in checks.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import reduce
from typing import Protocol

from kvoffload.messages import NO_SLOT, CopyJob, JobOutcome, WorkerReport
from kvoffload.metrics.recorder import Recorder
from kvoffload.sim import checks
from kvoffload.sim.assembly import make_hosts, make_manager
from kvoffload.sim.copies import spoil
from kvoffload.sim.memory import Memory
from kvoffload.sim.requests import Request, Status, Step, StepOptions
from kvoffload.sim.scheduler import Scheduler
from kvoffload.sim.world import World
from kvoffload.tiers.base import Tier
from kvoffload.transfer.copy_plan import blocks_in_slots
from kvoffload.types import Direction, JobId
from kvoffload.worker.worker import report_of


class Worker(Protocol):
    """What the model needs of a worker: OffloadWorker or StepWorker."""

    def submit(self, jobs: Sequence[CopyJob]) -> None:
        """Take jobs."""

    def flush(self, job_ids: Sequence[JobId]) -> None:
        """End these now."""

    def poll(self) -> list[tuple[CopyJob, JobOutcome]]:
        """What has ended."""
        ...


class EngineModel(Scheduler):
    """One life of an engine.

    Args:
        world: What outlives it.
        memory: Device and host memory.
        workers: One for each rank, bound to that memory.
        below: The tiers below the host, the fastest first.
    """

    def __init__(
        self, world: World, memory: Memory, workers: Sequence[Worker], below: Sequence[Tier] = ()
    ) -> None:
        self.workers = workers
        self.below = tuple(below)
        self.recorder = Recorder()
        hosts = make_hosts(world.setup)
        super().__init__(world, memory, make_manager(world, memory, hosts, below, self.recorder), hosts)
        self.last_counters: dict[str, float] = {}
        """As of the last check: counters must only rise."""
        self._open_steps: list[Step] = []
        self._parts_of_loads = Counter[JobId]()
        world.lives += 1

    # -- what the outside does -----------------------------------------------------------------------------------

    def abort(self, request: Request) -> None:
        """A client goes away."""
        if request.status is Status.DONE:
            return
        self.world.note(f"abort {request.status.value}")
        self._end(request, valid_tokens=request.computed)

    def reset(self, *, new_weights: bool) -> bool:
        """Clear all tiers; with new weights also the device's prefix cache, while running requests go on.

        Returns:
            Whether all tiers are empty now.
        """
        self.world.note("reset")
        if new_weights:
            self.world.weights += 1
            self.pool.forget_all()
            for request in self.requests.values():
                request.pure = request.pure and not any(request.tables)
        results = self.manager.reset()
        assert not any(tier.ready_count for tier in self.tiers)
        return all(results.values())

    def step(self, options: StepOptions) -> None:
        """One step: schedule, forward pass, results (those of the step before if asynchronous)."""
        step = self._schedule(options)
        self._open_steps.append(step)
        for rank, worker in enumerate(self.workers):
            self._execute(step, rank, worker)
        self.pool.release(step.scratch)
        while len(self._open_steps) > (1 if self.setup.async_scheduling else 0):
            self._take_results(self._open_steps.pop(0))

    def check(self) -> None:
        """Raise AssertionError if anything is wrong anywhere."""
        checks.check(self)

    def check_drained(self) -> None:
        """Raise AssertionError if anything is left behind when all requests and copies have ended."""
        checks.check_drained(self)

    def is_idle(self) -> bool:
        """Nothing is running, waiting or in flight, and the manager has been told so."""
        busy = any(step.runs or any(step.polled) for step in self._open_steps)
        return not (self.requests or busy or self._finished or checks.in_flight(self) or self.manager.tick())

    # -- the workers' part of a step -----------------------------------------------------------------------------

    def _execute(self, step: Step, rank: int, worker: Worker) -> None:
        message = step.message
        urgent = set(message.flush)
        if urgent:
            worker.submit([job for job in message.stores if job.job_id in urgent])
            worker.flush(message.flush)
        worker.submit(message.loads)
        self._forward(step, rank)
        worker.submit([job for job in message.stores if job.job_id not in urgent])
        step.polled.append(worker.poll())

    def _forward(self, step: Step, rank: int) -> None:
        for block in step.scratch:
            for storage in self.memory.device[rank]:
                spoil(storage, block)
        for run in step.runs:
            request, span = run.request, range(run.first, run.last)
            forward = self.memory.forward if request.pure else self.memory.forward_on_mixed
            forward(rank, run.tables, request.tokens, span, self.world.weights)

    # -- results -------------------------------------------------------------------------------------------------

    def _take_results(self, step: Step) -> None:
        for run in step.runs:
            run.request.in_flight -= run.last - run.first
            if run.request.status is not Status.DONE and run.samples:
                self._take_token(run.request, is_same_life=run.request.life == run.life)
        ended = [(job, outcome) for polled in step.polled for job, outcome in polled]
        loads = [(job, outcome) for job, outcome in ended if job.direction is Direction.LOAD]
        for job, outcome in loads:
            self._take_load(job, outcome)
        self.manager.report(reduce(WorkerReport.merge, map(report_of, step.polled)))
        for job, _ in loads:
            self._parts_of_loads[job.job_id] += 1
            if self._parts_of_loads[job.job_id] == self.setup.world_size:
                self._finish_load(job)

    def _take_token(self, request: Request, *, is_same_life: bool) -> None:
        if is_same_life:
            request.sampling -= 1
        request.known += 1
        self._extend_hashes(request)
        if request.known < len(request.tokens):
            return
        self.world.note("finished")
        valid = min(request.computed, max(request.prompt, request.known - 1))
        if request.status is Status.RUNNING:
            self._check_content(request, valid)
        self._end(request, valid_tokens=valid)

    def _take_load(self, job: CopyJob, outcome: JobOutcome) -> None:
        """One worker's part of a load has ended; blocks that failed are computed anew."""
        request = self.requests[job.req_id]
        for index, part in enumerate(job.parts):
            assert part.group == index
            bad = {slot for group, slot in outcome.failed if group == part.group} | {NO_SLOT}
            failed = set(blocks_in_slots(part, bad).tolist())
            if not failed:
                continue
            self.world.note("load failed")
            request.load_failed = True
            if len(job.parts) > 1:
                request.computed = 0
                continue
            first = min(i for i, block in enumerate(request.tables[0]) if block in failed)
            request.computed = min(request.computed, first * self.setup.tokens_per_block[0])

    def _finish_load(self, job: CopyJob) -> None:
        """All workers have ended it."""
        del self._parts_of_loads[job.job_id]
        request = self.requests[job.req_id]
        request.load_done = True
        if request.status is Status.DONE:
            self._free(request)
            del self.requests[job.req_id]
