"""Messages are plain data with shapes that fit, and time moves only forward."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest

from kvoffload.clock import ManualClock, MonotonicClock
from kvoffload.messages import CopyJob, GroupCopies, JobOutcome, StepMessage, WorkerReport
from kvoffload.types import Direction, JobId, RequestId


def test_arrays_of_one_part_have_one_length() -> None:
    three, two = np.arange(3), np.arange(2)
    for arrays in ((two, three, three), (three, two, three), (three, three, two)):
        with pytest.raises(AssertionError):
            GroupCopies(0, *arrays)


def test_messages_survive_the_way_between_processes() -> None:
    part = GroupCopies(1, np.arange(3), np.array([7, 7, 8]), np.array([0, 1, 0]))
    job = CopyJob(JobId(4), RequestId("r"), Direction.STORE, (part,))
    message = pickle.loads(pickle.dumps(StepMessage(stores=(job,), flush=(JobId(3),))))
    assert message.flush == (3,)
    (copied,) = message.stores
    assert (copied.job_id, copied.req_id, copied.direction) == (4, "r", Direction.STORE)
    for field in dataclasses.fields(GroupCopies):
        np.testing.assert_array_equal(getattr(copied.parts[0], field.name), getattr(part, field.name))
    report = WorkerReport({JobId(4): JobOutcome(1, frozenset({(1, 7)}), 10, 0.5)})
    assert pickle.loads(pickle.dumps(report)) == report


def test_messages_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        StepMessage().flush = (JobId(1),)  # type: ignore[misc]


def test_the_merge_of_empty_reports_is_empty() -> None:
    assert WorkerReport().merge(WorkerReport()) == WorkerReport()


def test_a_manual_clock_moves_when_told_and_never_back() -> None:
    clock = ManualClock(5.0)
    clock.advance(1.5)
    clock.advance(0)
    assert clock.now_s() == 6.5
    with pytest.raises(AssertionError):
        clock.advance(-0.1)
    assert clock.now_s() == 6.5


def test_the_machines_clock_never_goes_back() -> None:
    clock = MonotonicClock()
    times = [clock.now_s() for _ in range(100)]
    assert times == sorted(times)
