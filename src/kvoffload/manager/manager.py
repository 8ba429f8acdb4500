"""The manager: decides what to load, store, flush and evict. Synchronous, no I/O, no engine.

The connector tells it what the engine does and passes its messages to the workers; the simulator does the same
without an engine. Everything that mutates is here, in the tiers and in the ledger; the planners are pure.

    add_request ─> match (may be asked again) ─> allocated ─> step … step ─> finish_request ─> step
                                                     │ load        │ stores, flush
                                                     └──────> workers ──> report
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from kvoffload.clock import Clock
from kvoffload.keys.offload_key import OffloadKey
from kvoffload.manager.completion import Completion
from kvoffload.manager.estimates import PrefillMeter
from kvoffload.manager.host_tier import HostTier
from kvoffload.manager.load_plan import chunk_range, plan_load
from kvoffload.manager.matching import Matching
from kvoffload.manager.request import GroupState, RequestInfo, RequestState
from kvoffload.manager.settings import Below, ManagerConfig
from kvoffload.manager.size_watch import SizeWatch
from kvoffload.manager.staging import Staging
from kvoffload.manager.step import ScheduledRequest, StepInput
from kvoffload.manager.storing import Storing
from kvoffload.manager.waiting import Waiting
from kvoffload.manager.watchdog import watchdog_over, why_no_load
from kvoffload.messages import CopyJob, StepMessage, WorkerReport
from kvoffload.metrics import catalog as m
from kvoffload.metrics.recorder import Recorder
from kvoffload.policies.admission import AllOf, PromptOnly
from kvoffload.transfer.ledger import ChunkMove, Job, Ledger
from kvoffload.types import BlockId, Direction, RequestId

logger = logging.getLogger(__name__)


class OffloadManager:
    """Scheduler side: the host tier and whatever is below it.

    Args:
        config: See ManagerConfig.
        tiers: The host tier of each group, in the order of `config.groups`.
        recorder: Where it counts.
        clock: Tells the time.
        below: The tiers below the host, None if there are none.
    """

    def __init__(
        self,
        config: ManagerConfig,
        tiers: Sequence[HostTier],
        recorder: Recorder,
        clock: Clock,
        below: Below | None = None,
    ) -> None:
        assert len(tiers) == len(config.groups) > 0, (len(tiers), len(config.groups))
        self._config = config
        self._tiers = tuple(tiers)
        self._recorder = recorder
        self._clock = clock
        self._requests: dict[RequestId, RequestState] = {}
        self._ledger = Ledger(config.world_size)
        self._waiting = Waiting(self._requests, recorder, config.pending_timeout_s)
        below = below or Below()
        capacity = sum(tier.num_slots for tier in tiers)
        self._watchdog = watchdog_over(recorder, capacity, below.lanes, below.config.load_policy)
        limits = (config.size_limit, PromptOnly()) if config.offload_prompt_only else (config.size_limit,)
        self._storing = Storing(
            self._tiers,
            recorder,
            AllOf(limits),
            SizeWatch(config.groups, self._tiers, recorder),
            self._watchdog.evicted,
            null_block_id=config.null_block_id,
        )
        self._prefill = PrefillMeter()
        self._matching = Matching(
            config.groups,
            self._tiers,
            below.row_bytes or (0,) * len(tiers),
            config.boundary_unit_tokens,
        )
        self._staging = Staging(self._tiers, below.lanes, below.config, recorder, self._prefill)
        self._completion = Completion(self._tiers, self._requests, recorder, self._cascade)
        # Collected between two steps.
        self._new_loads: list[CopyJob] = []
        self._written: set[BlockId] = set()
        recorder.set(m.CAPACITY_CHUNKS, capacity)

    @property
    def recorder(self) -> Recorder:
        """What it has counted."""
        return self._recorder

    @property
    def lower_tiers(self) -> Mapping[str, str | None]:
        """The tiers below the host: name → medium."""
        return self._staging.tiers

    # -- requests ------------------------------------------------------------------------------------------------

    def add_request(self, info: RequestInfo) -> None:
        """A new request; a known id starts anew (its transfers in flight end on their own)."""
        groups = tuple(GroupState(geometry) for geometry in self._config.groups)
        self._requests[info.req_id] = RequestState(info, groups)

    def match(self, req_id: RequestId, computed_tokens: int, num_tokens: int | None = None) -> int | None:
        """How many tokens beyond `computed_tokens` can be loaded.

        May be asked any number of times. Nothing is reserved: `allocated` must follow within the same step.

        Args:
            req_id: The request.
            computed_tokens: Tokens that the device has already.
            num_tokens: All tokens of the request; with several groups the last one is never loaded.

        Returns:
            The number, 0 if nothing is to be gained; None means "ask again in a later step" (bounded in time).
        """
        state = self._requests.get(req_id)
        if state is None or state.info.skip_load or state.computes_all:
            return 0
        if state.load_jobs:
            return None
        state.extend_keys()
        known_tokens = len(state.groups[0].keys) * state.groups[0].geometry.tokens_per_chunk
        state.asked_tokens = max(0, known_tokens - computed_tokens)
        span = self._matching.span(state, computed_tokens, num_tokens)
        now_s = self._clock.now_s()
        self._pass_time(now_s)
        wants = self._matching.wants(state, span)
        tiers = state.info.wishes.load_tiers
        if self._staging.fetch(req_id, wants, now_s, self._matching.span_below(span), tiers):
            return None
        match = self._matching.look(state, span)
        tokens = match.tokens
        pending = match.pending or self._is_being_loaded(state, computed_tokens, tokens)
        if pending and self._waiting.may_go_on(state, now_s):
            return None
        state.waiting_since_s = None
        if tokens:
            self._waiting.offered(req_id)
        return tokens

    def allocated(
        self,
        req_id: RequestId,
        block_ids: Sequence[Sequence[BlockId]],
        computed_tokens: int,
        load_tokens: int,
    ) -> None:
        """The engine gave blocks to a request that was matched.

        Args:
            req_id: The request.
            block_ids: Per offloaded group, its device blocks from token 0 on.
            computed_tokens: As in `match`.
            load_tokens: What the engine accepted of the answer of `match`; 0 means that nothing is loaded.
        """
        self._waiting.admitted(req_id)
        state = self._requests.get(req_id)
        if state is None:
            assert load_tokens == 0, (req_id, load_tokens)
            return
        self._recorder.count(m.LOOKUP_TOKENS, state.asked_tokens)
        state.asked_tokens = 0
        if load_tokens > 0:
            self._recorder.count(m.HIT_TOKENS, load_tokens)
            self._plan_load(state, block_ids, range(computed_tokens, computed_tokens + load_tokens))
        else:
            self._watchdog.note(why_no_load(state, self._tiers[0], self._watchdog, computed_tokens))
        self._staging.forget(req_id)

    def finish_request(self, req_id: RequestId, valid_tokens: int) -> None:
        """The request is over; `valid_tokens` of it have KV on the device. Unknown ids are ignored."""
        self._staging.forget(req_id)
        state = self._requests.get(req_id)
        if state is not None:
            state.extend_keys()
            state.valid_tokens = valid_tokens

    # -- steps ---------------------------------------------------------------------------------------------------

    def step(self, step: StepInput) -> StepMessage:
        """Decide what the workers do in the engine's next step."""
        now_s = self._clock.now_s()
        self._prefill.step(now_s, sum(request.num_scheduled_tokens for request in step.scheduled))
        self._pass_time(now_s)
        self._staging.tick(now_s)
        for req_id in step.preempted:
            if req_id in self._requests:
                self._requests[req_id].clear_blocks()
        self._written.update(step.overwritten_block_ids)
        for scheduled in step.scheduled:
            self._take_blocks(scheduled)
        flush = self._ledger.readers_of(self._written)
        stores = [job for job in map(self._store_scheduled, step.scheduled) if job is not None]
        for req_id in step.finished:
            late = self._retire(req_id)
            if late is not None:
                stores.append(late)
                flush |= self._ledger.readers_of(self._written) & {late.job_id}
        self._recorder.count(m.FENCED_JOBS, len(flush))
        loads = bool(self._new_loads) or any(job.direction is Direction.LOAD for job in self._ledger)
        self._waiting.end_step(is_idle=not step.scheduled, is_loading=loads)
        self._give_up_overdue()
        message = StepMessage(loads=tuple(self._new_loads), stores=tuple(stores), flush=tuple(sorted(flush)))
        self._new_loads = []
        self._written = set()
        self._watchdog.look(now_s)
        self._set_gauges()
        return message

    def report(self, report: WorkerReport) -> None:
        """What the workers have finished. Reports of unknown jobs are counted and dropped."""
        for job_id, outcome in report.outcomes.items():
            if not self._ledger.knows(job_id):
                self._recorder.count(m.LATE_JOBS)
                continue
            job = self._ledger.report(job_id, outcome)
            if job is not None:
                self._completion.complete(job)
        self._set_gauges()

    def has_pending_work(self) -> bool:
        """Whether the engine should keep stepping: workers or tiers will report soon (or be given up)."""
        return self._ledger.in_flight() > 0 or self._staging.busy

    def tick(self) -> bool:
        """Go on with the tiers below without a step (while the engine shuts down).

        Returns:
            Whether a tier has still something to do.
        """
        self._staging.tick(self._clock.now_s())
        return self._staging.busy

    def reset(self) -> Mapping[str, bool]:
        """Forget all chunks. Stores in flight do not come back; loads in flight end normally.

        Nor does what is on the device now come back: requests that run, load or have just finished store nothing
        of it (a reset often follows a change of weights).

        Returns:
            For each tier whether it is empty now; the host always is.
        """
        results = {"host": True, **self._staging.reset()}
        for tier in self._tiers:
            tier.clear()
        self._storing.clear()
        for state in self._requests.values():
            state.follow_reset()
        self._watchdog.reset()
        self._recorder.count(m.RESETS)
        self._set_gauges()
        return results

    def check(self) -> None:
        """Raise AssertionError if any invariant is broken (slots, pins, fences, requests)."""
        self._ledger.check()
        for index, tier in enumerate(self._tiers):
            writing, held = self._staging.in_use(index)
            stores = [job for job in self._ledger if job.direction is Direction.STORE]
            writing += [move.slot for job in stores for move in job.chunks if move.group == index]
            loads = [job for job in self._ledger if job.direction is Direction.LOAD]
            held += [move.slot for job in loads for move in job.chunks if move.group == index]
            tier.check(writing, held)
        loading = {job.job_id for job in self._ledger if job.direction is Direction.LOAD}
        for state in self._requests.values():
            assert state.load_jobs <= loading, (state.info.req_id, state.load_jobs, loading)

    # -- the parts of a step -------------------------------------------------------------------------------------

    def _take_blocks(self, scheduled: ScheduledRequest) -> None:
        state = self._requests.get(scheduled.req_id)
        if scheduled.new_block_ids is None:
            return
        for index, new in enumerate(scheduled.new_block_ids):
            # Blocks below the computed tokens hold what the device's prefix cache shares: nobody overwrites them.
            first_written = 0
            if scheduled.replaces:
                first_written = scheduled.num_computed_tokens // self._config.groups[index].tokens_per_block
            self._written.update(new[first_written:])
            if state is not None:
                state.groups[index].take_blocks(new, replaces=scheduled.replaces)
        self._written.discard(BlockId(self._config.null_block_id))

    def _store_scheduled(self, scheduled: ScheduledRequest) -> CopyJob | None:
        state = self._requests.get(scheduled.req_id)
        if state is None:
            return None
        state.extend_keys()
        state.follow(scheduled.num_computed_tokens, scheduled.num_scheduled_tokens)
        return self._plan_store(state, scheduled.num_computed_tokens + scheduled.num_scheduled_tokens)

    def _retire(self, req_id: RequestId) -> CopyJob | None:
        state = self._requests.pop(req_id, None)
        if state is None or state.valid_tokens is None:
            return None
        job = self._plan_store(state, state.valid_tokens)
        self._storing.retire(state)
        return job

    def _plan_store(self, state: RequestState, written_tokens: int) -> CopyJob | None:
        moves, parts = self._storing.offer(state, written_tokens, self._clock.now_s())
        if not moves:
            return None
        blocks = tuple(BlockId(block) for part in parts for block in part.block_ids.tolist())
        job = self._open(state, Direction.STORE, tuple(moves), blocks)
        job.lower_tiers = state.info.wishes.cascades_to
        return CopyJob(job.job_id, job.req_id, Direction.STORE, tuple(parts))

    def _plan_load(self, state: RequestState, block_ids: Sequence[Sequence[BlockId]], tokens: range) -> None:
        moves: list[ChunkMove] = []
        parts = []
        for index, (group, blocks) in enumerate(zip(state.groups, block_ids, strict=True)):
            chunks = chunk_range(group.geometry, tokens)
            keys = group.keys[chunks.start : chunks.stop]
            slots = self._tiers[index].prepare_load(keys)
            # This load will fail although no copy does: see Completion.
            state.computes_all = state.computes_all or (None in slots and len(state.groups) > 1)
            moves.extend(
                ChunkMove(index, key, slot, chunk)
                for chunk, key, slot in zip(chunks, keys, slots, strict=True)
                if slot is not None
            )
            part = plan_load(index, group, blocks, tokens, slots, null_block_id=self._config.null_block_id)
            self._written.update(BlockId(block) for block in part.block_ids.tolist())
            parts.append(part)
        job = self._open(state, Direction.LOAD, tuple(moves), ())
        state.load_jobs.add(job.job_id)
        state.has_loaded = True
        self._new_loads.append(CopyJob(job.job_id, job.req_id, Direction.LOAD, tuple(parts)))

    def _open(
        self,
        state: RequestState,
        direction: Direction,
        moves: tuple[ChunkMove, ...],
        block_ids: tuple[BlockId, ...],
    ) -> Job:
        job = Job(self._ledger.next_id(), state.info.req_id, direction, moves, block_ids, self._clock.now_s())
        self._ledger.open(job)
        return job

    def _cascade(self, job: Job, group: int, keys: Sequence[OffloadKey]) -> None:
        self._staging.cascade(group, keys, self._clock.now_s(), job.lower_tiers)

    def _is_being_loaded(self, state: RequestState, computed_tokens: int, tokens: int) -> bool:
        if not tokens or not self._config.wait_for_loads:
            return False
        return self._matching.is_being_loaded(state, range(computed_tokens, computed_tokens + tokens))

    def _pass_time(self, now_s: float) -> None:
        if expired := sum(tier.pass_time(now_s) for tier in self._tiers):
            self._recorder.count(m.EXPIRED_CHUNKS, expired)

    def _give_up_overdue(self) -> None:
        for job in self._ledger.overdue(self._clock.now_s() - self._config.transfer_timeout_s):
            logger.warning(
                "transfer %d (%s) was not reported in time; given up", job.job_id, job.direction.value
            )
            self._completion.give_up(job)

    def _set_gauges(self) -> None:
        self._recorder.set(m.RESIDENT_CHUNKS, sum(tier.ready_count for tier in self._tiers))
        self._recorder.set(m.PINNED_CHUNKS, sum(tier.pinned_count for tier in self._tiers))
        self._recorder.set(m.KEPT_CHUNKS, sum(tier.kept_count for tier in self._tiers))
        if self._prefill.tokens_per_s is not None:
            self._recorder.set(m.PREFILL_TOKENS_PER_SECOND, round(self._prefill.tokens_per_s, 1))
