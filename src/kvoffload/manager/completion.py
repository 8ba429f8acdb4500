"""What follows from the end of a transfer: publish, unpin, drop, recompute. Called by the manager only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.manager.host_tier import HostTier
from kvoffload.manager.request import RequestState
from kvoffload.metrics import catalog as m
from kvoffload.metrics.recorder import Recorder
from kvoffload.transfer.ledger import ChunkMove, Job
from kvoffload.types import Direction, RequestId


class Completion:
    """Applies outcomes to the tiers and to the requests.

    Args:
        tiers: The host tier of each group.
        requests: The manager's requests; read, and their progress is set back after a failure.
        recorder: Where it counts.
        on_ready: Called with a store, a group and the keys of it that have just become ready.
    """

    def __init__(
        self,
        tiers: Sequence[HostTier],
        requests: Mapping[RequestId, RequestState],
        recorder: Recorder,
        on_ready: Callable[[Job, int, Sequence[OffloadKey]], None],
    ) -> None:
        self._tiers = tiers
        self._on_ready = on_ready
        self._requests = requests
        self._recorder = recorder

    def complete(self, job: Job) -> None:
        """All workers have reported the job."""
        good, bad = _split(job)
        if job.direction is Direction.STORE:
            self._complete_store(job, good, bad)
        else:
            self._complete_load(job, good, bad)

    def give_up(self, job: Job) -> None:
        """No worker reports the job any more. Its slots and blocks stay out of use until it is reported."""
        self._recorder.count(m.LOST_JOBS)
        for move in job.chunks:
            if job.direction is Direction.STORE:
                self._tiers[move.group].forget_write(move.key, move.slot)

    def _complete_store(self, job: Job, good: Sequence[ChunkMove], bad: Sequence[ChunkMove]) -> None:
        published = 0
        for index, tier in enumerate(self._tiers):
            ready = tier.commit_store([(move.key, move.slot) for move in good if move.group == index])
            published += len(ready)
            self._on_ready(job, index, ready)
            tier.abort_store([(move.key, move.slot) for move in bad if move.group == index])
        self._recorder.count(m.STORED_CHUNKS, published)
        self._recorder.count(m.STORED_BYTES, job.outcome.copied_bytes)
        self._recorder.count(m.STORE_FAILED_CHUNKS, len(bad))
        if published < len(good):
            self._recorder.count(m.LATE_JOBS)

    def _complete_load(self, job: Job, good: Sequence[ChunkMove], bad: Sequence[ChunkMove]) -> None:
        for index, tier in enumerate(self._tiers):
            tier.complete_load([move.slot for move in job.chunks if move.group == index])
            # A chunk that cannot be read is never offered again; it is stored anew when it was recomputed.
            tier.drop([move.key for move in bad if move.group == index])
        self._recorder.count(m.LOADED_CHUNKS, len(good))
        self._recorder.count(m.LOADED_BYTES, job.outcome.copied_bytes)
        self._recorder.count(m.LOAD_FAILED_CHUNKS, len(bad))
        state = self._requests.get(job.req_id)
        if state is None or job.job_id not in state.load_jobs:
            return
        state.load_jobs.remove(job.job_id)
        if bad:
            several = len(state.groups) > 1
            state.restart_stores(0 if several else min(move.chunk_index for move in bad))
            # It asks again, but still counts the blocks of the load that failed as needed: it would not find room.
            state.computes_all = state.computes_all or several


def _split(job: Job) -> tuple[list[ChunkMove], list[ChunkMove]]:
    failed = job.outcome.failed
    good = [move for move in job.chunks if (move.group, move.slot) not in failed]
    bad = [move for move in job.chunks if (move.group, move.slot) in failed]
    return good, bad
