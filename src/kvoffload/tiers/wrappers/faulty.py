"""Seeded and scheduled faults around a tier; every one is written down, so that a failure can be replayed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.tiers.base import Outcome, Tier, TierEntry, TierJob, TierReport, Verb
from kvoffload.tiers.wrappers.base import TierWrapper
from kvoffload.tiers.wrappers.fault_plan import FaultPlan
from kvoffload.tiers.wrappers.faults import ANSWERS, ON_MEDIUM, Fault, FaultConfig, Medium, PlannedFault


@dataclass(frozen=True, slots=True, eq=False)
class _Troubled:
    entries: tuple[TierEntry, ...]
    plan: dict[OffloadKey, PlannedFault]


class FaultyTier(TierWrapper):
    """Makes things go wrong as `config` says; `medium` is needed for FLIP_STORED and VANISH alone."""

    adds: ClassVar[str] = "with faults"

    def __init__(self, inner: Tier, config: FaultConfig, medium: Medium | None = None) -> None:
        super().__init__(inner)
        self.plan = FaultPlan(config)
        """Has the history of this run, and its `replay`."""
        self._medium = medium
        self._troubled: dict[int, _Troubled] = {}

    def submit(self, job: TierJob) -> bool:
        """See Tier."""
        plan = self.plan.next(job)
        self._counters.update(f"faults_{planned.fault.value}" for planned in plan)
        if any(planned.fault is Fault.REFUSE for planned in plan):
            return False
        by_key = {job.entries[planned.position].key: planned for planned in plan}
        if job.verb is Verb.LOAD:
            self._harm_medium(by_key)
        entries = tuple(_torn(e, by_key.get(e.key)) for e in job.entries if not _answer(by_key.get(e.key)))
        # Even if nothing is left of it, the tier inside has the job: its bounds and its end hold for the faults, too.
        if not self.inner.submit(replace(job, entries=entries)):
            return False
        self._troubled[job.job_id] = _Troubled(job.entries, by_key)
        return True

    def poll(self) -> list[TierReport]:
        """See Tier."""
        return [self._with_faults(report) for report in self.inner.poll()]

    def _with_faults(self, report: TierReport) -> TierReport:
        troubled = self._troubled.pop(report.job_id)
        outcomes: dict[OffloadKey, Outcome] = {}
        for entry in troubled.entries:
            planned = troubled.plan.get(entry.key)
            outcomes[entry.key] = _answer(planned) or report.outcomes[entry.key]
            if planned and planned.fault is Fault.FLIP_LOADED and outcomes[entry.key] is Outcome.DONE:
                entry.buffer[planned.bit // 8 % entry.buffer.nbytes] ^= 1 << planned.bit % 8
        if report.verb is Verb.STORE:
            self._harm_medium(troubled.plan)
        return replace(report, outcomes=outcomes)

    def _harm_medium(self, plan: dict[OffloadKey, PlannedFault]) -> None:
        for key, planned in plan.items():
            if planned.fault in ON_MEDIUM:
                assert self._medium is not None, f"{planned} needs a medium"
                if planned.fault is Fault.VANISH:
                    self._medium.remove(key)
                else:
                    self._medium.flip_bit(key, planned.bit)


def _answer(planned: PlannedFault | None) -> Outcome | None:
    return None if planned is None else ANSWERS.get(planned.fault)


def _torn(entry: TierEntry, planned: PlannedFault | None) -> TierEntry:
    if planned is None or planned.fault is not Fault.TORN_STORE:
        return entry
    return TierEntry(entry.key, entry.buffer[: entry.buffer.nbytes // 2])
