"""The ledger: a job ends when all workers have reported it, its blocks are fenced until then, nothing is forgotten."""

from __future__ import annotations

import pytest

from kvoffload.messages import JobOutcome, WorkerReport
from kvoffload.transfer.ledger import Job, JobState, Ledger
from kvoffload.types import BlockId, Direction, JobId, RequestId


def make_job(
    ledger: Ledger, *blocks: int, direction: Direction = Direction.STORE, started_s: float = 0.0
) -> Job:
    job = Job(ledger.next_id(), RequestId("r"), direction, (), tuple(map(BlockId, blocks)), started_s)
    ledger.open(job)
    ledger.check()
    return job


def done(workers: int = 1, *failed: tuple[int, int]) -> JobOutcome:
    return JobOutcome(workers=workers, failed=frozenset(failed), copied_bytes=10, busy_s=0.5)


def readers(ledger: Ledger, *blocks: int) -> set[JobId]:
    return ledger.readers_of(set(map(BlockId, blocks)))


def test_a_job_ends_with_its_last_worker_and_carries_every_failure() -> None:
    ledger = Ledger(world_size=3)
    job = make_job(ledger, 1)
    assert ledger.report(job.job_id, done(1, (0, 4))) is None
    assert ledger.knows(job.job_id)
    ended = ledger.report(job.job_id, done(2, (0, 5)))
    assert ended is job
    assert job.state is JobState.ENDED
    assert job.outcome == JobOutcome(
        workers=3, failed=frozenset({(0, 4), (0, 5)}), copied_bytes=20, busy_s=1.0
    )
    assert not ledger.knows(job.job_id)
    assert len(ledger) == 0


def test_blocks_are_fenced_from_opening_to_the_last_report() -> None:
    ledger = Ledger(world_size=2)
    first, second = make_job(ledger, 1, 2), make_job(ledger, 2, 3)
    assert readers(ledger, 2, 9) == {first.job_id, second.job_id}
    ledger.report(first.job_id, done())
    assert readers(ledger, 1) == {first.job_id}
    ledger.report(first.job_id, done())
    assert readers(ledger, 1) == set()
    assert readers(ledger, 2) == {second.job_id}
    ledger.check()


def test_loads_fence_nothing() -> None:
    ledger = Ledger(world_size=1)
    make_job(ledger, 1, 2, direction=Direction.LOAD)
    assert readers(ledger, 1, 2) == set()


def test_a_block_that_stands_twice_in_a_job_is_fenced_once() -> None:
    ledger = Ledger(world_size=1)
    job = make_job(ledger, 1, 1)
    ledger.report(job.job_id, done())
    ledger.check()
    assert readers(ledger, 1) == set()


def test_overdue_jobs_are_lost_once_stay_fenced_and_may_still_end() -> None:
    ledger = Ledger(world_size=1)
    old, new = make_job(ledger, 1, started_s=5.0), make_job(ledger, 2, started_s=8.0)
    assert ledger.overdue(before_s=5.0) == []
    assert ledger.overdue(before_s=6.0) == [old]
    assert ledger.overdue(before_s=6.0) == []
    assert ledger.in_flight() == 1
    assert readers(ledger, 1) == {old.job_id}
    assert ledger.report(old.job_id, done()) is old
    assert readers(ledger, 1) == set()
    assert ledger.overdue(before_s=9.0) == [new]
    ledger.check()


def test_more_reports_than_workers_are_a_bug_that_is_seen() -> None:
    ledger = Ledger(world_size=2)
    job = make_job(ledger, 1)
    with pytest.raises(AssertionError):
        ledger.report(job.job_id, done(3))


def test_numbers_of_jobs_never_come_again() -> None:
    ledger = Ledger(world_size=1)
    ids = [make_job(ledger, 1).job_id for _ in range(3)]
    for job_id in ids:
        ledger.report(job_id, done())
    assert make_job(ledger, 1).job_id not in ids


def test_an_impossible_transition_raises() -> None:
    ledger = Ledger(world_size=1)
    job = make_job(ledger, 1)
    ledger.report(job.job_id, done())
    with pytest.raises(AssertionError, match="not a transition"):
        ledger._move(job, JobState.LOST)


def test_check_sees_a_fence_that_nobody_holds() -> None:
    ledger = Ledger(world_size=1)
    make_job(ledger, 1)
    ledger._readers.clear()
    with pytest.raises(AssertionError):
        ledger.check()


def test_merged_reports_speak_for_all_of_their_workers_in_any_order() -> None:
    one = WorkerReport({JobId(1): done(1, (0, 1)), JobId(2): done(1)})
    two = WorkerReport({JobId(1): done(1, (0, 2))})
    three = WorkerReport({JobId(1): done(1), JobId(3): done(1)})
    left, right = one.merge(two).merge(three), three.merge(two.merge(one))
    assert dict(left.outcomes) == dict(right.outcomes)
    assert left.outcomes[JobId(1)].workers == 3
    assert left.outcomes[JobId(1)].failed == {(0, 1), (0, 2)}
    assert set(left.outcomes) == {1, 2, 3}
    assert one.outcomes[JobId(1)].workers == 1, "merging mutates nothing"
