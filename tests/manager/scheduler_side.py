"""A manager without an engine: the test says what the engine does, step by step."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from kvoffload.clock import ManualClock
from kvoffload.keys.offload_key import OffloadKey, make_offload_key
from kvoffload.manager.host_tier import HostTier
from kvoffload.manager.manager import OffloadManager
from kvoffload.manager.request import GroupGeometry, RequestInfo
from kvoffload.manager.settings import Below, ManagerConfig
from kvoffload.manager.step import ScheduledRequest, StepInput
from kvoffload.messages import CopyJob, JobOutcome, StepMessage, WorkerReport
from kvoffload.metrics.catalog import Metric
from kvoffload.metrics.recorder import Recorder
from kvoffload.policies.admission import TouchFilter
from kvoffload.policies.lru import LRUPolicy
from kvoffload.types import BlockId, RequestId, SlotId

TOKENS_PER_BLOCK = 4
PENDING_TIMEOUT_S = 5.0
TRANSFER_TIMEOUT_S = 60.0


def hashes_of(text: str) -> list[bytes]:
    """One chained hash per letter: prompts that begin alike have hashes that begin alike."""
    chain = [b"root"]
    for letter in text:
        chain.append(hashlib.sha256(chain[-1] + letter.encode()).digest()[:8])
    return chain[1:]


def keys_of(text: str, group_id: int = 0) -> list[OffloadKey]:
    """The keys of a prompt of one letter a chunk."""
    return [make_offload_key(name, group_id) for name in hashes_of(text)]


class SchedulerSide:
    """A manager, its tiers, and short names for what an engine tells it. A prompt is a text: a letter is a block."""

    def __init__(
        self,
        *,
        num_slots: int = 8,
        world_size: int = 1,
        store_threshold: int = 0,
        geometries: Sequence[GroupGeometry] = (GroupGeometry(0, TOKENS_PER_BLOCK, 1, TOKENS_PER_BLOCK),),
        below: Below | None = None,
        **config: Any,
    ) -> None:
        self.clock = ManualClock()
        self.recorder = Recorder()
        self.world_size = world_size
        self.tiers = [
            HostTier(num_slots, LRUPolicy(num_slots), TouchFilter(store_threshold, 100)) for _ in geometries
        ]
        defaults: dict[str, Any] = {
            "offload_prompt_only": True,
            "wait_for_loads": True,
            "pending_timeout_s": PENDING_TIMEOUT_S,
            "transfer_timeout_s": TRANSFER_TIMEOUT_S,
        }
        self.manager = OffloadManager(
            ManagerConfig(groups=tuple(geometries), world_size=world_size, **{**defaults, **config}),
            self.tiers,
            self.recorder,
            self.clock,
            below,
        )

    @property
    def tier(self) -> HostTier:
        return self.tiers[0]

    def count(self, metric: Metric) -> float:
        return self.recorder.value(metric)

    def add(self, req_id: str, text: str, *, answer: str = "", **info: Any) -> list[bytes]:
        """A request arrives. Returns its list of hashes, which the engine extends as the answer grows."""
        hashes = hashes_of(text + answer)
        tokens = info.pop("num_prompt_tokens", len(text) * TOKENS_PER_BLOCK)
        self.manager.add_request(RequestInfo(RequestId(req_id), tokens, hashes, **info))
        return hashes

    def match(self, req_id: str, computed: int = 0) -> int | None:
        before = [repr(vars(tier)) for tier in self.tiers]
        answer = self.manager.match(RequestId(req_id), computed)
        assert [repr(vars(tier)) for tier in self.tiers] == before, "a match reserved something"
        return answer

    def allocate(self, req_id: str, blocks: Sequence[int], *, computed: int = 0, load: int = 0) -> None:
        self.manager.allocated(RequestId(req_id), [list(map(BlockId, blocks))], computed, load)

    def step(
        self,
        *runs: ScheduledRequest,
        preempted: Iterable[str] = (),
        finished: Iterable[str] = (),
        overwritten: Iterable[int] = (),
    ) -> StepMessage:
        message = self.manager.step(
            StepInput(
                runs,
                tuple(map(RequestId, preempted)),
                tuple(map(RequestId, finished)),
                tuple(map(BlockId, overwritten)),
            )
        )
        self.manager.check()
        return message

    def finish(self, req_id: str, valid_tokens: int) -> StepMessage:
        """The request ends, and the next step tells so."""
        self.manager.finish_request(RequestId(req_id), valid_tokens)
        return self.step(finished=[req_id])

    def report(
        self, *jobs: CopyJob, failed: Iterable[tuple[int, int]] = (), workers: int | None = None
    ) -> None:
        """So many workers (all of them) have ended these jobs."""
        outcome = JobOutcome(workers or self.world_size, frozenset(failed), copied_bytes=100)
        self.manager.report(WorkerReport({job.job_id: outcome for job in jobs}))
        self.manager.check()

    def store(self, req_id: str, text: str, blocks: Sequence[int]) -> CopyJob:
        """A request comes, is computed at once and ends; its chunks are stored. Returns the store."""
        self.add(req_id, text)
        assert self.match(req_id) is not None
        self.allocate(req_id, blocks)
        tokens = len(text) * TOKENS_PER_BLOCK
        (job,) = self.step(run(req_id, blocks, tokens)).stores
        self.report(job)
        assert not self.finish(req_id, tokens).stores
        return job


def run(
    req_id: str, blocks: Sequence[int] | None, tokens: int, *, computed: int = 0, replaces: bool = True
) -> ScheduledRequest:
    """A request runs `tokens` tokens in a step; `blocks` are new, or all of them."""
    new = None if blocks is None else (list(map(BlockId, blocks)),)
    return ScheduledRequest(RequestId(req_id), new, replaces, computed, tokens)


def moves_of(job: CopyJob) -> list[tuple[int, int, int]]:
    """(block, slot, position) of a job's only group."""
    (part,) = job.parts
    return list(zip(part.block_ids.tolist(), part.slots.tolist(), part.positions.tolist(), strict=True))


def slots_of(job: CopyJob) -> list[SlotId]:
    return [SlotId(slot) for _, slot, _ in moves_of(job)]
