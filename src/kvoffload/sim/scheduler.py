"""The scheduler of the engine model: requests, blocks, the device's prefix cache, admission and preemption.

It does what a real engine's scheduler does and what has broken connectors: chunked prefill, blocks that change hands,
preemption, answers that grow, asynchronous loads, steps that are scheduled before the last one has ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvoffload.keys.offload_key import make_offload_key
from kvoffload.manager.host_tier import HostTier
from kvoffload.manager.manager import OffloadManager
from kvoffload.manager.request import RequestInfo
from kvoffload.manager.step import ScheduledRequest, StepInput
from kvoffload.manager.wishes import Wishes as CacheWishes
from kvoffload.messages import NO_SLOT, StepMessage
from kvoffload.sim.block_pool import BlockPool
from kvoffload.sim.memory import Memory
from kvoffload.sim.patterns import block_hashes
from kvoffload.sim.requests import Request, Run, Status, Step, StepOptions, Wishes
from kvoffload.sim.world import World
from kvoffload.types import BlockId, RequestId


class _Scheduling:
    """What one step collects while it is scheduled."""

    def __init__(self, options: StepOptions) -> None:
        self.options = options
        self.budget = options.budget
        self.runs: list[Run] = []
        self.scheduled: list[ScheduledRequest] = []


class Scheduler:
    """See the module. The workers' part of a step is in the subclass.

    Args:
        world: What outlives this engine.
        memory: Device and host memory.
        manager: What is tested.
        hosts: Its host tiers.
    """

    def __init__(
        self, world: World, memory: Memory, manager: OffloadManager, hosts: Sequence[HostTier]
    ) -> None:
        self.world = world
        self.setup = world.setup
        self.memory = memory
        self.manager = manager
        self.tiers = tuple(hosts)
        self.pool = BlockPool(self.setup.num_blocks)
        self.requests: dict[RequestId, Request] = {}
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self._finished: list[RequestId] = []
        self._preempted: list[RequestId] = []

    # -- requests ------------------------------------------------------------------------------------------------

    def add(self, prompt: Sequence[int], answer: Sequence[int], wishes: Wishes | None = None) -> Request:
        """A request arrives."""
        wishes = wishes or Wishes()
        self.world.requests += 1
        tokens = (*prompt, *answer)
        assert len(prompt) > 0 < len(answer) <= len(tokens) <= self.setup.max_tokens, (prompt, answer)
        request = Request(
            req_id=RequestId(f"r{self.world.requests}"),
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
                request.req_id,
                request.prompt,
                request.hashes,
                wishes.max_load_tokens,
                wishes.max_offload_tokens,
                wishes.skip_load,
                wishes=CacheWishes(wishes.stay),
            )
        )
        return request

    def preempt(self, victim: Request) -> None:
        """The engine takes a running request's blocks; happens while it schedules."""
        self.world.note("preempt")
        self.running.remove(victim)
        self.waiting.insert(0, victim)
        self._free(victim)
        victim.status, victim.sampling = Status.PREEMPTED, 0
        victim.life += 1
        self._preempted.append(victim.req_id)

    def _end(self, request: Request, valid_tokens: int) -> None:
        loading = request.status is Status.LOADING and not request.load_done
        request.status = Status.DONE
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

    # -- scheduling ----------------------------------------------------------------------------------------------

    def _schedule(self, options: StepOptions) -> Step:
        plan = _Scheduling(options)
        for request in list(self.running):
            count = min(plan.budget, self._runnable(request))
            if count <= 0 or request not in self.running:
                continue
            fresh = self._grow_or_preempt(request, count)
            if fresh is not None:
                self._run(plan, request, count, fresh, replaces=False)
        if not self._preempted:
            self._admit_all(plan)
        blocks = self.pool.take(1) if options.scratch and self.pool.free else []
        message = self.manager.step(
            StepInput(
                tuple(plan.scheduled),
                tuple(self._preempted),
                tuple(self._finished),
                tuple(BlockId(block) for block in blocks),
            )
        )
        self._look_at(message, vanish=options.vanish)
        self._preempted, self._finished = [], []
        return Step(message, plan.runs, blocks)

    def _look_at(self, message: StepMessage, *, vanish: bool) -> None:
        announced = [part for job in message.loads for part in job.parts]
        assert vanish or all((part.slots != NO_SLOT).all() for part in announced), (
            "a hit was announced in vain"
        )
        note = self.world.note
        note("flush", len(message.flush))
        note("flush of a store planned now", any(job.job_id in message.flush for job in message.stores))

    def _run(
        self, plan: _Scheduling, request: Request, count: int, fresh: list[list[int]], *, replaces: bool
    ) -> None:
        first, last = request.computed, request.computed + count
        new = tuple([BlockId(block) for block in blocks] for blocks in fresh)
        has_new = replaces or any(fresh)
        plan.scheduled.append(
            ScheduledRequest(request.req_id, new if has_new else None, replaces, first, count)
        )
        samples = last == request.known + request.sampling
        request.sampling += samples
        request.computed = last
        self._cache_blocks(request, min(last, request.known))
        tables = [list(table) for table in request.tables]
        plan.runs.append(Run(request, first, last, samples, request.life, tables))
        plan.budget -= count

    def _admit_all(self, plan: _Scheduling) -> None:
        # Those that hold blocks come first: nobody takes blocks from them.
        for request in sorted(self.waiting, key=lambda request: not any(request.tables)):
            if request.status is Status.LOADING:
                if not request.load_done:
                    continue
                self._promote(request)
            if not self._admit(plan, request):
                break

    def _admit(self, plan: _Scheduling, request: Request) -> bool:
        """Let a waiting request load or run; False if nobody behind it may either."""
        local, external = request.computed, 0
        adopted: list[list[int]] | None = None
        if not any(request.tables):
            adopted, local = self._local_hit(request)
            answer = self.manager.match(request.req_id, local)
            if answer is None:
                self.world.note("asked to wait")
                return True
            assert 0 <= answer <= request.known - local, (local, answer, request.known)
            external = min(answer, plan.options.accept * self.setup.align_tokens)
            if not self._loads_fit(request):
                external = 0
        count = 0 if external else min(plan.budget, request.known - local)
        if not external and count <= 0:
            return False
        if not self._allocate(request, adopted, local + external + count):
            return False
        self._begin(plan, request, local, external, count)
        return True

    def _begin(self, plan: _Scheduling, request: Request, local: int, external: int, count: int) -> None:
        if plan.options.vanish and external:
            self._let_vanish(request, local + external)
        tables = tuple([BlockId(block) for block in table] for table in request.tables)
        self.manager.allocated(request.req_id, tables, local, external)
        request.computed = local + external
        if external:
            self.world.note("load")
            self.world.note("load that starts inside a chunk", bool(local % self.setup.chunk_tokens))
            request.status, request.load_done, request.load_failed = Status.LOADING, False, False
            return
        self.world.note("resumed", request.life > 0)
        self.waiting.remove(request)
        self.running.append(request)
        request.status = Status.RUNNING
        self._run(plan, request, count, [list(table) for table in request.tables], replaces=True)

    def _runnable(self, request: Request) -> int:
        return min(request.known + request.sampling, len(request.tokens)) - request.computed

    def _grow_or_preempt(self, request: Request, count: int) -> list[list[int]] | None:
        while (fresh := self._grow(request, request.computed + count)) is None:
            victim = self.running[-1]
            self.preempt(victim)
            if victim is request:
                return None
        return fresh

    # -- blocks --------------------------------------------------------------------------------------------------

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
        self.world.note("device hit", tokens > 0)
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
        key = make_offload_key(name, self.setup.group_ids[group])
        self.world.note("vanished", self.tiers[group].drop([key]))

    def _promote(self, request: Request) -> None:
        """The load of a request has ended: it may run."""
        request.status = Status.PREEMPTED if request.life else Status.WAITING
        if request.load_failed and not request.computed:
            self._free(request)
            return
        self._check_content(request, request.computed)
        self._cache_blocks(request, request.computed)
        request.computed = min(request.computed, request.known - 1)

    def _check_content(self, request: Request, tokens: int) -> None:
        if not request.pure:
            return
        for rank in range(self.setup.world_size):
            self.memory.forward(
                rank, request.tables, request.tokens, range(tokens, tokens), self.world.weights
            )

    # -- names ---------------------------------------------------------------------------------------------------

    def _extend_hashes(self, request: Request) -> None:
        tokens = request.tokens[: request.known]
        request.hashes.extend(block_hashes(tokens, self.setup.tokens_per_hash)[len(request.hashes) :])
        self.world.name_chunks(request.hashes, tokens)

    def _name(self, request: Request, per_block: int, block: int) -> bytes:
        return request.hashes[(block + 1) * per_block // self.setup.tokens_per_hash - 1]

    def _cache_blocks(self, request: Request, tokens: int) -> None:
        if not (self.setup.prefix_caching and request.pure):
            return
        for group, per_block in enumerate(self.setup.tokens_per_block):
            for index in range(tokens // per_block):
                self.pool.remember(request.tables[group][index], group, self._name(request, per_block, index))
