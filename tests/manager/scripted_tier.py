"""A tier that does what a test tells it to: every answer and every report comes when the test says so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.tiers.base import Outcome, StoredChunk, Tier, TierContext, TierJob, TierReport, TierStats, Verb
from kvoffload.types import LookupResult


class ScriptedTier(Tier):
    options_type = object

    def __init__(self, name: str = "disk") -> None:
        self.name = name
        self.has: set[OffloadKey] = set()
        self.unsure: set[OffloadKey] = set()
        self.refuses = False
        self.jobs: dict[int, TierJob] = {}
        self.lookups = 0
        self.cleared = 0
        self.other_namespaces = 0
        self._reports: list[TierReport] = []

    @classmethod
    def open(cls, options: object, context: TierContext) -> ScriptedTier:
        raise AssertionError

    def lookup(self, keys: Sequence[OffloadKey]) -> list[LookupResult]:
        self.lookups += 1
        answers = []
        for key in keys:
            known = LookupResult.HIT if key in self.has else LookupResult.MISS
            answers.append(LookupResult.RETRY if key in self.unsure else known)
        return answers

    def submit(self, job: TierJob) -> bool:
        if self.refuses:
            return False
        assert job.job_id not in self.jobs
        self.jobs[job.job_id] = job
        return True

    def finish(self, verb: Verb, outcomes: Mapping[OffloadKey, Outcome] | Outcome = Outcome.DONE) -> TierJob:
        """End the oldest job of a verb; a store that is DONE is there from now on."""
        job = next(job for job in self.jobs.values() if job.verb is verb)
        del self.jobs[job.job_id]
        ends = {
            entry.key: outcomes if isinstance(outcomes, Outcome) else outcomes.get(entry.key, Outcome.DONE)
            for entry in job.entries
        }
        if verb is Verb.STORE:
            self.has.update(key for key, outcome in ends.items() if outcome is Outcome.DONE)
        moved = sum(entry.buffer.nbytes for entry in job.entries if ends[entry.key] is Outcome.DONE)
        self._reports.append(TierReport(job.job_id, verb, ends, 0.01, moved))
        return job

    def pending(self, verb: Verb) -> list[TierJob]:
        return [job for job in self.jobs.values() if job.verb is verb]

    def poll(self) -> list[TierReport]:
        reports, self._reports = self._reports, []
        return reports

    def touch(self, keys: Sequence[OffloadKey]) -> None:
        pass

    def scan(self) -> Iterator[StoredChunk]:
        return iter(StoredChunk(key, 1, 0.0) for key in self.has)

    def stats(self) -> TierStats:
        return TierStats(
            len(self.has), 0, None, len(self.jobs), 0, {"lookups": self.lookups}, self.other_namespaces
        )

    def clear(self) -> bool:
        self.cleared += 1
        self.has.clear()
        return True

    def drain(self, timeout_s: float) -> bool:
        return not self.jobs

    def shutdown(self) -> None:
        pass
