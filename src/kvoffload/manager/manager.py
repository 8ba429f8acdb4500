"""The manager: decides what to load, store, flush and evict. Synchronous, no I/O, no engine.

The connector tells it what the engine does and passes its messages to the workers; the simulator does the same
without an engine. Everything that mutates is here, in the tiers and in the ledger; the planners are pure.

    add_request ─> match (may be asked again) ─> allocated ─> step … step ─> finish_request ─> step
                                                     │ load        │ stores, flush
                                                     └──────> workers ──> report
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from kvoffload.clock import Clock
from kvoffload.manager.completion import Completion
from kvoffload.manager.host_tier import HostTier
from kvoffload.manager.load_plan import chunk_range, plan_load
from kvoffload.manager.prefix import longest_prefix, usable_tokens
from kvoffload.manager.request import GroupGeometry, GroupState, RequestInfo, RequestState
from kvoffload.manager.step import ScheduledRequest, StepInput
from kvoffload.manager.store_plan import plan_store, storable_chunks, storable_tokens
from kvoffload.messages import CopyJob, StepMessage, WorkerReport
from kvoffload.metrics import catalog as m
from kvoffload.metrics.recorder import Recorder
from kvoffload.transfer.ledger import ChunkMove, Job, Ledger
from kvoffload.types import BlockId, Direction, RequestId

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ManagerConfig:
    """What the manager must know of the engine and of the user's wishes."""

    groups: tuple[GroupGeometry, ...]
    world_size: int
    offload_prompt_only: bool
    wait_for_loads: bool
    """Two requests that want the same chunk share one load: right where the device has a prefix cache."""
    pending_timeout_s: float
    transfer_timeout_s: float
    null_block_id: int = 0
    """The engine's block that stands for "no block"."""


