"""Random lives of one tier, checked against a dictionary. Used by `TierTests`; also for tiers with injected faults."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from enum import Enum

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.testing.tier_driver import Job, TierDriver
from kvoffload.tiers.base import Outcome, Verb
from kvoffload.types import LookupResult


class Presence(Enum):
    """What the model knows of a key."""

    THERE = "there"
    GONE = "gone"
    MAYBE = "maybe"
    """Jobs that overlapped, or a fault, leave it open."""


class TierLife:
    """A random history of one tier.

    The order in which jobs that overlap take effect is open, so a key that was written and used at the same time may be
    there or not. Everything else is known, and whatever is loaded must have the right bytes (the driver sees to that).

    Args:
        driver: Has the tier, which is empty.
        rng: Makes the history.
        keys: What it plays with; together they must fit into the tier.
        is_reliable: A tier that works keeps what it stored, and never fails. False: it may lose anything at any time,
            but what it has deleted does not come back.
    """

    def __init__(
        self, driver: TierDriver, rng: random.Random, keys: Sequence[OffloadKey], *, is_reliable: bool = True
    ) -> None:
        self.driver = driver
        self.rng = rng
        self.keys = list(keys)
        self.is_reliable = is_reliable
        self.known = dict.fromkeys(self.keys, Presence.GONE)
        self._using: Counter[OffloadKey] = Counter()
        self._writing: Counter[OffloadKey] = Counter()
        self._contested: set[OffloadKey] = set()
        self._cleared: set[int] = set()
        """Jobs that were in flight when the tier was cleared."""

    def run(self, actions: int = 80) -> None:
        """Act at random, then look at everything once more."""
        doings = [self._submit] * 6 + [self._poll] * 3 + [self._settle, self._lookup, self._touch]
        for _ in range(actions):
            self.rng.choice(doings)()
            if self.rng.random() < 0.02:
                self._clear()
            self.driver.check()
        self._finish()
        self._lookup()
        self._scan()
        for key in self.keys:
            self._submit_job(Verb.LOAD, [key])
        self._finish()
        stats = self.driver.tier.stats()
        assert (stats.queued_jobs, stats.queued_bytes) == (0, 0), stats

    # -- actions -------------------------------------------------------------------------------------------------

    def _submit(self) -> None:
        verb = self.rng.choice((Verb.STORE, Verb.STORE, Verb.LOAD, Verb.LOAD, Verb.DELETE))
        self._submit_job(verb, self.rng.sample(self.keys, self.rng.randint(1, min(5, len(self.keys)))))

    def _submit_job(self, verb: Verb, keys: Sequence[OffloadKey]) -> None:
        job = self.driver.submit(verb, keys)
        if job is None:
            # Under pressure: it must have room again when it has been given time.
            self._finish()
            job = self.driver.submit(verb, keys) if self.is_reliable else None
            assert job is not None or not self.is_reliable, "an idle tier refuses a job"
        for key in job.keys if job else ():
            if self._writing[key] or (self._using[key] and verb is not Verb.LOAD):
                self._contested.add(key)
            self._using[key] += 1
            self._writing[key] += verb is not Verb.LOAD

    def _poll(self) -> None:
        self.driver.poll()
        self._learn()

    def _settle(self) -> None:
        self.driver.settle(self.driver.tier)
        self._poll()

    def _finish(self) -> None:
        self.driver.finish()
        self._learn()

    def _touch(self) -> None:
        self.driver.tier.touch(self.rng.sample(self.keys, 2))

    def _lookup(self) -> None:
        keys = [key for key in self.rng.sample(self.keys, len(self.keys)) if not self._using[key]]
        answers = self.driver.lookup(keys)
        self._learn()
        for key, answer in zip(keys, answers, strict=True):
            if self.is_reliable and self.known[key] is not Presence.MAYBE:
                expected = LookupResult.HIT if self.known[key] is Presence.THERE else LookupResult.MISS
                assert answer is expected, f"{key.hex()} is {self.known[key]}, the tier says {answer}"

    def _clear(self) -> None:
        is_empty = self.driver.tier.clear()
        self.known = dict.fromkeys(self.keys, Presence.GONE if is_empty else Presence.MAYBE)
        self._cleared.update(self.driver.outstanding)
        if not is_empty:
            self._contested.update(key for key in self.keys if self._using[key])

    def _scan(self) -> None:
        found = {chunk.key: chunk.size_bytes for chunk in self.driver.tier.scan()}
        assert all(size > 0 for size in found.values()), found
        for key in self.keys if self.is_reliable else ():
            if self.known[key] is not Presence.MAYBE:
                assert (key in found) == (self.known[key] is Presence.THERE), (
                    f"{key.hex()} is {self.known[key]}, scan says {key in found}"
                )

    # -- what reports say ----------------------------------------------------------------------------------------

    def _learn(self) -> None:
        for job in self.driver.ended:
            for key, outcome in zip(job.keys, job.outcomes(), strict=True):
                self._learn_one(job, key, outcome)
            self._cleared.discard(job.job_id)
        self.driver.ended.clear()

    def _learn_one(self, job: Job, key: OffloadKey, outcome: Outcome) -> None:
        if job.job_id not in self._cleared:
            self._expect(job.verb, key, outcome)
        if key in self._contested:
            self.known[key] = Presence.MAYBE
        self._using[key] -= 1
        self._writing[key] -= job.verb is not Verb.LOAD
        if not self._using[key]:
            self._contested.discard(key)

    def _expect(self, verb: Verb, key: OffloadKey, outcome: Outcome) -> None:
        before = self.known[key]
        kept = Presence.THERE if self.is_reliable else Presence.MAYBE
        if self.is_reliable:
            assert outcome in (Outcome.DONE, Outcome.MISSING), (
                f"{verb} of {key.hex()}: {outcome} for no reason"
            )
        if key in self._contested:
            return
        match verb, outcome:
            case Verb.STORE, Outcome.DONE:
                self.known[key] = kept
            case Verb.STORE | Verb.DELETE, Outcome.FAILED | Outcome.REJECTED:
                self.known[key] = Presence.MAYBE
            case Verb.DELETE, Outcome.DONE:
                self.known[key] = Presence.GONE
            case Verb.LOAD, Outcome.DONE:
                assert before is not Presence.GONE, f"{key.hex()} was deleted or never stored, and was loaded"
                self.known[key] = kept
            case Verb.LOAD, Outcome.MISSING:
                assert before is not Presence.THERE, f"{key.hex()} was stored, and is missing"
                self.known[key] = Presence.GONE if self.is_reliable else before
