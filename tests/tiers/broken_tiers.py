"""Memory tiers with one defect each, and the test of the shipped suite that finds it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from kvoffload.clock import ManualClock
from kvoffload.keys.offload_key import OffloadKey
from kvoffload.tiers.base import Outcome, StoredChunk, TierEntry, TierJob, TierReport, TierStats, Verb
from kvoffload.tiers.memory import MemoryMedium, MemoryTier, MemoryTierConfig
from kvoffload.types import LookupResult


class Broken(MemoryTier):
    """A sound one to start from."""

    def __init__(self, medium: MemoryMedium, clock: ManualClock) -> None:
        config = MemoryTierConfig(max_bytes=medium.max_bytes, latency_s=0.01)
        super().__init__(config, clock, medium=medium, pause=clock.advance)
        self.medium: Any = medium


class LosesAReport(Broken):
    def poll(self) -> list[TierReport]:
        reports = super().poll()
        return [report for report in reports if report.job_id % 13]


class ReportsTwice(Broken):
    last: tuple[TierReport, ...] = ()

    def poll(self) -> list[TierReport]:
        reports = super().poll()
        again = [report for report in self.last if report.job_id % 13 == 0]
        self.last = tuple(reports)
        return [*again, *reports]


class ForgetsAKeyInItsReport(Broken):
    def poll(self) -> list[TierReport]:
        return [replace(r, outcomes=dict(list(r.outcomes.items())[:5])) for r in super().poll()]


class ReportsAnImpossibleOutcome(Broken):
    def poll(self) -> list[TierReport]:
        return [
            replace(r, outcomes=dict.fromkeys(r.outcomes, Outcome.MISSING)) if r.verb is Verb.DELETE else r
            for r in super().poll()
        ]


class ServesWhatWasDeleted(Broken):
    """It forgets the key, and a load still finds the bytes."""

    def __init__(self, medium: MemoryMedium, clock: ManualClock) -> None:
        super().__init__(medium, clock)
        self.old: dict[OffloadKey, bytes] = {}

    def _run(self, pending: Any) -> TierReport:
        job = pending.job
        report = super()._run(pending)
        outcomes = dict(report.outcomes)
        moved = report.moved_bytes
        for entry in job.entries:
            if job.verb is Verb.STORE:
                self.old[entry.key] = bytes(entry.buffer)
            elif job.verb is Verb.LOAD and outcomes[entry.key] is Outcome.MISSING and entry.key in self.old:
                entry.buffer[:] = self.old[entry.key]
                outcomes[entry.key] = Outcome.DONE
                moved += entry.buffer.nbytes
        return replace(report, outcomes=outcomes, moved_bytes=moved)


class ServesWrongBytes(Broken):
    """One bit, now and then."""

    loads = 0

    def _run(self, pending: Any) -> TierReport:
        report = super()._run(pending)
        self.loads += report.verb is Verb.LOAD
        for entry in pending.job.entries:
            if (
                report.verb is Verb.LOAD
                and report.outcomes[entry.key] is Outcome.DONE
                and self.loads % 2 == 0
            ):
                entry.buffer[-1] ^= 1
        return report


class IgnoresTheGroup(Broken):
    """Two groups with the same hash are one chunk."""

    def submit(self, job: TierJob) -> bool:
        entries = tuple(TierEntry(OffloadKey(e.key[:-4] + bytes(4)), e.buffer) for e in job.entries)
        self.renamed = {new.key: old.key for new, old in zip(entries, job.entries, strict=True)}
        return super().submit(replace(job, entries=entries))

    def lookup(self, keys: Sequence[OffloadKey]) -> list[LookupResult]:
        return super().lookup([OffloadKey(key[:-4] + bytes(4)) for key in keys])

    def poll(self) -> list[TierReport]:
        return [
            replace(r, outcomes={self.renamed.get(key, key): what for key, what in r.outcomes.items()})
            for r in super().poll()
        ]


class ExceedsItsCapacity(Broken):
    """The cap is twice what it says."""

    def __init__(self, medium: MemoryMedium, clock: ManualClock) -> None:
        super().__init__(medium, clock)
        self.said_bytes = medium.max_bytes
        medium.max_bytes *= 2

    def stats(self) -> TierStats:
        return replace(super().stats(), capacity_bytes=self.said_bytes)


class NeverEvicts(Broken):
    def _store(self, entry: TierEntry, kept: Any, generation: int) -> Outcome:
        return super()._store(entry, {key for key, _, _ in self.medium.items()}, generation)


class IgnoresUse(Broken):
    def touch(self, keys: Sequence[OffloadKey]) -> None:
        pass


class BlocksUnderPressure(Broken):
    def submit(self, job: TierJob) -> bool:
        if len(self._jobs) >= 32:
            threading.Event().wait(1.0)
        return super().submit(job)


class HasNoBound(Broken):
    def __init__(self, medium: MemoryMedium, clock: ManualClock) -> None:
        super().__init__(medium, clock)
        self._config = replace(self._config, max_pending_jobs=10**9)


class ComesBackAfterClear(Broken):
    def clear(self) -> bool:
        super().clear()
        self.medium.generation = 0
        return True


class SaysItIsClear(Broken):
    def clear(self) -> bool:
        for key, _, _ in self.medium.items()[:-1]:
            self.medium.remove(key)
        self.medium.generation += 1
        return True


class TakesJobsAfterShutdown(Broken):
    def shutdown(self) -> None:
        pass


class ForgetsItsJobsAtShutdown(Broken):
    def shutdown(self) -> None:
        self._jobs.clear()
        super().shutdown()


class SaysItIsDrained(Broken):
    def drain(self, timeout_s: float) -> bool:
        super().drain(timeout_s / 1e6)
        return True


class DrainsIntoNothing(Broken):
    def drain(self, timeout_s: float) -> bool:
        is_idle = super().drain(timeout_s)
        self._reports.clear()
        return is_idle


class HidesSomethingFromScan(Broken):
    def scan(self) -> Iterator[StoredChunk]:
        return (chunk for chunk in super().scan() if chunk.key[0] % 8)


class AnswersInAnotherOrder(Broken):
    def lookup(self, keys: Sequence[OffloadKey]) -> list[LookupResult]:
        return super().lookup(keys)[::-1]


class SaysHitToEverything(Broken):
    def lookup(self, keys: Sequence[OffloadKey]) -> list[LookupResult]:
        return [LookupResult.HIT] * len(keys)


class NeverKnows(Broken):
    def lookup(self, keys: Sequence[OffloadKey]) -> list[LookupResult]:
        return [LookupResult.RETRY] * len(keys)


class CountsBackwards(Broken):
    def stats(self) -> TierStats:
        stats = super().stats()
        return replace(stats, counters={"stored": stats.stored_chunks})


class WritesAfterTheReport(Broken):
    """A load's last byte comes late."""

    late: tuple[TierEntry, ...] = ()

    def poll(self) -> list[TierReport]:
        for entry in self.late:
            entry.buffer[-1] = 0
        self.late = ()
        return super().poll()

    def _run(self, pending: Any) -> TierReport:
        if pending.job.verb is Verb.LOAD:
            self.late += pending.job.entries
        return super()._run(pending)


