"""A small model of a serving engine that drives the real manager, tiers, ledger, copiers and workers.

It does what a real engine does and what has broken connectors: chunked prefill, a prefix cache on the device, blocks
that change hands, preemption, aborts at any time, answers that grow, asynchronous loads, steps that are scheduled
before the last one has ended. Its forward pass reads all earlier entries of a request and fails if one is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Protocol

import numpy as np
from copy_doubles import spoil
from engine_memory import BlockPool, Memory, Setup
from kv_patterns import block_hashes
from tier_double import StepTier

from kvoffload.clock import ManualClock
from kvoffload.config.options import LaneOptions
from kvoffload.keys.offload_key import make_offload_key
from kvoffload.manager.host_tier import HostTier
from kvoffload.manager.lane import TierLane
from kvoffload.manager.manager import Below, ManagerConfig, OffloadManager
from kvoffload.manager.request import GroupGeometry, RequestInfo
from kvoffload.manager.staging import LoadPolicy, StagingConfig
from kvoffload.manager.step import ScheduledRequest, StepInput
from kvoffload.messages import NO_SLOT, CopyJob, JobOutcome, StepMessage, WorkerReport
from kvoffload.metrics.catalog import MetricKind
from kvoffload.metrics.recorder import Recorder, parse_series
from kvoffload.policies.admission import TouchFilter
from kvoffload.policies.lru import LRUPolicy
from kvoffload.transfer.copy_plan import blocks_in_slots
from kvoffload.types import Direction, JobId, RequestId
from kvoffload.worker.worker import report_of

PENDING_TIMEOUT_S = 5.0
TRANSFER_TIMEOUT_S = 60.0
GROUP_IDS = (3, 7)
"""The engine's own numbers of the groups: not their indices."""

WAITING, LOADING, RUNNING, PREEMPTED, DONE = "waiting", "loading", "running", "preempted", "done"


class Worker(Protocol):
    """What the model needs of a worker: OffloadWorker or StepWorker."""

    def submit(self, jobs: Sequence[CopyJob]) -> None: ...
    def flush(self, job_ids: Sequence[JobId]) -> None: ...
    def poll(self) -> list[tuple[CopyJob, JobOutcome]]: ...


@dataclass(eq=False)
class Request:
    """A request; `tokens` holds the answer too, of which the scheduler knows the first `known` tokens only."""

    req_id: RequestId
    tokens: tuple[int, ...]
    prompt: int
    known: int
    hashes: list[bytes] = field(repr=False)
    tables: list[list[int]]
    status: str = WAITING
    computed: int = 0
    sampling: int = 0
    """Tokens that running steps will sample."""
    life: int = 0
    """Number of times it was preempted."""
    pure: bool = True
    load_done: bool = False
    load_failed: bool = False


@dataclass
class Step:
    """One scheduled step, and later its results."""

    message: StepMessage
    runs: list[tuple[Request, int, int, bool, int, list[list[int]]]]
    """Request, first and last token, whether a token is sampled, its life, its block tables."""
    scratch: list[int] = field(default_factory=list)
    polled: list[list[tuple[CopyJob, JobOutcome]]] = field(default_factory=list)


