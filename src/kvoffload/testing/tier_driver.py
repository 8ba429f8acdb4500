"""Drives one tier in a test: submits jobs, keeps the books, and checks at every step what every tier owes its caller.

Every chunk's bytes can be made from its key, so wrong bytes are noticed anywhere. Every row stands between two guards,
and is watched after its report: a tier that writes beside or after is caught.
"""

from __future__ import annotations

import hashlib
import mmap
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from itertools import groupby

import numpy as np

from kvoffload.keys.offload_key import OffloadKey, group_index_of, make_offload_key
from kvoffload.layout.partial import ByteRanges, RowShape
from kvoffload.tiers.base import Outcome, Tier, TierEntry, TierJob, TierReport, Verb
from kvoffload.types import LookupResult

VALID_OUTCOMES: dict[Verb, frozenset[Outcome]] = {
    Verb.STORE: frozenset({Outcome.DONE, Outcome.REJECTED, Outcome.FAILED}),
    Verb.LOAD: frozenset({Outcome.DONE, Outcome.MISSING, Outcome.CORRUPT, Outcome.FAILED}),
    Verb.DELETE: frozenset({Outcome.DONE, Outcome.FAILED}),
}
"""What a job may report."""

_WATCHED_ROWS = 64
_GUARD = b"\xa5" * mmap.PAGESIZE
_EMPTY, _RELEASED = b"\x5a", b"\x3c"


def make_key(number: int, group: int = 0, hash_bytes: int = 32) -> OffloadKey:
    """A key like those of an engine: its hash is spread evenly."""
    return make_offload_key(hashlib.sha256(f"key {number}".encode()).digest()[:hash_bytes], group)


def make_keys(count: int, first: int = 0) -> list[OffloadKey]:
    """Keys of group 0."""
    return [make_key(first + number) for number in range(count)]


@lru_cache(maxsize=4096)
def payload_of(key: OffloadKey, size_bytes: int) -> bytes:
    """The bytes of a chunk: a function of its key, no two halves alike."""
    return hashlib.shake_128(b"payload" + key).digest(size_bytes)


def is_part_of(found: bytes, right: bytes, ranges: ByteRanges, before: bytes = _EMPTY) -> bool:
    """Whether a row holds the right bytes in these ranges, and elsewhere the right ones or what was there before."""
    row, truth = np.frombuffer(found, np.uint8), np.frombuffer(right, np.uint8)
    is_right = row == truth
    return bool(
        (is_right | (row == before[0])).all()
        and all(is_right[start : start + length].all() for start, length in ranges)
    )


def same(found: object, expected: object) -> None:
    """Assert equality, with a message that does not need pytest."""
    assert found == expected, f"{_brief(found)}, must be {_brief(expected)}"


def _brief(value: object) -> str:
    if not (isinstance(value, list) and value and all(isinstance(item, Enum) for item in value)):
        return repr(value)
    runs = [(item.value, len(list(run))) for item, run in groupby(value)]
    return ", ".join(f"{count} × {name}" for name, count in runs)


