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
from kvoffload.sim.block_pool import NULL_BLOCK, BlockPool
from kvoffload.sim.memory import Memory
from kvoffload.sim.patterns import block_hashes, chain
from kvoffload.sim.requests import Request, Run, Status, Step, StepOptions, Wishes
from kvoffload.sim.splitting import tokens_of_step
from kvoffload.sim.tables import GroupTables
from kvoffload.sim.world import World
from kvoffload.types import BlockId, RequestId

_MAX_IDLE_STEPS = 8


class _Scheduling:
    """What one step collects while it is scheduled."""

    def __init__(self, options: StepOptions) -> None:
        self.options = options
        self.budget = options.budget
        self.waits = False
        """The manager asked a request to wait."""
        self.states: set[int] = set()
        """Blocks that hold a true state when this step has run, not earlier."""
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
        self._groups = [
            GroupTables(self.pool, self.setup, group) for group in range(len(self.setup.tokens_per_block))
        ]
        self._prefilling: list[Request] = []
        """Admitted, and not all of what is known of them has been computed or loaded: beside these a load must fit."""
        self._idle_steps = 0
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
        self._prefills(victim, False)

    def _end(self, request: Request, valid_tokens: int) -> None:
        loading = request.status is Status.LOADING and not request.load_done
        request.status = Status.DONE
        self.manager.finish_request(request.req_id, valid_tokens)
        self._finished.append(request.req_id)
        for queue in (self.running, self.waiting, self._prefilling):
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
        if self.setup.step_tokens is not None:
            plan.budget = min(plan.budget, self.setup.step_tokens)
        for request in list(self.running):
            count = min(plan.budget, self._runnable(request))
            count = tokens_of_step(self.setup, request, request.computed, count)
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
        self._watch_progress(plan)
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

    def _watch_progress(self, plan: _Scheduling) -> None:
        """An engine that has room for a step and requests that wait for nothing must not stand still."""
        if plan.options.budget < max(self.setup.tokens_per_block):
            return
        # A load that the manager has given up may still be with a worker.
        loads = any(request.status is Status.LOADING and not request.load_done for request in self.waiting)
        if plan.scheduled or plan.waits or loads or not self.waiting or self.manager.has_pending_work():
            self._idle_steps = 0
        else:
            self._idle_steps += 1
        assert self._idle_steps < _MAX_IDLE_STEPS, f"HANG: the engine stands still; {self.waiting} wait"

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
        request.in_flight += count
        self._prefills(request, last < request.known)
        plan.states |= self._cache_blocks(request, min(last, request.known))
        tables = [list(table) for table in request.tables]
        plan.runs.append(Run(request, first, last, samples, request.life, tables))
        plan.budget -= count

    def _admit_all(self, plan: _Scheduling) -> None:
        # Those that hold blocks come first: nobody takes blocks from them.
        for request in sorted(self.waiting, key=lambda request: not any(request.tables)):
            if request.status is Status.LOADING:
                if not request.load_done:
                    continue
                plan.states |= self._promote(request)
            if not self._admit(plan, request):
                break

    def _admit(self, plan: _Scheduling, request: Request) -> bool:
        """Let a waiting request load or run; False if nobody behind it may either."""
        local, external = request.computed, 0
        adopted: list[list[int]] | None = None
        if not any(request.tables):
            adopted, local = self._local_hit(request)
            answer = self.manager.match(request.req_id, local, request.known)
            if answer is None:
                self.world.note("asked to wait")
                plan.waits = True
                return True
            external = self._accept(request, local, answer, plan.options.accept)
            # States that this step computes are copied before it computes them.
            if not plan.states.isdisjoint(block for table in adopted for block in table):
                return False
        count = 0 if external else min(plan.budget, request.known - local)
        count = tokens_of_step(self.setup, request, local, count) if count > 0 else count
        if not external and count <= 0:
            return False
        if not self._allocate(request, adopted, local + external, count):
            self.world.note("no room for a load", external > 0)
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
            self._prefills(request, True)
            return
        self.world.note("resumed", request.life > 0)
        self.waiting.remove(request)
        self.running.append(request)
        request.status = Status.RUNNING
        self._run(plan, request, count, [list(table) for table in request.tables], replaces=True)

    def _accept(self, request: Request, local: int, answer: int, most: int) -> int:
        """So many of the tokens that the manager offers are loaded."""
        unit = self.setup.align_tokens
        assert 0 <= answer <= request.known - local, (local, answer, request.known)
        assert answer % unit == 0, f"NO BOUNDARY of all groups: {local} + {answer} tokens, unit {unit}"
        # Windows and states are there for this one boundary.
        return min(answer, most * unit) if not self.setup.is_sparse else answer * (answer <= most * unit)

    def _prefills(self, request: Request, does: bool) -> None:
        if request in self._prefilling:
            self._prefilling.remove(request)
        if does:
            self._prefilling.append(request)

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
        while tokens > 0:
            found = [self._cached(request, group, tokens) for group in range(len(self._groups))]
            if None not in found:
                self.world.note("device hit")
                return found, tokens  # type: ignore[return-value]
            tokens -= self.setup.align_tokens
        return [[] for _ in request.tables], 0

    def _cached(self, request: Request, group: int, tokens: int) -> list[int] | None:
        per_block = self.setup.tokens_per_block[group]
        return self._groups[group].hit(
            tokens, lambda index: self.pool.find(group, self._name(request, per_block, index))
        )

    def _allocate(self, request: Request, adopted: list[list[int]] | None, computed: int, count: int) -> bool:
        """Blocks for a request that begins or goes on behind `computed` tokens; False if there are not enough.

        All of what is known of it must fit into the free blocks. A load, which cannot be preempted, must leave what
        others need that are being loaded or computed. So does, for a real engine, a request whose load has failed.
        """
        reserved = 0 if count else sum(map(self._blocks_to_come, self._prefilling))
        for group, table, blocks in zip(
            self._groups, request.tables, adopted or [[] for _ in request.tables], strict=True
        ):
            if adopted is not None:
                group.adopt(table, blocks, computed)
        fits = self._blocks_to_come(request) <= len(self.pool.free)
        if fits and self._grow(request, computed + count, reserved) is not None:
            return True
        if adopted is not None:
            self._free(request)
        return False

    def _blocks_to_come(self, request: Request) -> int:
        """Blocks that it will need for what is known of it."""
        pairs = zip(self._groups, request.tables, strict=True)
        return sum(group.missing(table, request.known) for group, table in pairs)

    def _grow(self, request: Request, tokens: int, reserved: int = 0) -> list[list[int]] | None:
        pairs = list(zip(self._groups, request.tables, strict=True))
        for group, table in pairs:
            # Steps whose results are not known yet may still read what the next one does not.
            given = group.give_away(table, request.computed - request.in_flight)
            self.world.note("given away while it runs", given)
        missing = sum(group.missing(table, tokens) for group, table in pairs)
        if missing > len(self.pool.free) - reserved:
            return None
        return [group.grow(table, tokens) for group, table in pairs]

    def _let_vanish(self, request: Request, tokens: int) -> None:
        group = len(self.tiers) - 1
        span = self.setup.tokens_per_block[group] * self.setup.blocks_per_chunk
        last = (tokens - 1) // span
        name = request.hashes[(last + 1) * span // self.setup.tokens_per_hash - 1]
        key = make_offload_key(name, self.setup.group_ids[group])
        self.world.note("vanished", self.tiers[group].drop([key]))

    def _promote(self, request: Request) -> set[int]:
        """The load of a request has ended: it may run. Returns blocks with states that are cached from now on."""
        request.status = Status.PREEMPTED if request.life else Status.WAITING
        if request.load_failed and not request.computed:
            self._free(request)
            return set()
        self._check_content(request, request.computed)
        states = self._cache_blocks(request, request.computed)
        request.computed = min(request.computed, request.known - 1)
        return states

    def _check_content(self, request: Request, tokens: int) -> None:
        """What the next token would look at is right. A state is that of the last token that was computed."""
        right = chain(request.tokens, self.world.weights)
        for rank in range(self.setup.world_size if request.pure else 0):
            for place in self.memory.places(rank):
                behind = request.computed if self.setup.is_state(place.group) else tokens
                self.memory.verify(place, request.tables[place.group], behind, right)

    # -- names ---------------------------------------------------------------------------------------------------

    def _extend_hashes(self, request: Request) -> None:
        tokens = request.tokens[: request.known]
        request.hashes.extend(block_hashes(tokens, self.setup.tokens_per_hash)[len(request.hashes) :])
        self.world.name_chunks(request.hashes, tokens)

    def _name(self, request: Request, per_block: int, block: int) -> bytes:
        return request.hashes[(block + 1) * per_block // self.setup.tokens_per_hash - 1]

    def _cache_blocks(self, request: Request, tokens: int) -> set[int]:
        """Let others find the blocks of so many tokens; returns those that hold a state and were not found before."""
        states: set[int] = set()
        if not (self.setup.prefix_caching and request.pure):
            return states
        for group, per_block in enumerate(self.setup.tokens_per_block):
            for index, block in enumerate(request.tables[group][: tokens // per_block]):
                if block == NULL_BLOCK:
                    continue
                is_new = self.pool.remember(block, group, self._name(request, per_block, index))
                if is_new and self.setup.is_state(group):
                    states.add(block)
        return states