class EngineModel:
    """See the module.

    Args:
        setup: Geometry and options.
        memory: Device and host memory.
        workers: One for each rank, bound to that memory.
    """

    def __init__(self, setup: Setup, memory: Memory, workers: Sequence[Worker]) -> None:
        self.setup = setup
        self.memory = memory
        self.workers = workers
        self.clock = ManualClock()
        self.recorder = Recorder()
        self.seen = Counter[str]()
        self.weights = 0
        self.pool = BlockPool(setup.num_blocks)
        self.requests: dict[RequestId, Request] = {}
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.tiers = [
            HostTier(setup.num_slots, LRUPolicy(setup.num_slots), TouchFilter(setup.store_threshold, 64))
            for _ in setup.tokens_per_block
        ]
        self.lower = [StepTier(f"tier{index}") for index in range(setup.num_tiers)]
        self.manager = OffloadManager(
            self._manager_config(), self.tiers, self.recorder, self.clock, self._below()
        )
        self._chunk_of: dict[bytes, tuple[int, tuple[int, ...], int]] = {}
        self._finished: list[RequestId] = []
        self._preempted: list[RequestId] = []
        self._open_steps: list[Step] = []
        self._next_id = 0
        self._counters: dict[str, float] = {}

    # -- what the outside does -----------------------------------------------------------------------------------

    def add(
        self,
        prompt: Sequence[int],
        answer: Sequence[int],
        *,
        max_load_tokens: int | None = None,
        max_offload_tokens: int | None = None,
        skip_load: bool = False,
    ) -> Request:
        self._next_id += 1
        tokens = (*prompt, *answer)
        assert len(prompt) > 0 < len(answer) <= len(tokens) <= self.setup.max_tokens
        request = Request(
            req_id=RequestId(f"r{self._next_id}"),
            tokens=tokens,
            prompt=len(prompt),
            known=len(prompt),
            hashes=[],
            tables=[[] for _ in self.setup.tokens_per_block],
        )
        self._extend_hashes(request)
        self.requests[request.req_id] = request
        self.waiting.append(request)
        self.manager.add_request(
            RequestInfo(
                request.req_id, request.prompt, request.hashes, max_load_tokens, max_offload_tokens, skip_load
            )
        )
        return request

    def abort(self, request: Request) -> None:
        if request.status == DONE:
            return
        self.seen[f"abort {request.status}"] += 1
        self._end(request, valid_tokens=request.computed)

    def reset(self, *, new_weights: bool) -> None:
        """Clear the host tier; with new weights also the device's prefix cache, while running requests go on."""
        self.seen["reset"] += 1
        if new_weights:
            self.weights += 1
            self.pool.forget_all()
            for request in self.requests.values():
                request.pure = request.pure and not any(request.tables)
        self.manager.reset()
        assert not any(tier.ready_count for tier in self.tiers)

    def step(self, budget: int, *, accept: int = 99, vanish: bool = False, scratch: bool = False) -> None:
        """One step of the engine: schedule, forward pass, results (those of the step before if asynchronous).

        Args:
            budget: Tokens to be scheduled at most.
            accept: Of each answer of the manager the engine takes at most this many multiples of the alignment.
            vanish: The last chunk of each answer vanishes before it is loaded.
            scratch: The step also overwrites a free block that belongs to no request (a copy on write).
        """
        step = self._schedule(budget, accept, vanish, scratch)
        self._open_steps.append(step)
        for rank, worker in enumerate(self.workers):
            self._execute(step, rank, worker)
        self.pool.release(step.scratch)
        while len(self._open_steps) > (1 if self.setup.async_scheduling else 0):
            self._take_results(self._open_steps.pop(0))

    # -- scheduling ----------------------------------------------------------------------------------------------

    def _schedule(self, budget: int, accept: int, vanish: bool, scratch: bool) -> Step:
        runs: list[tuple[Request, int, int, bool, int, list[list[int]]]] = []
        scheduled: list[ScheduledRequest] = []

        def run(request: Request, count: int, fresh: list[list[int]], *, replaces: bool) -> None:
            first, last = request.computed, request.computed + count
            has_new = replaces or any(fresh)
            scheduled.append(
                ScheduledRequest(request.req_id, tuple(fresh) if has_new else None, replaces, first, count)
            )
            samples = last == request.known + request.sampling
            request.sampling += samples
            request.computed = last
            self._cache_blocks(request, min(last, request.known))
            runs.append((request, first, last, samples, request.life, [list(t) for t in request.tables]))

        for request in list(self.running):
            count = min(budget, self._runnable(request))
            if count <= 0 or request not in self.running:
                continue
            fresh = self._grow_or_preempt(request, count)
            if fresh is not None:
                run(request, count, fresh, replaces=False)
                budget -= count
        if not self._preempted:
            self._admit(budget, accept, vanish, run)
        blocks = self.pool.take(1) if scratch and self.pool.free else []
        message = self.manager.step(
            StepInput(tuple(scheduled), tuple(self._preempted), tuple(self._finished), tuple(blocks))
        )
        announced = [part for job in message.loads for part in job.parts]
        assert vanish or all((part.slots != NO_SLOT).all() for part in announced), (
            "a hit was announced in vain"
        )
        self.seen["flush"] += len(message.flush)
        self.seen["flush of a store planned now"] += any(
            job.job_id in message.flush for job in message.stores
        )
        self._preempted, self._finished = [], []
        return Step(message, runs, blocks)

    def _admit(self, budget: int, accept: int, vanish: bool, run) -> None:
        # Those that hold blocks come first: nobody takes blocks from them.
        for request in sorted(self.waiting, key=lambda request: not any(request.tables)):
            if request.status == LOADING:
                if not request.load_done:
                    continue
                self._promote(request)
            local, external = request.computed, 0
            adopted: list[list[int]] | None = None
            if not any(request.tables):
                adopted, local = self._local_hit(request)
                answer = self.manager.match(request.req_id, local)
                assert answer is None or answer >= 0
                if answer is None:
                    self.seen["asked to wait"] += 1
                    continue
                assert local + answer <= request.known, (local, answer, request.known)
                external = min(answer, accept * self.setup.align_tokens)
                if not self._loads_fit(request):
                    external = 0
            count = 0 if external else min(budget, request.known - local)
            if not external and count <= 0:
                break
            if not self._allocate(request, adopted, local + external + count):
                break
            if vanish and external:
                self._let_vanish(request, local + external)
            tables = tuple(list(table) for table in request.tables)
            self.manager.allocated(request.req_id, tables, local, external)
            request.computed = local + external
            if external:
                self.seen["load"] += 1
                self.seen["load that starts inside a chunk"] += bool(local % self.setup.chunk_tokens)
                request.status, request.load_done, request.load_failed = LOADING, False, False
                continue
            self.seen["resumed"] += request.life > 0
            self.waiting.remove(request)
            self.running.append(request)
            request.status = RUNNING
            run(request, count, [list(table) for table in request.tables], replaces=True)
            budget -= count

    def _runnable(self, request: Request) -> int:
        return min(request.known + request.sampling, len(request.tokens)) - request.computed

    def _grow_or_preempt(self, request: Request, count: int) -> list[list[int]] | None:
        while (fresh := self._grow(request, request.computed + count)) is None:
            victim = self.running[-1]
            self.preempt(victim)
            if victim is request:
                return None
        return fresh

    def preempt(self, victim: Request) -> None:
        """The engine takes a running request's blocks; happens while it schedules."""
        self.seen["preempt"] += 1
        self.running.remove(victim)
        self.waiting.insert(0, victim)
        self._free(victim)
        victim.status, victim.sampling = PREEMPTED, 0
        victim.life += 1
        self._preempted.append(victim.req_id)

    def _local_hit(self, request: Request) -> tuple[list[list[int]], int]:
        """Cached blocks of all groups for the longest common prefix; the last token is always computed."""
        if not self.setup.prefix_caching:
            return [[] for _ in request.tables], 0
        tokens = request.known - 1
        tokens -= tokens % self.setup.align_tokens
        found: list[list[int]] = []
        for group, per_block in enumerate(self.setup.tokens_per_block):
            blocks: list[int] = []
            while (len(blocks) + 1) * per_block <= tokens:
                block = self.pool.find(group, self._name(request, per_block, len(blocks)))
                if block is None:
                    break
                blocks.append(block)
            tokens = min(tokens, len(blocks) * per_block)
            tokens -= tokens % self.setup.align_tokens
            found.append(blocks)
        self.seen["device hit"] += tokens > 0
        return [
            blocks[: tokens // per_block]
            for blocks, per_block in zip(found, self.setup.tokens_per_block, strict=True)
        ], tokens

    def _allocate(self, request: Request, adopted: list[list[int]] | None, tokens: int) -> bool:
        for table, blocks in zip(request.tables, adopted or [[] for _ in request.tables], strict=True):
            self.pool.adopt(blocks)
            table.extend(blocks)
        if self._grow(request, tokens) is not None:
            return True
        if adopted is not None:
            self._free(request)
        return False

    def _grow(self, request: Request, tokens: int) -> list[list[int]] | None:
        missing = [
            max(0, -(-tokens // per_block) - len(table))
            for table, per_block in zip(request.tables, self.setup.tokens_per_block, strict=True)
        ]
        if sum(missing) > len(self.pool.free):
            return None
        fresh = [self.pool.take(count) for count in missing]
        for table, blocks in zip(request.tables, fresh, strict=True):
            table.extend(blocks)
        return fresh

    def _loads_fit(self, request: Request) -> bool:
        """Whether all who wait with blocks could run to their end: a load cannot be preempted."""
        holders = [other for other in self.waiting if any(other.tables)]
        blocks = sum(
            -(-len(holder.tokens) // per_block)
            for holder in (*holders, request)
            for per_block in self.setup.tokens_per_block
        )
        return blocks < self.setup.num_blocks

    def _let_vanish(self, request: Request, tokens: int) -> None:
        group = len(self.tiers) - 1
        span = self.setup.tokens_per_block[group] * self.setup.blocks_per_chunk
        last = (tokens - 1) // span
        name = request.hashes[(last + 1) * span // self.setup.tokens_per_hash - 1]
        self.seen["vanished"] += self.tiers[group].drop([make_offload_key(name, GROUP_IDS[group])])

    def _promote(self, request: Request) -> None:
        """The load of a request has ended: it may run."""
        request.status = PREEMPTED if request.life else WAITING
        if request.load_failed and not request.computed:
            self._free(request)
            return
        self._check_content(request, request.computed)
        self._cache_blocks(request, request.computed)
        request.computed = min(request.computed, request.known - 1)

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
        for request, first, last, _, _, tables in step.runs:
            self.memory.forward(
                rank, tables, request.tokens, range(first, last), self.weights, pure=request.pure
            )

    # -- results -------------------------------------------------------------------------------------------------

    def _take_results(self, step: Step) -> None:
        for request, _, _, samples, life, _ in step.runs:
            if request.status == DONE or not samples:
                continue
            if request.life == life:
                request.sampling -= 1
            request.known += 1
            self._extend_hashes(request)
            if request.known == len(request.tokens):
                self.seen["finished"] += 1
                valid = min(request.computed, max(request.prompt, request.known - 1))
                if request.status == RUNNING:
                    self._check_content(request, valid)
                self._end(request, valid_tokens=valid)
        for polled in step.polled:
            for job, outcome in polled:
                if job.direction is Direction.LOAD:
                    self._take_load(job, outcome)
        self.manager.report(reduce(WorkerReport.merge, map(report_of, step.polled)))
        self._finish_loads(step)

    def _take_load(self, job: CopyJob, outcome: JobOutcome) -> None:
        """One worker's part of a load has ended; blocks that failed are computed anew."""
        request = self.requests[job.req_id]
        for index, part in enumerate(job.parts):
            assert part.group == index
            bad = {slot for group, slot in outcome.failed if group == part.group} | {NO_SLOT}
            failed = set(blocks_in_slots(part, bad).tolist())
            if not failed:
                continue
            self.seen["load failed"] += 1
            request.load_failed = True
            if len(job.parts) > 1:
                request.computed = 0
                continue
            first = min(i for i, block in enumerate(request.tables[0]) if block in failed)
            request.computed = min(request.computed, first * self.setup.tokens_per_block[0])

    def _finish_loads(self, step: Step) -> None:
        loads = {
            job.job_id: job.req_id
            for polled in step.polled
            for job, _ in polled
            if job.direction is Direction.LOAD
        }
        for job_id, req_id in loads.items():
            if self.manager._ledger.knows(job_id):
                continue  # some worker has not ended it
            request = self.requests[req_id]
            request.load_done = True
            if request.status == DONE:
                self._free(request)
                del self.requests[req_id]

    def _end(self, request: Request, valid_tokens: int) -> None:
        loading = request.status == LOADING and not request.load_done
        request.status = DONE
        self.manager.finish_request(request.req_id, valid_tokens)
        self._finished.append(request.req_id)
        for queue in (self.running, self.waiting):
            if request in queue:
                queue.remove(request)
        if not loading:
            self._free(request)
            del self.requests[request.req_id]

    def _free(self, request: Request) -> None:
        for table in request.tables:
            self.pool.release(table)
            table.clear()
        request.computed = 0
        request.pure = True

    # -- names ---------------------------------------------------------------------------------------------------

    def _extend_hashes(self, request: Request) -> None:
        tokens = request.tokens[: request.known]
        request.hashes.extend(block_hashes(tokens, self.setup.tokens_per_hash)[len(request.hashes) :])
        for group, per_block in enumerate(self.setup.tokens_per_block):
            span = per_block * self.setup.blocks_per_chunk
            for chunk in range(len(request.hashes) * self.setup.tokens_per_hash // span):
                name = request.hashes[(chunk + 1) * span // self.setup.tokens_per_hash - 1]
                key = make_offload_key(name, GROUP_IDS[group])
                self._chunk_of.setdefault(key, (group, tokens, chunk))

    def _name(self, request: Request, per_block: int, block: int) -> bytes:
        return request.hashes[(block + 1) * per_block // self.setup.tokens_per_hash - 1]

    def _cache_blocks(self, request: Request, tokens: int) -> None:
        if not (self.setup.prefix_caching and request.pure):
            return
        for group, per_block in enumerate(self.setup.tokens_per_block):
            for index in range(tokens // per_block):
                self.pool.remember(request.tables[group][index], group, self._name(request, per_block, index))

    # -- what must always hold -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise AssertionError if anything is wrong anywhere."""
        self.manager.check()
        self._check_host()
        self._check_below()
        self._check_counters()
        refs = Counter(block for r in self.requests.values() for table in r.tables for block in table)
        assert all(self.pool.refs[block] == refs[block] for block in range(self.pool.num_blocks)), "model bug"

    def _check_host(self) -> None:
        for group, tier in enumerate(self.tiers):
            for key, slot in tier._ready.items():
                owner, tokens, chunk = self._chunk_of[key]
                assert owner == group, (owner, group)
                right = self.memory.chunk_row(group, tokens, chunk, self.weights)
                found = self.memory.rows[group][slot, : right.size]
                assert np.array_equal(found, right), (
                    f"WRONG KV in slot {slot} of group {group}, chunk {chunk}"
                )

    def _check_below(self) -> None:
        for tier in self.lower:
            for key, row in tier.rows.items():
                group, tokens, chunk = self._chunk_of[key]
                right = self.memory.chunk_row(group, tokens, chunk, self.weights).tobytes()
                assert row[: len(right)] == right, f"WRONG KV in {tier.name}, group {group}, chunk {chunk}"

    def _check_content(self, request: Request, tokens: int) -> None:
        if not request.pure:
            return
        for rank in range(self.setup.world_size):
            self.memory.forward(
                rank, request.tables, request.tokens, range(tokens, tokens), self.weights, pure=True
            )

    def _check_counters(self) -> None:
        for series, value in self.recorder.values().items():
            if parse_series(series)[0].kind is MetricKind.COUNTER:
                assert value >= self._counters.get(series, 0), series
            self._counters[series] = value
        assert self._counters["kvoffload_hit_tokens"] <= self._counters["kvoffload_lookup_tokens"]

    def is_idle(self) -> bool:
        """Nothing is running, waiting or in flight, and the manager has been told so."""
        busy = any(step.runs or any(step.polled) for step in self._open_steps)
        below = any(tier.jobs for tier in self.lower) or self.manager.tick() or self._lost_below()
        return not (self.requests or busy or self._finished or len(self.manager._ledger) or below)

    def check_drained(self) -> None:
        """Raise AssertionError if anything is left behind when all requests and copies have ended."""
        assert not self.requests, self.requests
        assert len(self.pool.free) == self.setup.num_blocks - 1, "blocks leaked in the model"
        assert not self.manager.has_pending_work()
        assert not self.manager._requests, self.manager._requests
        assert len(self.manager._ledger) == 0
        for tier in self.tiers:
            assert tier.pinned_count == 0
            assert len(tier._free) + tier.ready_count == tier.num_slots
        self.check()

    def _lost_below(self) -> int:
        return sum(len(lane._jobs) for lane in self.manager._staging._lanes)

    def _below(self) -> Below:
        lane = LaneOptions(deadline_s=10.0, retry_after_s=5.0, max_queued_bytes=2000, batch_bytes=300)
        return Below(
            lanes=tuple(
                TierLane(tier, lane, lambda group, slot: memoryview(self.memory.rows[group][slot]))
                for tier in self.lower
            ),
            config=StagingConfig(LoadPolicy.ALWAYS, deadline_s=4.0, hold_s=8.0),
            row_bytes=tuple(rows.shape[1] for rows in self.memory.rows),
        )

    def _manager_config(self) -> ManagerConfig:
        setup = self.setup
        return ManagerConfig(
            groups=tuple(
                GroupGeometry(GROUP_IDS[index], tokens, setup.blocks_per_chunk, setup.tokens_per_hash)
                for index, tokens in enumerate(setup.tokens_per_block)
            ),
            world_size=setup.world_size,
            offload_prompt_only=setup.prompt_only,
            wait_for_loads=setup.prefix_caching,
            pending_timeout_s=PENDING_TIMEOUT_S,
            transfer_timeout_s=TRANSFER_TIMEOUT_S,
        )