class WritesIntoAStore(Broken):
    def _run(self, pending: Any) -> TierReport:
        report = super()._run(pending)
        for entry in pending.job.entries:
            if report.verb is Verb.STORE:
                entry.buffer[0] ^= 0xFF
        return report


class ForgetsEverythingAtARestart(Broken):
    """Forgets what it has when it is made anew."""

    def __init__(self, medium: MemoryMedium, clock: ManualClock) -> None:
        super().__init__(MemoryMedium(medium.max_bytes), clock)


class DropsBigBatches(Broken):
    def _store(self, entry: TierEntry, kept: Any, generation: int) -> Outcome:
        return Outcome.DONE if len(kept) > 20 else super()._store(entry, kept, generation)


class LosesWhatIsStoredTwice(Broken):
    def _store(self, entry: TierEntry, kept: Any, generation: int) -> Outcome:
        if entry.key in self.medium:
            self.medium.remove(entry.key)
            return Outcome.DONE
        return super()._store(entry, kept, generation)


class RefusesJobsWithoutKeys(Broken):
    def submit(self, job: TierJob) -> bool:
        return bool(job.entries) and super().submit(job)


class CountsWhatItDidNotMove(Broken):
    def poll(self) -> list[TierReport]:
        return [replace(r, moved_bytes=r.moved_bytes + 1) for r in super().poll()]


class FailsOnceInAWhile(Broken):
    runs = 0

    def _run(self, pending: Any) -> TierReport:
        self.runs += 1
        if self.runs % 25:
            return super()._run(pending)
        job = pending.job
        return TierReport(job.job_id, job.verb, {e.key: Outcome.FAILED for e in job.entries}, 0.0, 0)


FOUND_BY: dict[type[Broken], str] = {
    LosesAReport: "every_job_is_reported_exactly_once",
    ReportsTwice: "every_job_is_reported_exactly_once",
    ForgetsAKeyInItsReport: "a_batch_has_an_outcome_for_every_key",
    ReportsAnImpossibleOutcome: "unknown_keys_are_a_miss",
    ServesWhatWasDeleted: "what_was_deleted_is_gone_and_may_come_back",
    ServesWrongBytes: "what_was_stored_is_loaded_into_any_buffer",
    IgnoresTheGroup: "groups_and_lengths_of_hashes_are_told_apart",
    ExceedsItsCapacity: "the_capacity_is_never_exceeded",
    NeverEvicts: "the_capacity_is_never_exceeded",
    IgnoresUse: "use_protects_from_eviction",
    BlocksUnderPressure: "pressure_is_refused_and_never_waited_for",
    HasNoBound: "pressure_is_refused_and_never_waited_for",
    ComesBackAfterClear: "a_store_that_clear_overtakes_does_not_come_back",
    SaysItIsClear: "clear_forgets_everything_and_the_tier_goes_on",
    TakesJobsAfterShutdown: "shutdown_takes_no_more_and_reports_what_it_had",
    ForgetsItsJobsAtShutdown: "shutdown_takes_no_more_and_reports_what_it_had",
    SaysItIsDrained: "drained_means_that_one_poll_tells_everything",
    DrainsIntoNothing: "drained_means_that_one_poll_tells_everything",
    HidesSomethingFromScan: "scan_lists_exactly_what_is_there",
    AnswersInAnotherOrder: "lookups_answer_in_the_order_of_the_keys",
    SaysHitToEverything: "unknown_keys_are_a_miss",
    NeverKnows: "unknown_keys_are_a_miss",
    CountsBackwards: "no_life_breaks_the_contract",
    WritesAfterTheReport: "buffers_are_left_alone_after_the_report",
    WritesIntoAStore: "what_was_stored_is_loaded_into_any_buffer",
    ForgetsEverythingAtARestart: "a_restart_keeps_the_content",
    DropsBigBatches: "a_batch_has_an_outcome_for_every_key",
    LosesWhatIsStoredTwice: "storing_again_is_done_and_keeps_the_content",
    RefusesJobsWithoutKeys: "a_job_without_keys_is_a_job",
    CountsWhatItDidNotMove: "a_first_store_says_how_much_it_moved",
    FailsOnceInAWhile: "no_life_breaks_the_contract",
}