class OffloadManager:
    """Scheduler side of the host tier.

    Args:
        config: See ManagerConfig.
        tiers: The host tier of each group, in the order of `config.groups`.
        recorder: Where it counts.
        clock: Tells the time.
    """

    def __init__(
        self, config: ManagerConfig, tiers: Sequence[HostTier], recorder: Recorder, clock: Clock
    ) -> None:
        assert len(tiers) == len(config.groups) > 0, (len(tiers), len(config.groups))
        self._config = config
        self._tiers = tuple(tiers)
        self._recorder = recorder
        self._clock = clock
        self._requests: dict[RequestId, RequestState] = {}
        self._ledger = Ledger(config.world_size)
        self._completion = Completion(self._tiers, self._requests, recorder)
        self._chunk_unit = max(group.tokens_per_chunk for group in config.groups)
        # Collected between two steps.
        self._new_loads: list[CopyJob] = []
        self._written: set[BlockId] = set()
        recorder.set(m.CAPACITY_CHUNKS, sum(tier.num_slots for tier in tiers))

    @property
    def recorder(self) -> Recorder:
        """What it has counted."""
        return self._recorder

    # -- requests ------------------------------------------------------------------------------------------------

    def add_request(self, info: RequestInfo) -> None:
        """A new request; a known id starts anew (its transfers in flight end on their own)."""
        groups = tuple(GroupState(geometry) for geometry in self._config.groups)
        self._requests[info.req_id] = RequestState(info, groups)

    def match(self, req_id: RequestId, computed_tokens: int) -> int | None:
        """How many tokens beyond `computed_tokens` can be loaded.

        May be asked any number of times. Nothing is reserved: `allocated` must follow within the same step.

        Returns:
            The number, 0 if nothing is to be gained; None means "ask again in a later step" (bounded in time).
        """
        state = self._requests.get(req_id)
        if state is None or state.info.skip_load:
            return 0
        if state.load_jobs:
            return None
        state.extend_keys()
        state.asked_tokens = max(0, len(state.groups[0].keys) * self._chunk_unit - computed_tokens)
        hits = [
            longest_prefix(group.keys, group.geometry.tokens_per_chunk, computed_tokens, tier.lookup_prefix)
            for group, tier in zip(state.groups, self._tiers, strict=True)
        ]
        tokens = usable_tokens(hits, computed_tokens, state.info.max_load_tokens, self._chunk_unit)
        pending = any(hit.pending for hit in hits) or self._is_being_loaded(state, computed_tokens, tokens)
        if pending and self._may_wait(state):
            return None
        state.waiting_since_s = None
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
        state = self._requests.get(req_id)
        if state is None:
            assert load_tokens == 0, (req_id, load_tokens)
            return
        self._recorder.count(m.LOOKUP_TOKENS, state.asked_tokens)
        state.asked_tokens = 0
        if load_tokens > 0:
            self._recorder.count(m.HIT_TOKENS, load_tokens)
            self._plan_load(state, block_ids, range(computed_tokens, computed_tokens + load_tokens))

    def finish_request(self, req_id: RequestId, valid_tokens: int) -> None:
        """The request is over; `valid_tokens` of it have KV on the device. Unknown ids are ignored."""
        state = self._requests.get(req_id)
        if state is not None:
            state.extend_keys()
            state.valid_tokens = valid_tokens

    # -- steps ---------------------------------------------------------------------------------------------------

    def step(self, step: StepInput) -> StepMessage:
        """Decide what the workers do in the engine's next step."""
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
        self._give_up_overdue()
        message = StepMessage(loads=tuple(self._new_loads), stores=tuple(stores), flush=tuple(sorted(flush)))
        self._new_loads = []
        self._written = set()
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
        """Whether workers are expected to report something soon, so that the engine should keep stepping."""
        return self._ledger.in_flight() > 0

    def reset(self) -> int:
        """Forget all chunks. Stores in flight do not come back; loads in flight end normally.

        Returns:
            How many chunks were dropped.
        """
        dropped = sum(tier.clear() for tier in self._tiers)
        for state in self._requests.values():
            state.restart_stores()
        self._recorder.count(m.RESETS)
        self._set_gauges()
        return dropped

    def check(self) -> None:
        """Raise AssertionError if any invariant is broken (slots, pins, fences, requests)."""
        self._ledger.check()
        for index, tier in enumerate(self._tiers):
            tier.check(
                [
                    move.slot
                    for job in self._ledger
                    if job.direction is Direction.STORE
                    for move in job.chunks
                    if move.group == index
                ]
            )
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
                if scheduled.replaces:
                    state.groups[index].block_ids.clear()
                state.groups[index].block_ids.extend(new)
        self._written.discard(BlockId(self._config.null_block_id))

    def _store_scheduled(self, scheduled: ScheduledRequest) -> CopyJob | None:
        state = self._requests.get(scheduled.req_id)
        if state is None:
            return None
        state.extend_keys()
        return self._plan_store(state, scheduled.num_computed_tokens + scheduled.num_scheduled_tokens)

    def _retire(self, req_id: RequestId) -> CopyJob | None:
        state = self._requests.pop(req_id, None)
        if state is None or state.valid_tokens is None:
            return None
        job = self._plan_store(state, state.valid_tokens)
        for group, tier in zip(state.groups, self._tiers, strict=True):
            # One order for the whole prompt, however it came in pieces: its end goes first.
            tier.touch(group.keys)
        return job

    def _plan_store(self, state: RequestState, written_tokens: int) -> CopyJob | None:
        tokens = storable_tokens(state.info, written_tokens, prompt_only=self._config.offload_prompt_only)
        moves: list[ChunkMove] = []
        parts = []
        for index, group in enumerate(state.groups):
            accepted = self._offer(index, group, tokens)
            if accepted:
                parts.append(plan_store(index, group, accepted))
                moves.extend(accepted)
        if not moves:
            return None
        blocks = tuple(BlockId(block) for part in parts for block in part.block_ids.tolist())
        job = self._open(state, Direction.STORE, tuple(moves), blocks)
        return CopyJob(job.job_id, job.req_id, Direction.STORE, tuple(parts))

    def _offer(self, index: int, group: GroupState, tokens: int) -> list[ChunkMove]:
        chunks = storable_chunks(group, tokens, self._config.null_block_id)
        if not chunks:
            return []
        keys = group.keys[chunks.start : chunks.stop]
        prepared = self._tiers[index].prepare_store(keys, protected=group.own_keys)
        group.next_store_chunk = chunks.stop
        self._recorder.count(m.EVICTED_CHUNKS, len(prepared.evicted))
        self._recorder.count(m.STORE_FILTERED_CHUNKS, prepared.filtered)
        self._recorder.count(m.STORE_REJECTED_CHUNKS, prepared.rejected)
        if not prepared.stored:
            return []
        place = {key: chunk for chunk, key in zip(chunks, keys, strict=True)}
        return [ChunkMove(index, key, slot, place[key]) for key, slot in prepared.stored]

    def _plan_load(self, state: RequestState, block_ids: Sequence[Sequence[BlockId]], tokens: range) -> None:
        moves: list[ChunkMove] = []
        parts = []
        for index, (group, blocks) in enumerate(zip(state.groups, block_ids, strict=True)):
            chunks = chunk_range(group, tokens.start, tokens.stop)
            keys = group.keys[chunks.start : chunks.stop]
            slots = self._tiers[index].prepare_load(keys)
            moves.extend(
                ChunkMove(index, key, slot, chunk)
                for chunk, key, slot in zip(chunks, keys, slots, strict=True)
                if slot is not None
            )
            part = plan_load(index, group, blocks, tokens, slots)
            self._written.update(BlockId(block) for block in part.block_ids.tolist())
            parts.append(part)
        job = self._open(state, Direction.LOAD, tuple(moves), ())
        state.load_jobs.add(job.job_id)
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

    # -- waiting -------------------------------------------------------------------------------------------------

    def _is_being_loaded(self, state: RequestState, computed_tokens: int, tokens: int) -> bool:
        if not tokens or not self._config.wait_for_loads:
            return False
        for group, tier in zip(state.groups, self._tiers, strict=True):
            chunks = chunk_range(group, computed_tokens, computed_tokens + tokens)
            if tier.any_pinned(group.keys[chunks.start : chunks.stop]):
                return True
        return False

    def _may_wait(self, state: RequestState) -> bool:
        now_s = self._clock.now_s()
        if state.waiting_since_s is None:
            state.waiting_since_s = now_s
        if now_s - state.waiting_since_s < self._config.pending_timeout_s:
            return True
        self._recorder.count(m.PENDING_TIMEOUTS)
        return False

    def _give_up_overdue(self) -> None:
        for job in self._ledger.overdue(self._clock.now_s() - self._config.transfer_timeout_s):
            logger.warning(
                "transfer %d (%s) was not reported in time; given up", job.job_id, job.direction.value
            )
            self._completion.give_up(job)

    def _set_gauges(self) -> None:
        self._recorder.set(m.RESIDENT_CHUNKS, sum(tier.ready_count for tier in self._tiers))
        self._recorder.set(m.PINNED_CHUNKS, sum(tier.pinned_count for tier in self._tiers))