class Row:
    """A page-aligned row of host memory between two guards."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        pages = -(-size_bytes // mmap.PAGESIZE) + 2
        self._memory = memoryview(mmap.mmap(-1, pages * mmap.PAGESIZE))
        self._memory[: mmap.PAGESIZE] = self._memory[-mmap.PAGESIZE :] = _GUARD
        self.buffer = self._memory[mmap.PAGESIZE : mmap.PAGESIZE + size_bytes]
        self.fill(_EMPTY)

    def fill(self, pattern: bytes) -> None:
        """Overwrite the row with one repeated byte, or with a payload."""
        self.buffer[:] = pattern * (self.size_bytes // len(pattern))

    def check_guards(self) -> None:
        """Nobody wrote before or behind the row."""
        # As bytes: views are compared one by one.
        before, behind = bytes(self._memory[: mmap.PAGESIZE]), bytes(self._memory[-mmap.PAGESIZE :])
        assert before == behind == _GUARD, "the tier wrote outside the row"


@dataclass(slots=True, eq=False)
class Job:
    """A job that the tier has taken."""

    job_id: int
    verb: Verb
    keys: tuple[OffloadKey, ...]
    rows: tuple[Row, ...] = ()
    report: TierReport | None = None

    def outcomes(self) -> list[Outcome]:
        """In the order of the keys; the job must have been reported."""
        assert self.report is not None, f"job {self.job_id} was not reported"
        return [self.report.outcomes[key] for key in self.keys]


@dataclass(slots=True)
class TierDriver:
    """The caller of one tier."""

    tier: Tier
    payload_bytes: Sequence[int]
    """Per group."""
    settle: Callable[[Tier], object]
    """Lets the tier work for a moment."""
    patience_s: float
    """Of real time; what is not over by then never will be."""
    shapes: Sequence[RowShape] = ()
    """Per group, if the tier was made for an engine that needs parts of rows."""
    outstanding: dict[int, Job] = field(default_factory=dict)
    ended: list[Job] = field(default_factory=list)
    """Every job that was reported, in that order."""
    _next_id: int = 0
    _released: deque[Row] = field(default_factory=lambda: deque(maxlen=_WATCHED_ROWS))
    _counters: dict[str, int] = field(default_factory=dict)

    def size_of(self, key: OffloadKey) -> int:
        """Bytes of a chunk."""
        return self.payload_bytes[group_index_of(key)]

    def payload_of(self, key: OffloadKey) -> bytes:
        """What a load of this key must deliver."""
        return payload_of(key, self.size_of(key))

    # -- jobs ----------------------------------------------------------------------------------------------------

    def submit(self, verb: Verb, keys: Iterable[OffloadKey]) -> Job | None:
        """Hand a job in; None if the tier refuses it."""
        self._next_id += 1
        job = Job(self._next_id, verb, tuple(keys))
        if verb is not Verb.DELETE:
            job.rows = tuple(Row(self.size_of(key)) for key in job.keys)
        if verb is Verb.STORE:
            for key, row in zip(job.keys, job.rows, strict=True):
                row.fill(self.payload_of(key))
        buffers = [row.buffer for row in job.rows] or [memoryview(b"")] * len(job.keys)
        entries = tuple(TierEntry(key, buffer) for key, buffer in zip(job.keys, buffers, strict=True))
        # Before the call: a tier may have a report ready as soon as it has the job.
        self.outstanding[job.job_id] = job
        taken = self.tier.submit(TierJob(job.job_id, verb, entries))
        assert isinstance(taken, bool), taken
        if not taken:
            del self.outstanding[job.job_id]
        return job if taken else None

    def start(self, verb: Verb, keys: Iterable[OffloadKey]) -> Job:
        """Hand a job in, as often as it takes until the tier has room for it."""
        keys = tuple(keys)
        taken: list[Job] = []

        def is_taken() -> bool:
            job = self.submit(verb, keys)
            taken.extend([job] if job else [])
            return job is not None

        self.until(is_taken, "takes no job")
        return taken[0]

    def poll(self) -> None:
        """Take what has ended, and check it."""
        for report in self.tier.poll():
            job = self.outstanding.pop(report.job_id, None)
            assert job is not None, f"job {report.job_id} was reported twice, or never submitted: {report}"
            job.report = report
            self._check(job, report)
            self._release(job)
            self.ended.append(job)

    def finish(self) -> None:
        """Wait until every job was reported."""
        self.poll()
        self.until(lambda: not self.outstanding, "does not report everything that it took")

    def run(self, verb: Verb, keys: Iterable[OffloadKey]) -> list[Outcome]:
        """One job from its submission to its report: an outcome per key."""
        job = self.start(verb, keys)
        self.finish()
        return job.outcomes()

    def store(self, keys: Iterable[OffloadKey]) -> list[Outcome]:
        """Store the keys' payloads."""
        return self.run(Verb.STORE, keys)

    def load(self, keys: Iterable[OffloadKey]) -> list[Outcome]:
        """Load into fresh rows; the bytes of what is DONE have been checked."""
        return self.run(Verb.LOAD, keys)

    def delete(self, keys: Iterable[OffloadKey]) -> list[Outcome]:
        """Delete."""
        return self.run(Verb.DELETE, keys)

    def lookup(self, keys: Sequence[OffloadKey]) -> list[LookupResult]:
        """What the tier says in the end: asks again while it says RETRY."""
        answers: list[LookupResult] = []

        def is_sure() -> bool:
            answers[:] = self.tier.lookup(keys)
            assert len(answers) == len(keys), (answers, keys)
            return LookupResult.RETRY not in answers

        self.until(is_sure, "never knows what it has")
        return answers

    def until(self, condition: Callable[[], bool], complaint: str) -> None:
        """Let the tier work, and take its reports, until the condition holds."""
        deadline_s = time.monotonic() + self.patience_s
        while not condition():
            assert time.monotonic() < deadline_s, f"the tier {complaint} (waited {self.patience_s} s)"
            self.settle(self.tier)
            self.poll()

    # -- checks --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """What must hold at any time: counters only rise, and rows that were given back are left alone."""
        counters = dict(self.tier.stats().counters)
        fallen = {name: count for name, count in self._counters.items() if counters.get(name, 0) < count}
        assert not fallen, f"counters fell from {fallen} to {[counters.get(name) for name in fallen]}"
        self._counters = counters
        for row in self._released:
            assert bytes(row.buffer) == _RELEASED * row.size_bytes, "a row was written after its report"
            row.check_guards()

    def _check(self, job: Job, report: TierReport) -> None:
        what = f"{job.verb.value} {job.job_id} of {len(job.keys)} keys"
        assert report.verb is job.verb, f"{what}: reported as a {report.verb.value}"
        assert set(report.outcomes) == set(job.keys), f"{what}: not one outcome for each: {report.outcomes}"
        counts = Counter(outcome.value for outcome in report.outcomes.values())
        assert set(report.outcomes.values()) <= VALID_OUTCOMES[job.verb], f"{what}: {dict(counts)}"
        assert report.busy_s >= 0, f"{what}: busy for {report.busy_s} s"
        done = [key for key in job.keys if report.outcomes[key] is Outcome.DONE]
        most = 0 if job.verb is Verb.DELETE else sum(map(self.size_of, done))
        least = sum(map(self._needed_of, done)) if job.verb is Verb.LOAD else 0
        assert least <= report.moved_bytes <= most, (
            f"{what}: says that it moved {report.moved_bytes} bytes, it was {least} to {most} ({dict(counts)})"
        )
        for key, row in zip(job.keys, job.rows, strict=bool(job.rows)):
            row.check_guards()
            if job.verb is Verb.STORE or report.outcomes[key] is Outcome.DONE:
                assert self._is_right(job.verb, key, row), f"{what}: wrong bytes"

    def _needed_of(self, key: OffloadKey) -> int:
        return self.shapes[group_index_of(key)].needed_bytes if self.shapes else self.size_of(key)

    def _is_right(self, verb: Verb, key: OffloadKey, row: Row) -> bool:
        ranges = self.shapes[group_index_of(key)].ranges if self.shapes and verb is Verb.LOAD else None
        found, right = bytes(row.buffer), self.payload_of(key)
        return found == right if ranges is None else is_part_of(found, right, ranges)

    def _release(self, job: Job) -> None:
        for row in job.rows:
            row.fill(_RELEASED)
            self._released.append(row)
