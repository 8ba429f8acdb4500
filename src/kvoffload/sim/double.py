"""A tier below the host that does its work only when it is told to, and spoils what it fails at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.tiers.base import Outcome, StoredChunk, Tier, TierContext, TierJob, TierReport, TierStats, Verb
from kvoffload.types import LookupResult


class StepTier(Tier):
    """Holds copies of rows. Jobs read and write their buffers when `run` carries them out, not earlier."""

    options_type = object

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: dict[OffloadKey, bytes] = {}
        self.jobs: list[TierJob] = []
        self.refuses = False
        self.unsure = False
        self._overtaken: set[int] = set()
        self._reports: list[TierReport] = []

    @classmethod
    def open(cls, options: object, context: TierContext) -> StepTier:
        """Not by name: it is made by those who tell it what to do."""
        raise NotImplementedError

    def lookup(self, keys: Sequence[OffloadKey]) -> list[LookupResult]:
        """See Tier."""
        if self.unsure:
            return [LookupResult.RETRY] * len(keys)
        return [LookupResult.HIT if key in self.rows else LookupResult.MISS for key in keys]

    def submit(self, job: TierJob) -> bool:
        """See Tier."""
        if not self.refuses:
            self.jobs.append(job)
        return not self.refuses

    def run(self, index: int, fail_mask: int = 0) -> bool:
        """Carry out one job; bit i of the mask makes its i-th chunk fail. False if there is none."""
        if not self.jobs:
            return False
        job = self.jobs.pop(index % len(self.jobs))
        outcomes = {}
        for number, entry in enumerate(job.entries):
            if fail_mask >> number & 1:
                outcomes[entry.key] = Outcome.FAILED
                if job.verb is Verb.LOAD:
                    entry.buffer[:] = b"\xdd" * entry.buffer.nbytes
            elif job.verb is Verb.LOAD:
                outcomes[entry.key] = self._load(entry.key, entry.buffer)
            else:
                outcomes[entry.key] = Outcome.DONE
                if job.job_id not in self._overtaken:
                    self.rows[entry.key] = bytes(entry.buffer)
        moved = sum(e.buffer.nbytes for e in job.entries if outcomes[e.key] is Outcome.DONE)
        self._reports.append(TierReport(job.job_id, job.verb, outcomes, 0.01, moved))
        return True

    def poll(self) -> list[TierReport]:
        """See Tier."""
        reports, self._reports = self._reports, []
        return reports

    def touch(self, keys: Sequence[OffloadKey]) -> None:
        """See Tier."""

    def scan(self) -> Iterator[StoredChunk]:
        """See Tier."""
        return iter([StoredChunk(key, len(row), 0.0) for key, row in self.rows.items()])

    def stats(self) -> TierStats:
        """See Tier."""
        return TierStats(len(self.rows), sum(map(len, self.rows.values())), None, len(self.jobs), 0, {})

    def clear(self) -> bool:
        """See Tier."""
        self.rows.clear()
        self._overtaken |= {job.job_id for job in self.jobs if job.verb is Verb.STORE}
        return True

    def drain(self, timeout_s: float) -> bool:
        """See Tier. Whoever waits must `run`."""
        del timeout_s
        return not self.jobs

    def shutdown(self) -> None:
        """See Tier."""
        self.jobs.clear()

    def _load(self, key: OffloadKey, buffer: memoryview) -> Outcome:
        row = self.rows.get(key)
        if row is None:
            return Outcome.MISSING
        buffer[:] = row
        return Outcome.DONE
