"""Scheduler side of the connector: tells the manager what vLLM's scheduler does, and vLLM what the manager says."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from vllm.v1.request import RequestStatus

from kvoffload.clock import MonotonicClock
from kvoffload.config.schema import OffloadingConfig
from kvoffload.connectors.recording import RecordedRequest, TraceRecorder
from kvoffload.connectors.vllm.guard import guarded
from kvoffload.connectors.vllm.identity import AdapterIdentities
from kvoffload.connectors.vllm.params import OFF, RequestLimits, parse_limits
from kvoffload.manager.request import RequestInfo
from kvoffload.manager.step import ScheduledRequest, StepInput
from kvoffload.messages import NO_SLOT, CopyJob, GroupCopies, StepMessage, WorkerReport
from kvoffload.metrics import catalog as m
from kvoffload.metrics.recorder import Recorder
from kvoffload.spec.base import OffloadingSpec
from kvoffload.types import BlockId, Direction, JobId, RequestId

logger = logging.getLogger(__name__)

_DRAIN_PAUSE_S = 0.005


def _no_tokens() -> int | None:
    return 0


def _no_answer() -> dict[str, Any] | None:
    return None


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
        self._groups = config.groups
        self._failing_ids = 0
        # Tokens that the device had when a request was last matched: its load begins there.
        self._computed: dict[RequestId, int] = {}
        # Loads that vLLM has been promised and no message has carried yet, as jobs that fail.
        self._promised: list[CopyJob] = []
        # What is wrong with the wishes of requests that live, for their authors; and which kinds were logged.
        self._faults: dict[RequestId, str] = {}
        self._warned_parameters: set[str] = set()
        self._clock = MonotonicClock()
        self._adapters = AdapterIdentities(self._clock)
        self._hashes_per_recorded_block = config.tokens_per_chunk(0) // config.cache.tokens_per_hash
        self._trace: TraceRecorder | None = None
        if config.options.record_dir is not None:
            directory, most = Path(config.options.record_dir), config.options.record_max_bytes
            self._trace = TraceRecorder(directory, config.tokens_per_chunk(0), most)

    @guarded(lambda: None)
    def add_request(self, request: Any) -> None:
        """A request arrived."""
        limits = self._limits(request)
        adapter_salt = self._adapter_salt(request)
        if adapter_salt is None:
            limits = OFF
        salt = (adapter_salt or b"") + _mixed_prompt_salt(request)
        self._record(request, salt)
        self._manager.add_request(
            RequestInfo(
                req_id=request.request_id,
                num_prompt_tokens=request.num_prompt_tokens,
                block_hashes=request.block_hashes,
                max_load_tokens=limits.max_load_tokens,
                max_offload_tokens=limits.max_offload_tokens,
                skip_load=request.skip_reading_prefix_cache or limits.max_load_tokens == 0,
                key_salt=salt,
                wishes=limits.wishes,
            )
        )

    def _record(self, request: Any, salt: bytes) -> None:
        if self._trace is None:
            return
        per_block = self._hashes_per_recorded_block
        # A copy: the engine goes on with its list.
        hashes = request.block_hashes[per_block - 1 :: per_block]
        recorded = RecordedRequest(self._clock.now_s(), request.num_prompt_tokens, list(hashes), salt)
        if not self._trace.add(recorded):
            self.recorder.count(m.RECORD_DROPPED_REQUESTS)

    @guarded(_no_tokens)
    def match(self, request: Any, num_computed_tokens: int) -> int | None:
        """Tokens beyond `num_computed_tokens` that can be loaded; None: ask again."""
        self._computed[request.request_id] = num_computed_tokens
        return self._manager.match(request.request_id, num_computed_tokens, request.num_tokens)

    def allocated(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """The request got its blocks. From now on vLLM waits for its load, if there is one."""
        block_ids = self._select(blocks.get_block_ids())
        computed = self._computed.pop(request.request_id, 0)
        if num_external_tokens > 0:
            tokens = range(computed, computed + num_external_tokens)
            self._promised.append(self._failing_load(request.request_id, block_ids, tokens))
        self._allocated(request.request_id, block_ids, computed, num_external_tokens)

    @guarded(lambda: None)
    def _allocated(
        self, req_id: RequestId, block_ids: Sequence[Sequence[BlockId]], computed: int, load_tokens: int
    ) -> None:
        self._manager.allocated(req_id, block_ids, computed, load_tokens)

    @guarded(_no_answer)
    def finish_request(self, request: Any) -> dict[str, Any] | None:
        """The request is over; its blocks are about to be freed.

        Returns:
            What is wrong with its wishes, for the `kv_transfer_params` of the answer; None if nothing is.
        """
        fault = self._faults.pop(request.request_id, None)
        self._computed.pop(request.request_id, None)
        self._manager.finish_request(request.request_id, _valid_tokens(request))
        return None if fault is None else {"kvoffload_error": fault}

    def step(self, output: Any) -> StepMessage:
        """What the workers have to do in the step that vLLM has just scheduled."""
        message = self._step(output)
        promised, self._promised = self._promised, []
        if self.broken and promised:
            # vLLM waits for these loads, whatever happened to us: let the workers report them as failed.
            return StepMessage(loads=tuple(promised))
        return message

    @guarded(StepMessage)
    def _step(self, output: Any) -> StepMessage:
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

    @guarded(lambda: False)
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
        self._adapters.close()
        if self._trace is not None:
            self._trace.close()
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

    def _failing_load(
        self, req_id: RequestId, block_ids: Sequence[Sequence[BlockId]], tokens: range
    ) -> CopyJob:
        parts = []
        for index, (group, blocks) in enumerate(zip(self._groups, block_ids, strict=True)):
            span = group.tokens_per_block
            wanted = np.array(blocks[tokens.start // span : -(-tokens.stop // span)], dtype=np.int64)
            nowhere = np.full_like(wanted, NO_SLOT)
            parts.append(GroupCopies(index, wanted, nowhere, np.zeros_like(wanted)))
        self._failing_ids += 1
        return CopyJob(JobId(-self._failing_ids), req_id, Direction.LOAD, tuple(parts))

    def _select(self, block_ids: Sequence[Sequence[int]]) -> tuple[Sequence[BlockId], ...]:
        return tuple(block_ids[group.group_id] for group in self._groups)  # type: ignore[misc]

    def _adapter_salt(self, request: Any) -> bytes | None:
        """What vLLM leaves out of its hashes of an adapter (name and path). None: keep nothing of this request."""
        if request.lora_request is None:
            return b""
        adapter = request.lora_request
        if adapter.load_inplace:
            # Other weights under the same id, from now on.
            return None
        return self._adapters.salt_of(adapter.lora_int_id, adapter.lora_path)

    def _limits(self, request: Any) -> RequestLimits:
        if request.resumable:
            # A streaming session may take tokens back: its early keys would name something else later.
            return OFF
        limits, fault = parse_limits(request.kv_transfer_params, self._manager.lower_tiers)
        if fault is not None:
            self.recorder.count(m.BAD_REQUEST_PARAMS)
            self._faults[request.request_id] = fault.text
            if fault.parameter not in self._warned_parameters:
                self._warned_parameters.add(fault.parameter)
                logger.warning(
                    "kvoffload: request %s is served without the cache: %s (said once for each parameter; all such "
                    "requests are counted in kvoffload_bad_request_params)",
                    request.request_id,
                    fault.text,
                )
        return limits


def _mixed_prompt_salt(request: Any) -> bytes:
    """What vLLM leaves out of its hashes of a prompt that mixes tokens and embeddings: which of them a position is.

    Token 0 and an embedding of zeros look alike there, and their KV does not.
    """
    mask = request.prompt_is_token_ids
    return b"" if mask is None else hashlib.sha256(bytes(map(bool, mask))).digest()


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
