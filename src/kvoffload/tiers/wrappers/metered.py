"""What a tier does and how fast: counts, bytes, busy time, queue depth, and an estimate of what a job will take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from kvoffload.clock import Clock
from kvoffload.errors import ConfigError
from kvoffload.keys.offload_key import OffloadKey
from kvoffload.tiers.base import Tier, TierJob, TierReport, Verb
from kvoffload.tiers.wrappers.base import TierWrapper
from kvoffload.tiers.wrappers.speed import SpeedMeter
from kvoffload.types import LookupResult

_MICROSECONDS = 1e6


@dataclass(frozen=True, slots=True)
class MeterConfig:
    """How estimates follow measurements. Raises ConfigError when made with a value out of range."""

    weight: float = 0.1
    """Share of the newest job in the weighted means: small is calm, large is quick."""

    def __post_init__(self) -> None:
        if not 0 < self.weight <= 1:
            raise ConfigError(f"meter: weight={self.weight} must be above 0 and at most 1")


@dataclass(slots=True)
class _Flight:
    verb: Verb
    size_bytes: int
    started_s: float


class MeteredTier(TierWrapper):
    """Counts, per verb: jobs, refusals, chunks by outcome, bytes moved, time busy and from submission to report."""

    adds: ClassVar[str] = "metered"

    def __init__(self, inner: Tier, config: MeterConfig, clock: Clock) -> None:
        super().__init__(inner)
        self._clock = clock
        self.speeds = {verb: SpeedMeter(config.weight) for verb in Verb}
        """Measured latency and bandwidth."""
        self._flights: dict[int, _Flight] = {}

    def queued(self, verb: Verb) -> tuple[int, int]:
        """(jobs, bytes) of one verb that were taken and not polled: the depth of the queue."""
        sizes = [flight.size_bytes for flight in self._flights.values() if flight.verb is verb]
        return len(sizes), sum(sizes)

    def estimate(self, verb: Verb, size_bytes: int) -> float | None:
        """Seconds that a job of this size would take if it came now, behind what is queued of its verb.

        None if that was never measured. Does not mutate.
        """
        return self.speeds[verb].seconds_for(size_bytes, self.queued(verb)[1])

    def lookup(self, keys: Sequence[OffloadKey]) -> list[LookupResult]:
        """See Tier."""
        answers = self.inner.lookup(keys)
        for answer in answers:
            self._counters[f"lookup_{answer.value}_keys"] += 1
        return answers

    def submit(self, job: TierJob) -> bool:
        """See Tier."""
        verb = job.verb.value
        if not self.inner.submit(job):
            self._counters[f"{verb}_refused_jobs"] += 1
            return False
        self._flights[job.job_id] = _Flight(job.verb, job.size_bytes, self._clock.now_s())
        return True

    def poll(self) -> list[TierReport]:
        """See Tier."""
        reports = self.inner.poll()
        now_s = self._clock.now_s()
        for report in reports:
            self._count(report, now_s - self._flights.pop(report.job_id).started_s)
            self.speeds[report.verb].add(report.moved_bytes, report.busy_s)
        return reports

    def _count(self, report: TierReport, elapsed_s: float) -> None:
        verb = report.verb.value
        self._counters[f"{verb}_jobs"] += 1
        self._counters[f"{verb}_moved_bytes"] += report.moved_bytes
        self._counters[f"{verb}_busy_us"] += round(report.busy_s * _MICROSECONDS)
        self._counters[f"{verb}_elapsed_us"] += round(elapsed_s * _MICROSECONDS)
        for outcome in report.outcomes.values():
            self._counters[f"{verb}_{outcome.value}_chunks"] += 1
