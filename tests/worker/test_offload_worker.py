"""The worker's thread: order, flush, failures, shutdown. Waits for events, never for a length of time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from kvoffload.messages import CopyJob, GroupCopies, JobOutcome
from kvoffload.types import Direction, JobId, RequestId
from kvoffload.worker.copier import Copier
from kvoffload.worker.worker import OffloadWorker, all_chunks, report_of

LONG_S = 30.0
"""Longer than any wait of a test that passes."""
SHORT_S = 0.02
"""For waits that must time out."""


def job(number: int, direction: Direction = Direction.STORE, slots: tuple[int, ...] = (1, 1, 2)) -> CopyJob:
    slot_array = np.array(slots, dtype=np.int64)
    part = GroupCopies(0, np.arange(len(slots)), slot_array, np.zeros_like(slot_array))
    return CopyJob(JobId(number), RequestId(f"r{number}"), direction, (part,))


def load(number: int) -> CopyJob:
    return job(number, Direction.LOAD)


class GatedCopier(Copier):
    """Starts and ends each copy when the test says so."""

    def __init__(self) -> None:
        self.order: list[int] = []
        self.threads: set[str] = set()
        self.started = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)
        self.on_copy: Callable[[CopyJob], None] = lambda job: None

    def copy(self, job: CopyJob) -> JobOutcome:
        self.order.append(job.job_id)
        self.threads.add(threading.current_thread().name)
        self.started.release()
        assert self.gate.acquire(timeout=LONG_S)
        self.on_copy(job)
        return JobOutcome(workers=1, copied_bytes=8)

    def open(self, copies: int = 1000) -> None:
        self.gate.release(copies)

    def wait_started(self) -> None:
        assert self.started.acquire(timeout=LONG_S)


@pytest.fixture
def copier() -> GatedCopier:
    return GatedCopier()


@pytest.fixture
def worker(copier: GatedCopier, caplog: pytest.LogCaptureFixture) -> Iterator[OffloadWorker]:
    caplog.set_level(logging.CRITICAL)
    worker = OffloadWorker(copier, flush_timeout_s=LONG_S)
    yield worker
    copier.open()
    worker.shutdown()


def wait_until(holds: Callable[[], object]) -> None:
    """Wait for another thread to change something that it does not announce."""
    deadline = time.monotonic() + LONG_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def poll_all(worker: OffloadWorker, count: int) -> dict[int, JobOutcome]:
    """Wait until so many jobs have ended."""
    found: dict[int, JobOutcome] = {}
    with worker._wake:
        assert worker._wake.wait_for(lambda: len(worker._ended) >= count, LONG_S)
    for ended, outcome in worker.poll():
        found[ended.job_id] = outcome
    assert len(found) == count
    return found


def test_every_job_is_reported_once_with_its_outcome(worker: OffloadWorker, copier: GatedCopier) -> None:
    copier.open()
    worker.submit([job(1), load(2)])
    assert poll_all(worker, 2) == {number: JobOutcome(workers=1, copied_bytes=8) for number in (1, 2)}
    assert worker.poll() == []


def test_copies_never_run_on_the_engines_thread(worker: OffloadWorker, copier: GatedCopier) -> None:
    copier.open()
    worker.submit([job(1)])
    worker.flush([JobId(1)])
    assert copier.threads == {"kvoffload-copier"}


def test_loads_overtake_stores_that_wait(worker: OffloadWorker, copier: GatedCopier) -> None:
    worker.submit([job(1), job(2), job(3)])
    copier.wait_started()
    worker.submit([load(4), load(5)])
    copier.open()
    poll_all(worker, 5)
    assert copier.order == [1, 4, 5, 2, 3]


def test_flush_overtakes_everything_that_waits(worker: OffloadWorker, copier: GatedCopier) -> None:
    worker.submit([job(1), job(2), job(3)])
    copier.wait_started()
    worker.submit([load(4)])
    thread = threading.Thread(target=worker.flush, args=([JobId(3)],))
    thread.start()
    wait_until(lambda: worker._urgent)
    copier.open()
    thread.join(LONG_S)
    poll_all(worker, 4)
    assert copier.order == [1, 3, 4, 2]


def test_flush_returns_only_when_the_jobs_are_done(worker: OffloadWorker, copier: GatedCopier) -> None:
    worker.submit([job(1), job(2)])
    copier.wait_started()
    flushed = threading.Event()

    def flush() -> None:
        worker.flush([JobId(1), JobId(2)])
        flushed.set()

    thread = threading.Thread(target=flush)
    thread.start()
    copier.open(1)
    copier.wait_started()  # the second runs, so the first is done
    assert not flushed.is_set()
    copier.open(1)
    assert flushed.wait(LONG_S)
    thread.join(LONG_S)
    assert poll_all(worker, 2).keys() == {1, 2}


def test_flush_of_unknown_or_ended_jobs_returns_at_once(worker: OffloadWorker, copier: GatedCopier) -> None:
    copier.open()
    worker.submit([job(1)])
    worker.flush([JobId(1)])
    worker.flush([JobId(1), JobId(99)])
    worker.flush([])


@pytest.fixture
def hasty(copier: GatedCopier, caplog: pytest.LogCaptureFixture) -> Iterator[OffloadWorker]:
    """A worker whose flush gives up soon."""
    caplog.set_level(logging.CRITICAL)
    worker = OffloadWorker(copier, flush_timeout_s=SHORT_S)
    yield worker
    copier.open()
    worker.shutdown()
    worker._thread.join(LONG_S)


def test_a_store_that_is_not_flushed_in_time_is_void_even_if_its_copy_succeeds(
    hasty: OffloadWorker, copier: GatedCopier
) -> None:
    worker = hasty
    worker.submit([job(1), job(2), job(3)])
    copier.wait_started()
    worker.flush([JobId(1), JobId(2)])
    copier.open()
    outcomes = poll_all(worker, 3)
    assert outcomes[1].failed == outcomes[2].failed == {(0, 1), (0, 2)}
    assert outcomes[3].failed == frozenset()


def test_a_copy_that_is_stuck_is_waited_for_once(hasty: OffloadWorker, copier: GatedCopier) -> None:
    worker = hasty
    worker.submit([job(1)])
    copier.wait_started()
    worker.flush([JobId(1)])
    worker._flush_timeout_s = LONG_S
    flushed = threading.Event()

    def flush_again() -> None:
        worker.flush([JobId(1)])
        flushed.set()

    threading.Thread(target=flush_again, daemon=True).start()
    assert flushed.wait(LONG_S / 2), "every step that touches the blocks of a stuck store would stall"
    copier.open()
    assert poll_all(worker, 1)[1].failed == {(0, 1), (0, 2)}


def test_a_void_mark_does_not_outlive_its_job(hasty: OffloadWorker, copier: GatedCopier) -> None:
    worker = hasty
    worker.submit([job(1)])
    copier.wait_started()
    worker.flush([JobId(1)])
    copier.open()
    poll_all(worker, 1)
    assert not worker._void


def test_a_copier_that_raises_fails_its_job_only(worker: OffloadWorker, copier: GatedCopier) -> None:
    def break_one(job: CopyJob) -> None:
        if job.job_id == 2:
            raise RuntimeError("out of order")

    copier.on_copy = break_one
    copier.open()
    worker.submit([job(1), job(2), load(3)])
    outcomes = poll_all(worker, 3)
    assert outcomes[2] == JobOutcome(workers=1, failed=frozenset({(0, 1), (0, 2)}))
    assert outcomes[1].failed == outcomes[3].failed == frozenset()


def test_shutdown_may_be_called_again_and_ends_the_thread(worker: OffloadWorker, copier: GatedCopier) -> None:
    copier.open()
    worker.shutdown()
    worker.shutdown()
    assert not worker._thread.is_alive()


def test_shutdown_lets_the_running_copy_end_and_drops_the_queue(
    worker: OffloadWorker, copier: GatedCopier
) -> None:
    worker.submit([job(1), job(2), load(3)])
    copier.wait_started()
    first = copier.order[0]
    closer = threading.Thread(target=worker.shutdown)
    closer.start()
    wait_until(lambda: worker._closed)
    copier.open()
    closer.join(LONG_S)
    assert [ended.job_id for ended, _ in worker.poll()] == [first]
    assert copier.order == [first]


def test_shutdown_frees_those_who_wait_for_what_will_never_be_done(
    worker: OffloadWorker, copier: GatedCopier
) -> None:
    worker.submit([job(1), job(2)])
    copier.wait_started()
    flushed = threading.Event()

    def flush() -> None:
        worker.flush([JobId(2)])
        flushed.set()

    threading.Thread(target=flush, daemon=True).start()
    wait_until(lambda: worker._urgent)
    closer = threading.Thread(target=worker.shutdown)
    closer.start()
    assert flushed.wait(LONG_S / 2), "flush would hang on a job that was dropped"
    copier.open()
    closer.join(LONG_S)


def test_after_a_shutdown_nothing_is_taken_and_nobody_waits(
    worker: OffloadWorker, copier: GatedCopier
) -> None:
    worker.shutdown()
    worker.submit([job(1)])
    flushed = threading.Event()

    def flush() -> None:
        worker.flush([JobId(1)])
        flushed.set()

    threading.Thread(target=flush, daemon=True).start()
    assert flushed.wait(LONG_S / 2), "flush would hang after a shutdown"
    assert copier.order == []


def test_all_chunks_names_each_chunk_of_each_group_once() -> None:
    parts = (
        GroupCopies(0, np.arange(3), np.array([4, 4, 5]), np.array([0, 1, 0])),
        GroupCopies(1, np.arange(1), np.array([4]), np.array([0])),
    )
    one = CopyJob(JobId(1), RequestId("r"), Direction.STORE, parts)
    assert all_chunks(one) == {(0, 4), (0, 5), (1, 4)}
    outcome = JobOutcome(workers=1)
    assert dict(report_of([(one, outcome)]).outcomes) == {1: outcome}
