"""Which faults a run meets: scheduled or drawn, one submission after the other, and all of them written down."""

from __future__ import annotations

import random

from kvoffload.tiers.base import TierEntry, TierJob
from kvoffload.tiers.wrappers.faults import POSSIBLE, Fault, FaultConfig, PlannedFault


class FaultPlan:
    """Decides what goes wrong. Depends on `config` and on the jobs alone."""

    def __init__(self, config: FaultConfig) -> None:
        self.history: list[PlannedFault] = []
        """What was decided so far: as `FaultConfig.schedule` it makes the same go wrong again."""
        self._config = config
        self._rng = random.Random(config.seed)  # noqa: S311  (repeatable, and no secret)
        self._schedule = {(planned.submission, planned.position): planned for planned in config.schedule}
        self._submissions = 0

    def replay(self) -> str:
        """A line of Python that makes the same faults again, and the seed that they came from."""
        return f"FaultConfig(schedule={tuple(self.history)!r})  # came from seed {self._config.seed}"

    def next(self, job: TierJob) -> list[PlannedFault]:
        """The faults of the next submission: a REFUSE alone, or at most one for each chunk."""
        refusal = PlannedFault(self._submissions, 0, Fault.REFUSE)
        is_drawn = self._rng.random() < self._config.rates.get(job.verb, {}).get(Fault.REFUSE, 0.0)
        if is_drawn or self._schedule.get((self._submissions, 0)) == refusal:
            plan = [refusal]
        else:
            chunks = [self._next_of(job, place, entry) for place, entry in enumerate(job.entries)]
            plan = [planned for planned in chunks if planned is not None]
        assert all(planned.fault in POSSIBLE[job.verb] for planned in plan), (
            f"a {job.verb.value} cannot: {plan}"
        )
        self._submissions += 1
        self.history += plan
        return plan

    def _next_of(self, job: TierJob, position: int, entry: TierEntry) -> PlannedFault | None:
        # Two numbers for each chunk, whatever they mean: a changed schedule leaves the other places alone.
        point, bit = self._rng.random(), self._rng.randrange(8 * max(1, entry.buffer.nbytes))
        planned = self._schedule.get((self._submissions, position))
        for fault, rate in self._config.rates.get(job.verb, {}).items():
            point -= 0.0 if fault is Fault.REFUSE else rate
            if planned is None and point < 0:
                planned = PlannedFault(self._submissions, position, fault, bit)
        return planned
