"""Scheduler side of the connector: tells the manager what vLLM's scheduler does, and vLLM what the manager says."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any

from vllm.v1.request import RequestStatus

from kvoffload.clock import MonotonicClock
from kvoffload.config.schema import OffloadingConfig
from kvoffload.connectors.vllm.guard import guarded
from kvoffload.connectors.vllm.params import RequestLimits, parse_limits
from kvoffload.manager.request import RequestInfo
from kvoffload.manager.step import ScheduledRequest, StepInput
from kvoffload.messages import StepMessage, WorkerReport
from kvoffload.metrics import catalog as m
from kvoffload.metrics.recorder import Recorder
from kvoffload.spec.base import OffloadingSpec
from kvoffload.types import BlockId, RequestId

logger = logging.getLogger(__name__)

_DRAIN_PAUSE_S = 0.005


def _no_tokens() -> int | None:
    return 0


class ConnectorScheduler:
    """The scheduler's process.

    Args:
        spec: Makes the manager.
        config: The engine's configuration.
    """

    def __init__(self, spec: OffloadingSpec, config: OffloadingConfig) -> None:
        self.broken = False
        self.recorder = Recorder()
        self._manager = spec.make_manager(self.recorder, MonotonicClock())
        self._group_ids = tuple(group.group_id for group in config.groups)
        # Tokens that the device had when a request was last matched: its load begins there.
        self._computed: dict[RequestId, int] = {}
        self._warned_params = False

    @guarded(lambda: None)
    def add_request(self, request: Any) -> None:
        """A request arrived."""
        limits = self._limits(request)
        self._manager.add_request(
            RequestInfo(
                req_id=request.request_id,
                num_prompt_tokens=request.num_prompt_tokens,
                block_hashes=request.block_hashes,
                max_load_tokens=limits.max_load_tokens,
                max_offload_tokens=limits.max_offload_tokens,
                skip_load=request.skip_reading_prefix_cache or limits.max_load_tokens == 0,
            )
        )

    @guarded(_no_tokens)
    def match(self, request: Any, num_computed_tokens: int) -> int | None:
        """Tokens beyond `num_computed_tokens` that can be loaded; None: ask again."""
        self._computed[request.request_id] = num_computed_tokens
        return self._manager.match(request.request_id, num_computed_tokens)

    @guarded(lambda: None)
    def allocated(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """The request got its blocks."""
        self._manager.allocated(
            request.request_id,
            self._select(blocks.get_block_ids()),
            self._computed.pop(request.request_id, 0),
            num_external_tokens,
        )

    @guarded(lambda: None)
    def finish_request(self, request: Any) -> None:
        """The request is over; its blocks are about to be freed."""
        self._computed.pop(request.request_id, None)
        self._manager.finish_request(request.request_id, _valid_tokens(request))

    @guarded(StepMessage)
    def step(self, output: Any) -> StepMessage:
        """What the workers have to do in the step that vLLM has just scheduled."""
        copies: Iterable[Any] = output.kv_cache_block_copies or ()
        return self._manager.step(
            StepInput(
                scheduled=self._scheduled(output),
                preempted=tuple(output.preempted_req_ids or ()),
                finished=tuple(output.finished_req_ids or ()),
                overwritten_block_ids=tuple(BlockId(copy.dst_block_id) for copy in copies),
            )
        )

    @guarded(lambda: None)
    def report(self, report: WorkerReport) -> None:
        """What the workers have finished."""
        self._manager.report(report)

    @guarded(lambda: False)
    def has_pending_work(self) -> bool:
        """Whether the engine should keep stepping."""
        return self._manager.has_pending_work()

    @guarded(lambda: True)
    def reset(self) -> bool:
        """Forget all chunks; True if all tiers are empty now."""
        results = self._manager.reset()
        logger.info(
            "kvoffload: reset: %s",
            ", ".join(f"{tier} {'ok' if ok else 'FAILED'}" for tier, ok in results.items()),
        )
        return all(results.values())

    def shutdown(self, drain_timeout_s: float) -> None:
        """Give the tiers below time to take what is queued, within a bound."""
        deadline_s = time.monotonic() + drain_timeout_s
        while self._go_on() and time.monotonic() < deadline_s:
            time.sleep(_DRAIN_PAUSE_S)

    @guarded(lambda: False)
    def _go_on(self) -> bool:
        return self._manager.tick()

    def _scheduled(self, output: Any) -> list[ScheduledRequest]:
        tokens = output.num_scheduled_tokens
        scheduled = [
            ScheduledRequest(
                req_id=new.req_id,
                new_block_ids=self._select(new.block_ids),
                replaces=True,
                num_computed_tokens=new.num_computed_tokens,
                num_scheduled_tokens=tokens[new.req_id],
            )
            for new in output.scheduled_new_reqs
        ]
        cached = output.scheduled_cached_reqs
        for req_id, blocks, computed in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            scheduled.append(
                ScheduledRequest(
                    req_id=req_id,
                    new_block_ids=None if blocks is None else self._select(blocks),
                    replaces=req_id in cached.resumed_req_ids,
                    num_computed_tokens=computed,
                    num_scheduled_tokens=tokens[req_id],
                )
            )
        return scheduled

    def _select(self, block_ids: Sequence[Sequence[int]]) -> tuple[Sequence[BlockId], ...]:
        return tuple(block_ids[group_id] for group_id in self._group_ids)  # type: ignore[misc]

    def _limits(self, request: Any) -> RequestLimits:
        if request.resumable:
            # A streaming session may take tokens back: its early keys would name something else later.
            return RequestLimits(max_load_tokens=0, max_offload_tokens=0)
        limits, problem = parse_limits(request.kv_transfer_params)
        if problem is not None:
            self.recorder.count(m.BAD_REQUEST_PARAMS)
            if not self._warned_params:
                self._warned_params = True
                logger.warning(
                    "kvoffload: request %s is served without the cache: %s", request.request_id, problem
                )
        return limits


def _valid_tokens(request: Any) -> int:
    """Tokens of a finished request whose KV is on the device.

    Of an answer the last token was sampled but not run through the model (and under speculative decoding its place
    may hold a rejected draft); of an aborted request only what was computed counts.
    """
    computed: int = request.num_computed_tokens
    if request.status == RequestStatus.FINISHED_ABORTED:
        return computed
    written: int = max(request.num_prompt_tokens, request.num_tokens - 1)
    return min(computed, written)
