"""The shipped suite for parts of rows: a memory tier that does it right passes, and each one with a defect fails."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tier_stacks import BIG_BYTES

from kvoffload.clock import ManualClock
from kvoffload.layout.partial import RowShape
from kvoffload.testing.ranged_load_tests import RangedLoadTests
from kvoffload.tiers.base import Outcome, Tier, TierEntry, TierJob, TierReport, Verb
from kvoffload.tiers.memory import MemoryMedium, MemoryTier, MemoryTierConfig

ALL_TESTS = [name for name in vars(RangedLoadTests) if name.startswith("test_")]


class Ranged(MemoryTier):
    """Copies the ranges that its engine needs, and no other byte."""

    def __init__(self, medium: MemoryMedium, shape: RowShape) -> None:
        clock = ManualClock()
        config = MemoryTierConfig(max_bytes=medium.max_bytes, latency_s=0.01)
        super().__init__(config, clock, medium=medium, pause=clock.advance)
        self.ranges = shape.ranges

    def _run(self, pending) -> TierReport:
        job = pending.job
        if self.ranges is None or job.verb is Verb.DELETE:
            return super()._run(pending)
        if job.verb is Verb.STORE:
            outcomes = {entry.key: Outcome.REJECTED for entry in job.entries}
            return TierReport(job.job_id, job.verb, outcomes, 0.0, 0)
        rows = [TierEntry(entry.key, memoryview(bytearray(entry.buffer.nbytes))) for entry in job.entries]
        whole = TierJob(job.job_id, job.verb, tuple(rows))
        report = super()._run(type(pending)(whole, pending.due_s, pending.generation))
        moved = 0
        for entry, row in zip(job.entries, rows, strict=True):
            if report.outcomes[entry.key] is Outcome.DONE:
                moved += self.copy(entry.buffer, row.buffer)
        return TierReport(job.job_id, job.verb, report.outcomes, 0.0, moved)

    def copy(self, target: memoryview, source: memoryview) -> int:
        for start, length in self.ranges:
            target[start : start + length] = source[start : start + length]
        return sum(length for _, length in self.ranges)


class LeavesTheLastByteOut(Ranged):
    def copy(self, target: memoryview, source: memoryview) -> int:
        start, length = self.ranges[-1]
        last = bytes(target[start + length - 1 : start + length])
        moved = super().copy(target, source)
        target[start + length - 1 : start + length] = last
        return moved


class ClearsWhatIsBetween(Ranged):
    def copy(self, target: memoryview, source: memoryview) -> int:
        start, length = self.ranges[-1]
        moved = super().copy(target, source)
        rest = len(target) - start - length
        target[start + length :] = bytes(rest)
        return moved


class PacksTheRangesTogether(Ranged):
    def copy(self, target: memoryview, source: memoryview) -> int:
        at = 0
        for start, length in self.ranges:
            target[at : at + length] = source[start : start + length]
            at += length
        return at


class ReadsAll(Ranged):
    """Right, and no better than a tier that claims nothing."""

    def copy(self, target: memoryview, source: memoryview) -> int:
        target[:] = source
        return len(source)


class StoresWhatItHas(Ranged):
    def _run(self, pending) -> TierReport:
        is_store = pending.job.verb is Verb.STORE
        return MemoryTier._run(self, pending) if is_store else super()._run(pending)


PARTS, LESS, STORES = ALL_TESTS
FOUND_BY = {
    LeavesTheLastByteOut: PARTS,
    ClearsWhatIsBetween: PARTS,
    PacksTheRangesTogether: PARTS,
    ReadsAll: LESS,
    StoresWhatItHas: STORES,
}


def suite_of(kind: type[Ranged]) -> RangedLoadTests:
    class Suite(RangedLoadTests):
        patience_s = 10.0

        def settle(self, tier: Tier) -> None:
            tier.drain(0.02)

        def make_shaped(self, shapes: Sequence[RowShape], beside: Tier | None = None) -> Tier:
            medium = MemoryMedium(BIG_BYTES) if beside is None else beside.medium
            return kind(medium, shapes[0])

    return Suite()


@pytest.mark.parametrize("name", ALL_TESTS)
def test_a_tier_that_does_it_right_passes(name: str) -> None:
    getattr(suite_of(Ranged), name)()


@pytest.mark.parametrize("kind", FOUND_BY, ids=lambda kind: kind.__name__)
def test_a_defect_of_ranged_loads_is_found(kind: type[Ranged]) -> None:
    with pytest.raises(AssertionError):
        getattr(suite_of(kind), FOUND_BY[kind])()
