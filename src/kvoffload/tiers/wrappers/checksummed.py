"""Checksums for a tier that has none of its own: every row is sealed (see sealing.py) and loads must show their seal.

It costs one copy, made on the thread that drives the tier: one with threads of its own and much to move had better check
there. Make the tier inside for rows that are `SEAL_BYTES` longer.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import ClassVar

from kvoffload.tiers.base import Outcome, Tier, TierEntry, TierJob, TierReport, Verb
from kvoffload.tiers.wrappers.holding import HoldingTier, Pause
from kvoffload.tiers.wrappers.sealing import row_for, unseal


@dataclass(frozen=True, slots=True)
class ChecksumConfig:
    """Bounds."""

    max_held_jobs: int = 64
    """Jobs that were taken and have not ended, each with a copy of its bytes. More are refused. A throttled tier around
    this one bounds the bytes."""


@dataclass(slots=True, eq=False)
class _Sealed:
    job: TierJob
    rows: tuple[TierEntry, ...]
    """What the tier inside has of it."""
    report: TierReport | None = None
    """Held until what was bad is deleted inside."""
    bad: tuple[TierEntry, ...] = ()


class ChecksummedTier(HoldingTier):
    """What does not match its digest is CORRUPT, deleted inside, and never gets into a caller's buffer."""

    adds: ClassVar[str] = "checksummed"

    def __init__(self, inner: Tier, config: ChecksumConfig, pause: Pause = time.sleep) -> None:
        super().__init__(inner, config.max_held_jobs, pause)
        self._inside: dict[int, _Sealed] = {}
        self._undeleted: list[_Sealed] = []
        self._is_full = False
        self._counters.update({"checksum_errors": 0})

    def _start(self, job: TierJob) -> bool:
        # A refusal wastes the copy: not again before something has ended inside.
        if self._is_full and self._inside:
            return False
        rows = job.entries if job.verb is Verb.DELETE else tuple(self._seal(job.verb, e) for e in job.entries)
        inner_id = next(self._ids)
        self._is_full = not self.inner.submit(TierJob(inner_id, job.verb, rows))
        if not self._is_full:
            self._inside[inner_id] = _Sealed(job, rows)
        return not self._is_full

    def _seal(self, verb: Verb, entry: TierEntry) -> TierEntry:
        """The row that the tier inside gets. Another way to seal overrides this and `_unseal`."""
        return row_for(verb, entry)

    def _unseal(self, row: TierEntry, buffer: memoryview) -> bool:
        return unseal(row, buffer)

    def _advance(self) -> None:
        for report in self.inner.poll():
            self._is_full = False
            sealed = self._inside.pop(report.job_id)
            if sealed.report is not None:
                self._end(sealed.report)
                continue
            sealed.report = self._checked(sealed, report)
            self._undeleted.append(sealed)
        waiting, self._undeleted = self._undeleted, []
        for sealed in waiting:
            assert sealed.report is not None
            if self._closed or not sealed.bad:
                self._end(sealed.report)
                continue
            inner_id = next(self._ids)
            if self.inner.submit(TierJob(inner_id, Verb.DELETE, sealed.bad)):
                self._inside[inner_id] = sealed
            else:
                self._undeleted.append(sealed)

    def _checked(self, sealed: _Sealed, report: TierReport) -> TierReport:
        job, outcomes = sealed.job, dict(report.outcomes)
        done_bytes = done_inner_bytes = 0
        for entry, row in zip(job.entries, sealed.rows, strict=True):
            if outcomes[entry.key] is not Outcome.DONE:
                continue
            if job.verb is Verb.LOAD and not self._unseal(row, entry.buffer):
                outcomes[entry.key] = Outcome.CORRUPT
                sealed.bad += (TierEntry(entry.key, memoryview(b"")),)
                continue
            done_bytes += entry.buffer.nbytes
            done_inner_bytes += row.buffer.nbytes
        # Of a store the tier inside does not say which chunks it moved: without the seals, in proportion.
        share = 1.0 if job.verb is Verb.LOAD else report.moved_bytes / max(1, done_inner_bytes)
        self._counters["checksum_errors"] += len(sealed.bad)
        return TierReport(job.job_id, job.verb, outcomes, report.busy_s, round(done_bytes * share))
