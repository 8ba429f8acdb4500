"""Jobs of a tier: bounded, loads before stores, each reported once, whatever the disk's speed."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvoffload.clock import ManualClock, MonotonicClock
from kvoffload.tiers.base import Outcome, TierEntry, TierJob, Verb
from kvoffload.tiers.counters import Counters
from kvoffload.tiers.executor import ExecutorLimits, JobExecutor, Slice, SliceEnd, Ticket, Turnstile

sys.path.append(str(Path(__file__).parent / "fs"))
from fs_support import make_keys, make_rows, wait_until

TICKET = Ticket(0, 0.0)


def make_job(number: int, verb: Verb = Verb.STORE, count: int = 1, size: int = 4096) -> TierJob:
    rows = make_rows(count, size) if size else [memoryview(b"")] * count
    keys = make_keys(count, f"{number} ")
    return TierJob(number, verb, tuple(TierEntry(key, row) for key, row in zip(keys, rows, strict=True)))


def done(part: Slice) -> SliceEnd:
    size = sum(entry.buffer.nbytes for entry in part.entries)
    return SliceEnd({entry.key: Outcome.DONE for entry in part.entries}, size)


@contextmanager
def executor(run: Callable[[Slice], SliceEnd] = done, **limits: Any) -> Iterator[JobExecutor]:
    bounds = ExecutorLimits(**{"threads": 4, "max_jobs": 100, "max_bytes": 10**9, **limits})
    made = JobExecutor(run, MonotonicClock(), Counters(), bounds, "test")
    try:
        yield made
    finally:
        made.stop(5)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(list(Verb)), st.integers(0, 40), st.sampled_from([0, 4096, 10**5])),
        max_size=20,
    ),
    st.integers(2, 6),
)
def test_each_job_is_reported_exactly_once_with_an_outcome_for_every_key(
    shapes: list[tuple[Verb, int, int]], threads: int
) -> None:
    with executor(threads=threads) as jobs:
        made = {n: make_job(n, *shape) for n, shape in enumerate(shapes)}
        for job in made.values():
            assert jobs.submit(job, TICKET)
        assert jobs.drain(10)
        reports = {report.job_id: report for report in jobs.poll()}
        assert reports.keys() == made.keys()
        for number, report in reports.items():
            assert list(report.outcomes) == [entry.key for entry in made[number].entries]
            assert report.moved_bytes == made[number].size_bytes
            assert report.verb is made[number].verb
            assert report.busy_s >= 0
        assert jobs.poll() == []
        assert jobs.pending() == (0, 0)


def test_loads_go_before_stores_that_wait() -> None:
    order: list[int] = []
    go_on = threading.Event()

    def run(part: Slice) -> SliceEnd:
        go_on.wait(10)
        order.append(part.job.job_id)
        return done(part)

    with executor(run, threads=2) as jobs:
        for number in range(6):
            jobs.submit(make_job(number), TICKET)
        time.sleep(0.02)
        jobs.submit(make_job(100, Verb.LOAD), TICKET)
        jobs.submit(make_job(101, Verb.LOAD), TICKET)
        go_on.set()
        assert jobs.drain(10)
    # One store had begun; stores may not have all the threads.
    assert set(order[:3]) >= {100, 101}


def test_a_slow_tier_refuses_what_is_too_much_serves_loads_and_recovers() -> None:
    slow, now = threading.Event(), threading.Event()

    def run(part: Slice) -> SliceEnd:
        if part.job.verb is Verb.STORE and not slow.is_set():
            now.wait(10)
        return done(part)

    with executor(run, max_jobs=10) as jobs:
        taken = [jobs.submit(make_job(number), TICKET) for number in range(200)]
        assert taken.count(True) == 10
        assert jobs.pending()[0] == 10
        # Loads have a bound of their own and threads that stores cannot take.
        assert jobs.submit(make_job(1000, Verb.LOAD, 8), TICKET)
        reports: list = []
        wait_until(lambda: reports.extend(jobs.poll()) or [r.job_id for r in reports] == [1000])
        slow.set()
        now.set()
        assert jobs.drain(10)
        assert len(jobs.poll()) == 10
        assert jobs.submit(make_job(2000), TICKET)


def test_the_bound_in_bytes_holds_and_one_job_alone_is_always_taken() -> None:
    go_on = threading.Event()

    def run(part: Slice) -> SliceEnd:
        go_on.wait(10)
        return done(part)

    with executor(run, max_bytes=10_000) as jobs:
        assert jobs.submit(make_job(1, count=10), TICKET)
        assert not jobs.submit(make_job(2, count=1), TICKET)
        assert jobs.submit(make_job(3, Verb.LOAD, count=1), TICKET)
        go_on.set()
        assert jobs.drain(10)
        assert jobs.submit(make_job(4, count=1), TICKET)


def test_a_job_of_many_chunks_is_carried_out_by_many_threads() -> None:
    threads: set[str] = set()
    meeting = threading.Barrier(4)

    def run(part: Slice) -> SliceEnd:
        if threading.current_thread().name not in threads:
            threads.add(threading.current_thread().name)
            meeting.wait(10)
        return done(part)

    with executor(run) as jobs:
        jobs.submit(make_job(1, Verb.LOAD, 64), TICKET)
        assert jobs.drain(10)
    assert len(threads) == 4


def test_a_tier_cuts_its_jobs_as_it_likes() -> None:
    seen: list[tuple[int, list[int]]] = []
    job = make_job(1, Verb.LOAD, 7)

    def run(part: Slice) -> SliceEnd:
        seen.append((part.first, [job.entries.index(entry) for entry in part.entries]))
        return done(part)

    cut = [job.entries[4:], job.entries[:1], job.entries[1:4]]
    with executor(run, cut=lambda _: cut) as jobs:
        assert jobs.submit(job, TICKET)
        assert jobs.drain(10)
        (report,) = jobs.poll()
    assert sorted(seen) == [(0, [4, 5, 6]), (3, [0]), (4, [1, 2, 3])]
    assert list(report.outcomes) == [entry.key for entry in job.entries]
    assert report.moved_bytes == job.size_bytes


def test_busy_time_does_not_count_waiting_in_the_queue() -> None:
    clock, go_on = ManualClock(), threading.Event()

    def run(part: Slice) -> SliceEnd:
        go_on.wait(10)
        clock.advance(1)
        return done(part)

    jobs = JobExecutor(run, clock, Counters(), ExecutorLimits(2, 100, 10**9), "test")
    jobs.submit(make_job(1), TICKET)
    jobs.submit(make_job(2), TICKET)
    go_on.set()
    assert jobs.drain(10)
    assert [report.busy_s for report in jobs.poll()] == [1, 1]
    jobs.stop(5)


def test_stopping_fails_what_has_not_begun_and_takes_nothing_more() -> None:
    go_on, inside = threading.Event(), threading.Event()

    def run(part: Slice) -> SliceEnd:
        inside.set()
        go_on.wait(10)
        return done(part)

    with executor(run, threads=2) as jobs:
        jobs.submit(make_job(1), TICKET)
        assert inside.wait(10)
        jobs.submit(make_job(2, count=3), TICKET)
        assert not jobs.stop(0.01)
        assert not jobs.submit(make_job(3), TICKET)
        (report,) = jobs.poll()
        assert report.job_id == 2
        assert set(report.outcomes.values()) == {Outcome.FAILED}
        go_on.set()
        assert jobs.drain(10)
        assert [r.job_id for r in jobs.poll()] == [1]


def test_a_bug_fails_its_slice_only() -> None:
    def run(part: Slice) -> SliceEnd:
        if part.job.job_id == 1:
            raise AssertionError("a bug")
        return done(part)

    with executor(run, threads=2) as jobs:
        for number in (1, 2, 1_000):
            jobs.submit(make_job(number), TICKET)
        assert jobs.drain(10)
        reports = {report.job_id: set(report.outcomes.values()) for report in jobs.poll()}
        assert reports == {1: {Outcome.FAILED}, 2: {Outcome.DONE}, 1_000: {Outcome.DONE}}


def test_slices_pass_the_turnstile_in_their_order() -> None:
    turnstile, passed = Turnstile(), []

    def go(first: int) -> None:
        turnstile.wait(first)
        passed.append(first)
        turnstile.pass_through(2)

    threads = [threading.Thread(target=go, args=(first,)) for first in (6, 4, 2, 0)]
    for thread in threads:
        thread.start()
        time.sleep(0.002)
    for thread in threads:
        thread.join(10)
    assert passed == [0, 2, 4, 6]
