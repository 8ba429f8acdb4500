"""The tests that every secondary tier passes. Needs pytest or anything else that calls `test_…` methods.

class TestMyTier(TierTests):
    def make(self):
        return MyTier(…)                 # empty, with room for 200 chunks

A test that does not apply (a volatile tier has nothing to reopen) is skipped by raising `unittest.SkipTest`.
"""

from __future__ import annotations

import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from unittest import SkipTest

from kvoffload.keys.offload_key import OffloadKey
from kvoffload.testing.tier_driver import Job, TierDriver, make_key, make_keys, same
from kvoffload.testing.tier_model import TierLife
from kvoffload.tiers.base import Outcome, Tier, Verb
from kvoffload.types import LookupResult

DONE, MISSING, FAILED = Outcome.DONE, Outcome.MISSING, Outcome.FAILED
HIT, MISS = LookupResult.HIT, LookupResult.MISS
_BURST = 2_000


class TierTests(ABC):
    """Subclass it, give `make`, and run it. Every method below `make` may be overridden."""

    seeds: Iterable[int] = range(10)
    """Random lives; a failure names its seed, and `seeds = (that,)` replays it."""
    payload_bytes: Sequence[int] = (4096, 12288)
    """Bytes of a chunk, per group; one group is enough."""
    patience_s: float = 30.0
    """Real time after which a tier that has not done its work never will."""
    refuses_after_jobs: int | None = None
    """After how many jobs that were not polled it must refuse, if that is certain (threads may be too quick)."""
    evicts_by_recency: bool = True
    """Whether use protects from eviction (not so under FIFO)."""

    @abstractmethod
    def make(self) -> Tier:
        """A new, empty tier with room for 200 chunks and more, and for 5 jobs in flight."""

    def make_small(self, chunks: int) -> Tier | None:
        """A new, empty tier with room for about so many chunks of group 0; None if it has no cap of its own."""
        del chunks
        return None

    def reopen(self, tier: Tier) -> Tier | None:
        """Another instance on the storage of `tier`, as another process or a later one; None if it is volatile."""
        del tier
        return None

    def settle(self, tier: Tier) -> None:
        """Let the tier work a moment; called again and again. Advance its clock here if that is a manual one."""
        tier.drain(0.02)

    @contextmanager
    def driving(self, tier: Tier | None = None) -> Iterator[TierDriver]:
        """A driver of a tier (a new one if none is given), which is shut down at the end."""
        driver = TierDriver(tier or self.make(), self.payload_bytes, self.settle, self.patience_s)
        try:
            yield driver
            driver.finish()
            driver.check()
        finally:
            driver.tier.shutdown()

    # -- what is there -------------------------------------------------------------------------------------------

    def test_unknown_keys_are_a_miss(self) -> None:
        """Nothing was stored: nothing is found, loading and deleting say so."""
        with self.driving() as driver:
            keys = make_keys(7)
            same(driver.lookup(keys), [MISS] * 7)
            same(driver.lookup([]), [])
            same(driver.load(keys), [MISSING] * 7)
            same(driver.delete(keys), [DONE] * 7)
            driver.tier.touch(keys)
            same(list(driver.tier.scan()), [])

    def test_what_was_stored_is_loaded_into_any_buffer(self) -> None:
        """The driver compares every byte of every load that is DONE with what was stored."""
        with self.driving() as driver:
            keys = make_keys(3)
            same(driver.store(keys), [DONE] * 3)
            same(driver.lookup(keys), [HIT] * 3)
            for _ in range(2):
                same(driver.load(keys), [DONE] * 3)

    def test_a_batch_has_an_outcome_for_every_key(self) -> None:
        """Large batches, and some keys that are not there between others that are."""
        with self.driving() as driver:
            keys = make_keys(90)
            there = set(keys[::3]) | set(keys[::7])
            same(driver.store(sorted(there)), [DONE] * len(there))
            same(driver.lookup(keys), [HIT if key in there else MISS for key in keys])
            same(driver.load(keys), [DONE if key in there else MISSING for key in keys])
            same(driver.delete(keys), [DONE] * 90)
            same(driver.lookup(keys[::-1]), [MISS] * 90)

    def test_a_job_without_keys_is_a_job(self) -> None:
        """Taken, and reported once, with no outcome."""
        with self.driving() as driver:
            for verb in Verb:
                same(driver.run(verb, []), [])

    def test_lookups_answer_in_the_order_of_the_keys(self) -> None:
        """The same key may be asked for twice."""
        with self.driving() as driver:
            here, gone = make_keys(2)
            driver.store([here])
            same(driver.lookup([gone, here, gone, here, here]), [MISS, HIT, MISS, HIT, HIT])

    def test_groups_and_lengths_of_hashes_are_told_apart(self) -> None:
        """The same hash in two groups is two chunks; a hash is not a prefix of another."""
        with self.driving() as driver:
            groups = range(len(self.payload_bytes))
            keys = [make_key(1, group, length) for group in groups for length in (8, 16, 20, 32)]
            for number, key in enumerate(keys):
                rest = len(keys) - number - 1
                same(driver.store([key]), [DONE])
                same(driver.lookup(keys), [HIT] * (number + 1) + [MISS] * rest)
            same(driver.load(keys), [DONE] * len(keys))
            same(driver.delete(keys[:1]), [DONE])
            same(driver.load(keys), [MISSING] + [DONE] * (len(keys) - 1))

    def test_storing_again_is_done_and_keeps_the_content(self) -> None:
        """Content follows from the key, so there is nothing to replace."""
        with self.driving() as driver:
            keys = make_keys(4)
            for _ in range(3):
                same(driver.store(keys), [DONE] * 4)
                same(driver.load(keys), [DONE] * 4)
                same(len(list(driver.tier.scan())), 4)

    def test_what_was_deleted_is_gone_and_may_come_back(self) -> None:
        """A deleted key is a miss and cannot be loaded; storing it anew is nothing special."""
        with self.driving() as driver:
            keys = make_keys(6)
            for _ in range(3):
                driver.store(keys)
                same(driver.delete(keys[:3]), [DONE] * 3)
                same(driver.delete(keys[:1]), [DONE])
                same(driver.lookup(keys), [MISS] * 3 + [HIT] * 3)
                same(driver.load(keys), [MISSING] * 3 + [DONE] * 3)

    def test_scan_lists_exactly_what_is_there(self) -> None:
        """Every chunk once, with what it occupies; together they are no more than the tier says it holds."""
        with self.driving() as driver:
            keys = make_keys(20)
            driver.store(keys)
            driver.delete(keys[:5])
            found = list(driver.tier.scan())
            same(sorted(chunk.key for chunk in found), sorted(keys[5:]))
            assert all(chunk.size_bytes > 0 and chunk.last_used_s >= 0 for chunk in found), found
            stats = driver.tier.stats()
            assert stats.stored_chunks == len(found), stats
            assert stats.stored_bytes == sum(chunk.size_bytes for chunk in found), stats

    # -- jobs and reports ----------------------------------------------------------------------------------------

    def test_every_job_is_reported_exactly_once(self) -> None:
        """Many jobs in flight, on keys they share, polled now and then; the driver keeps the books."""
        for seed in self.seeds:
            rng = random.Random(seed)  # noqa: S311
            with self._replayable(seed), self.driving() as driver:
                keys = make_keys(10)
                for _ in range(40):
                    driver.start(rng.choice(tuple(Verb)), rng.sample(keys, rng.randint(0, 6)))
                    if rng.random() < 0.3:
                        driver.poll()
                driver.finish()
                same(len(driver.ended), 40)
                self.settle(driver.tier)
                same(driver.tier.poll(), [])

    def test_buffers_are_left_alone_after_the_report(self) -> None:
        """And what is around them, always: the driver watches both."""
        with self.driving() as driver:
            keys = make_keys(8)
            driver.store(keys)
            for _ in range(3):
                driver.load([*keys, make_key(99)])
                self.settle(driver.tier)
                driver.check()

    def test_a_first_store_says_how_much_it_moved(self) -> None:
        """Loads always do; a store may leave out what was there already."""
        with self.driving() as driver:
            keys = make_keys(5)
            for _ in range(2):
                driver.store(keys)
            first, second = (job.report.moved_bytes for job in driver.ended if job.report)
            same(first, 5 * self.payload_bytes[0])
            assert second <= first, f"moved {second} bytes of {first} the second time"

    def test_pressure_is_refused_and_never_waited_for(self) -> None:
        """A burst without a poll ends; what was taken is reported, and then there is room again."""
        with self.driving() as driver:
            taken: list[Job] = []
            failure: list[BaseException] = []

            def burst() -> None:
                try:
                    self._burst(driver, taken)
                except BaseException as error:  # noqa: BLE001  (it is raised again in the test's thread)
                    failure.append(error)

            thread = threading.Thread(target=burst, daemon=True)
            thread.start()
            thread.join(self.patience_s)
            assert not thread.is_alive(), f"submit blocks: {len(taken)} jobs taken"
            assert not failure, failure[0]
            limit = self.refuses_after_jobs
            assert taken, "it takes nothing"
            assert limit is None or len(taken) <= limit, f"{len(taken)} jobs taken, {limit} are its bound"
            driver.finish()
            same(driver.run(Verb.DELETE, make_keys(1)), [DONE])

    def test_drained_means_that_one_poll_tells_everything(self) -> None:
        """After True nothing is on its way; reports do not get lost by draining."""
        with self.driving() as driver:
            assert driver.tier.drain(0.0), "an idle tier is not drained"
            driver.start(Verb.STORE, make_keys(9))
            driver.start(Verb.LOAD, make_keys(4, first=50))
            driver.start(Verb.DELETE, make_keys(4, first=60))
            assert driver.tier.drain(self.patience_s), "not drained in time"
            driver.poll()
            assert not driver.outstanding, f"drained, and {len(driver.outstanding)} jobs were not reported"
            assert driver.tier.drain(0.0), "drained, and then not"

    def test_shutdown_takes_no_more_and_reports_what_it_had(self) -> None:
        """Jobs in flight end somehow; nothing else happens afterwards, however often it is shut down."""
        for pending in range(5):
            with self.driving() as driver:
                stored, more = make_keys(2), make_keys(10, first=20)
                driver.store(stored)
                verbs = (Verb.STORE, Verb.LOAD, Verb.DELETE, Verb.STORE)[:pending]
                jobs = [driver.start(verb, [*stored, *more]) for verb in verbs]
                driver.tier.shutdown()
                for verb in Verb:
                    assert driver.submit(verb, more) is None, f"takes a {verb.value} after shutdown"
                driver.finish()
                driver.tier.shutdown()
                found = {outcome for job in jobs for outcome in job.outcomes()}
                assert found <= {DONE, MISSING, FAILED}, f"a shutdown is no reason for {found}"
                same(driver.tier.poll(), [])
                same(len(driver.tier.lookup(stored)), 2)
                assert driver.tier.drain(0.0), "drained, and then not"

    # -- clearing ------------------------------------------------------------------------------------------------

    def test_clear_forgets_everything_and_the_tier_goes_on(self) -> None:
        """A reset leaves nothing behind, and new chunks are welcome."""
        with self.driving() as driver:
            keys = make_keys(12)
            for _ in range(2):
                driver.store(keys)
                assert driver.tier.clear(), "clear says that something is left"
                same(driver.lookup(keys), [MISS] * 12)
                same(driver.load(keys), [MISSING] * 12)
                same(list(driver.tier.scan()), [])
                same(driver.tier.stats().stored_bytes, 0)

    def test_a_store_that_clear_overtakes_does_not_come_back(self) -> None:
        """Whatever it reports: it belongs to the time before."""
        for polls in range(3):
            with self.driving() as driver:
                keys = make_keys(30)
                driver.start(Verb.STORE, keys)
                for _ in range(polls):
                    driver.poll()
                assert driver.tier.clear(), "clear says that something is left"
                driver.finish()
                self.settle(driver.tier)
                same(driver.lookup(keys), [MISS] * 30)
                same(driver.load(keys), [MISSING] * 30)
                same(driver.store(keys[:1]), [DONE])

    # -- capacity ------------------------------------------------------------------------------------------------

    def test_the_capacity_is_never_exceeded(self) -> None:
        """Not after any job, even of more than fits; and the tier does not wedge when it is full."""
        with self.driving(self._small(12)) as driver:
            capacity = driver.tier.stats().capacity_bytes
            assert capacity is not None, "a tier with a cap does not say so"
            for number in range(12):
                driver.store(make_keys(5 if number % 4 else 20, first=20 * number))
                stored = sum(chunk.size_bytes for chunk in driver.tier.scan())
                assert stored <= capacity, f"{stored} bytes in a tier of {capacity}"
                assert stored > 0, "a full tier keeps nothing"
            assert DONE in driver.store(make_keys(2, first=900)), "full for ever"

    def test_use_protects_from_eviction(self) -> None:
        """Of chunks of one age, those that were touched outlive the others."""
        if not self.evicts_by_recency:
            raise SkipTest("it does not evict by recency")
        with self.driving(self._small(24)) as driver:
            old = make_keys(16)
            driver.store(old)
            driver.tier.touch(old[:8])
            for number in range(6):
                driver.store(make_keys(2, first=100 + 2 * number))
                driver.tier.touch(old[:8])
            kept = [answer is HIT for answer in driver.lookup(old)]
            assert not all(kept), "nothing was evicted: make_small has too much room"
            assert sum(kept[:8]) > sum(kept[8:]), f"touched ones kept {sum(kept[:8])}, others {sum(kept[8:])}"

    # -- several instances ---------------------------------------------------------------------------------------

    def test_a_restart_keeps_the_content(self) -> None:
        """What was stored before is found, loaded, deleted and listed."""
        keys = make_keys(25)
        with self.driving() as driver:
            driver.store(keys)
            driver.delete(keys[:5])
        again = self.reopen(driver.tier)
        if again is None:
            raise SkipTest("a volatile tier")
        with self.driving(again) as later:
            same(later.load(keys), [MISSING] * 5 + [DONE] * 20)
            same(later.lookup(keys), [MISS] * 5 + [HIT] * 20)
            same(sorted(chunk.key for chunk in again.scan()), sorted(keys[5:]))
            same(later.delete(keys[5:6]), [DONE])
            same(later.load(keys[5:7]), [MISSING, DONE])

    def test_two_instances_see_each_others_chunks(self) -> None:
        """In the end, and never wrong bytes in between, whoever stores and deletes."""
        with self.driving() as one:
            other = self.reopen(one.tier)
            if other is None:
                raise SkipTest("a volatile tier")
            with self.driving(other) as two:
                keys = make_keys(10)
                one.start(Verb.STORE, keys[:7])
                two.start(Verb.STORE, keys[3:])
                one.finish()
                two.finish()
                for driver in (one, two):
                    same(driver.load(keys), [DONE] * 10)
                    driver.until(partial(_all_hit, driver, keys), "never sees the other's chunks")
                same(two.delete(keys[:4]), [DONE] * 4)
                same(one.load(keys), [MISSING] * 4 + [DONE] * 6)
                same(one.lookup(keys), [MISS] * 4 + [HIT] * 6)

    # -- random lives --------------------------------------------------------------------------------------------

    def test_no_life_breaks_the_contract(self) -> None:
        """Random histories against a dictionary, with everything that the driver checks at each step."""
        keys = [make_key(number, number % len(self.payload_bytes)) for number in range(12)]
        for seed in self.seeds:
            with self._replayable(seed), self.driving() as driver:
                TierLife(driver, random.Random(seed), keys).run()  # noqa: S311

    @contextmanager
    def _replayable(self, seed: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise AssertionError(f"seed {seed} (replay with `seeds = ({seed},)`): {error!r}") from error

    def _small(self, chunks: int) -> Tier:
        tier = self.make_small(chunks)
        if tier is None:
            raise SkipTest("a tier without a cap of its own")
        return tier

    def _burst(self, driver: TierDriver, taken: list[Job]) -> None:
        for number in range(_BURST):
            job = driver.submit(Verb.LOAD if number % 2 else Verb.STORE, [make_key(number % 50)])
            if job is None:
                return
            taken.append(job)


def _all_hit(driver: TierDriver, keys: Sequence[OffloadKey]) -> bool:
    return driver.lookup(keys) == [HIT] * len(keys)
