"""The engine model can see what it claims to see: with a deliberate bug in the code it must fail."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

import pytest
from random_runs import SETUPS, RandomRun

from kvoffload.manager import completion
from kvoffload.manager.host_tier import HostTier
from kvoffload.manager.manager import OffloadManager
from kvoffload.manager.request import RequestState
from kvoffload.manager.storing import Storing
from kvoffload.sim.copies import StepWorker
from kvoffload.transfer.ledger import Job, JobState, Ledger

Patch = pytest.MonkeyPatch
SEEDS_TRIED = 80


def flush_is_not_honoured(patch: Patch) -> None:
    patch.setattr(StepWorker, "deaf_to_flush", True, raising=False)
    original = StepWorker.__init__

    def deaf(self: StepWorker, *args: object) -> None:
        original(self, *args)  # type: ignore[arg-type]
        self.deaf_to_flush = True

    patch.setattr(StepWorker, "__init__", deaf)


def blocks_that_requests_get_are_not_fenced(patch: Patch) -> None:
    patch.setattr(Ledger, "readers_of", lambda self, blocks: set())


def blocks_of_a_preempted_request_are_kept(patch: Patch) -> None:
    original = OffloadManager._take_blocks

    def take(self, scheduled) -> None:
        state = self._requests.get(scheduled.req_id)
        resumes = scheduled.replaces and state is not None and any(group.block_ids for group in state.groups)
        original(self, dataclasses.replace(scheduled, replaces=False) if resumes else scheduled)

    patch.setattr(OffloadManager, "_take_blocks", take)
    patch.setattr(RequestState, "clear_blocks", lambda self: None)


def a_chunk_is_published_although_a_worker_failed(patch: Patch) -> None:
    patch.setattr(completion, "_split", lambda job: (list(job.chunks), []))


def a_store_ends_with_the_first_worker(patch: Patch) -> None:
    def report(self, job_id, outcome) -> Job | None:
        job = self._jobs[job_id]
        job.outcome = job.outcome.merge(outcome)
        self._move(job, JobState.ENDED)
        del self._jobs[job_id]
        self._unfence(job)
        return job

    patch.setattr(Ledger, "report", report)


def one_block_too_many_is_stored(patch: Patch) -> None:
    original = Storing.offer
    patch.setattr(
        Storing, "offer", lambda self, state, written, now_s: original(self, state, written + 2, now_s)
    )


def pinned_chunks_are_evicted(patch: Patch) -> None:
    def make_room(self, needed, protected) -> list:
        missing = needed - len(self._free)
        victims = self._policy.evict(max(missing, 0), lambda key: False)
        self._free.extend(self._ready.pop(key) for key in victims)
        return victims

    patch.setattr(HostTier, "_make_room", make_room)


def slots_of_a_lost_store_are_used_again(patch: Patch) -> None:
    def forget(self, key, slot) -> None:
        if self._writing.get(key) == slot:
            del self._writing[key]
            self._free.append(slot)

    patch.setattr(HostTier, "forget_write", forget)


def a_late_store_comes_back_after_a_reset(patch: Patch) -> None:
    def commit(self, pairs) -> list:
        published = []
        for key, slot in pairs:
            self._writing.pop(key, None)
            if key in self._ready:
                self._free.append(slot)
            else:
                self._ready[key] = slot
                published.append(key)
        self._policy.insert(reversed(published))
        return published

    patch.setattr(HostTier, "commit_store", commit)


def kv_from_before_a_reset_is_stored(patch: Patch) -> None:
    patch.setattr(RequestState, "follow_reset", RequestState.restart_stores)


MUTANTS: tuple[tuple[Callable[[Patch], None], str], ...] = (
    (flush_is_not_honoured, "two workers"),
    (blocks_that_requests_get_are_not_fenced, "two groups"),
    (blocks_of_a_preempted_request_are_kept, "three blocks a chunk"),
    (a_chunk_is_published_although_a_worker_failed, "one block a chunk"),
    (a_store_ends_with_the_first_worker, "two workers"),
    (one_block_too_many_is_stored, "one block a chunk"),
    (pinned_chunks_are_evicted, "no prefix cache"),
    (slots_of_a_lost_store_are_used_again, "one block a chunk"),
    (a_late_store_comes_back_after_a_reset, "one block a chunk"),
    (kv_from_before_a_reset_is_stored, "answers too"),
)


@pytest.mark.parametrize(("plant", "setup"), MUTANTS, ids=lambda value: getattr(value, "__name__", value))
def test_the_engine_model_notices_that(
    plant: Callable[[Patch], None], setup: str, monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    plant(monkeypatch)
    # Invariants that the manager checks by itself would hide whether the content is looked at.
    monkeypatch.setattr(OffloadManager, "check", lambda self: None)
    for seed in range(SEEDS_TRIED):
        try:
            RandomRun(SETUPS[setup], seed).run(150)
        except AssertionError:
            return
    pytest.fail(f"{SEEDS_TRIED} seeds saw nothing wrong")
